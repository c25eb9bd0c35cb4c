#include <algorithm>

#include "trainer/layers/layers.h"

namespace psring {
namespace {

class DropoutLayer : public LayerWithoutParameters {
 public:
  explicit DropoutLayer(const DropoutConfig& config)
      : LayerWithoutParameters({.outputs = config.elements / static_cast<size_t>(Parts(config)),
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
  static int Parts(const DropoutConfig& config) {
    return config.sequence.ranks * (config.place.divides_rows ? config.place.ranks : 1);
  }

  // One call if this rank has whole samples; else one for each piece of a sample that is in one piece there.
  void Apply(const LayerPass& pass, const uint64_t* seeds, ConstSpan x, ConstSpan residual, Span y) const {
    DropoutOps& ops = *pass.ops.families().dropout;
    DropoutShape shape{.batch = pass.batch,
                       .elements = traits().outputs,
                       .probability = config_.probability,
                       .layer = config_.number};
    if (seeds == nullptr || Parts(config_) == 1) {
      return ops.Apply(shape, seeds, x, residual, y, pass.stream);
    }
    shape.batch = 1;
    size_t done = 0;
    const auto apply = [&](size_t sample, size_t first, size_t elements) {
      shape.first = first;
      shape.elements = elements;
      const ConstSpan added = residual.data == nullptr ? residual : residual.Slice(done, elements);
      ops.Apply(shape, seeds + sample, x.Slice(done, elements), added, y.Slice(done, elements), pass.stream);
      done += elements;
    };
    if (config_.sequence.divides()) {
      const size_t width = config_.elements / static_cast<size_t>(config_.context);
      const std::vector<ReadyRange> ranges = config_.sequence.Positions(config_.context);
      for (size_t sample = 0; done < y.count; ++sample) {
        for (const ReadyRange& range : ranges) apply(sample, range.first * width, range.count * width);
      }
      return;
    }
    const size_t before = config_.place.FirstRow(y.count);  // elements of the batch that other ranks have
    while (done < y.count) {
      const size_t at = before + done, first = at % config_.elements;
      apply(at / config_.elements, first, std::min(config_.elements - first, y.count - done));
    }
  }

  const DropoutConfig config_;
};

}  // namespace

std::unique_ptr<Layer> MakeDropout(const DropoutConfig& config) {
  return std::make_unique<DropoutLayer>(config);
}

}  // namespace psring
