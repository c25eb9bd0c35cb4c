// The ops that all CPU implementations of Ops share; derived classes add linear and convolution layers.
#pragma once

#include <utility>

#include "common/ops/ops.h"
#include "common/ops/ops_common.h"

namespace psring {

class CpuOps : public Ops {
 public:
  void Convert(ConstSpan from, Span to, Stream& stream) override;
  void MaxPoolForward(const PoolShape& shape, ConstSpan x, Span y, uint8_t* argmax, Stream& stream) override;
  void MaxPoolBackward(const PoolShape& shape, ConstSpan dy, const uint8_t* argmax, Span dx,
                       Stream& stream) override;
  void SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const uint8_t* labels, Span dlogits,
                           double* loss_sum, int64_t* correct, Stream& stream) override;
  void Add(Span to, ConstSpan from, Stream& stream) override;
  void FindNotFinite(ConstSpan values, uint32_t* found, Stream& stream) override;
  void AddSquares(ConstSpan values, double* sum, Stream& stream) override;
  void Apply(const OptimizerStep& step, Span weights, ConstSpan gradient, const std::array<Span, 2>& slots,
             Stream& stream) override;

 protected:
  // `work` cannot fail.
  template <typename Work>
  static void Run(Stream& stream, Work work) {
    stream.Run([work = std::move(work)] {
      work();
      return absl::OkStatus();
    });
  }
};

}  // namespace psring
