#include "trainer/layers/layers.h"

namespace psring {
namespace {

class DropoutLayer : public LayerWithoutParameters {
 public:
  explicit DropoutLayer(const DropoutConfig& config)
      : LayerWithoutParameters({.outputs = config.elements / static_cast<size_t>(config.sequence.ranks),
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
  // One call if this rank has whole samples; else one for each range of positions of a sample.
  void Apply(const LayerPass& pass, const uint64_t* seeds, ConstSpan x, ConstSpan residual, Span y) const {
    DropoutOps& ops = *pass.ops.families().dropout;
    DropoutShape shape{.batch = pass.batch,
                       .elements = traits().outputs,
                       .probability = config_.probability,
                       .layer = config_.number};
    if (seeds == nullptr || !config_.sequence.divides()) {
      return ops.Apply(shape, seeds, x, residual, y, pass.stream);
    }
    const size_t width = config_.elements / static_cast<size_t>(config_.context);
    const std::vector<ReadyRange> ranges = config_.sequence.Positions(config_.context);
    shape.batch = 1;
    for (size_t done = 0; done < y.count;) {
      const uint64_t* const seed = seeds + done / traits().outputs;
      for (const ReadyRange& range : ranges) {
        shape.first = range.first * width;
        shape.elements = range.count * width;
        const ConstSpan added = residual.data == nullptr ? residual : residual.Slice(done, shape.elements);
        ops.Apply(shape, seed, x.Slice(done, shape.elements), added, y.Slice(done, shape.elements),
                  pass.stream);
        done += shape.elements;
      }
    }
  }

  const DropoutConfig config_;
};

}  // namespace

std::unique_ptr<Layer> MakeDropout(const DropoutConfig& config) {
  return std::make_unique<DropoutLayer>(config);
}

}  // namespace psring
