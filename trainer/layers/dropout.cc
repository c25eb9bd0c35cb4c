#include <algorithm>

#include "trainer/layers/layers.h"

namespace psring {
namespace {

class DropoutLayer : public LayerWithoutParameters {
 public:
  explicit DropoutLayer(const DropoutConfig& config)
      : LayerWithoutParameters(
            {.outputs =
                 config.elements / static_cast<size_t>(config.place.divides_rows ? config.place.ranks : 1),
             .inputs = WrittenAndPassed(config.residual)}),
        config_(config) {}

  absl::Status Forward(const LayerPass& pass) const override {
    const bool evaluates = pass.mode == PassMode::kEvaluation;
    Apply(pass, evaluates ? nullptr : pass.sample_seeds, pass.x[0],
          config_.residual ? pass.x[1] : ConstSpan(), pass.y);
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass& pass) const override {
    Apply(pass, pass.sample_seeds, pass.dy, {}, pass.dx[0]);
    return absl::OkStatus();
  }

 private:
  // One call if this rank has whole samples; else one for each sample of which it has a part.
  void Apply(const LayerPass& pass, const uint64_t* seeds, ConstSpan x, ConstSpan residual, Span y) const {
    DropoutOps& ops = *pass.ops.families().dropout;
    DropoutShape shape{.batch = pass.batch,
                       .elements = traits().outputs,
                       .probability = config_.probability,
                       .layer = config_.number};
    if (seeds == nullptr || !config_.place.divides_rows) {
      return ops.Apply(shape, seeds, x, residual, y, pass.stream);
    }
    shape.batch = 1;
    size_t at = config_.place.FirstRow(y.count);  // elements of the batch that other ranks have before
    for (size_t done = 0; done < y.count; done += shape.elements, at += shape.elements) {
      shape.first = at % config_.elements;
      shape.elements = std::min(config_.elements - shape.first, y.count - done);
      const ConstSpan added = residual.data == nullptr ? residual : residual.Slice(done, shape.elements);
      ops.Apply(shape, seeds + at / config_.elements, x.Slice(done, shape.elements), added,
                y.Slice(done, shape.elements), pass.stream);
    }
  }

  const DropoutConfig config_;
};

}  // namespace

std::unique_ptr<Layer> MakeDropout(const DropoutConfig& config) {
  return std::make_unique<DropoutLayer>(config);
}

}  // namespace psring
