// The families of ops on CPUs, for activations of one type, float32 or bfloat16, and what they share.
//
// Their loops are compiled for several instruction sets (PSRING_MULTIVERSION, from CMake: the attribute that
// makes the compiler emit a function once for each, or nothing if it cannot); the best one is chosen when the
// program starts. Every operation is rounded separately and in a fixed order, so the bits are the same on
// every processor; only attention's depend on it.
#pragma once

#include <initializer_list>
#include <memory>
#include <utility>

#include "common/ops/ops_common.h"

namespace psring {

std::unique_ptr<PoolingOps> MakeCpuPooling(DType activations);
std::unique_ptr<LossOps> MakeCpuLoss(DType activations);
std::unique_ptr<NormalizationOps> MakeCpuNormalization(DType activations);
// `threads`: cores that one call may use, each for a part of the heads. Results do not depend on it.
std::unique_ptr<AttentionOps> MakeCpuAttention(DType activations, int threads);
std::unique_ptr<EmbeddingOps> MakeCpuEmbedding(DType activations);
std::unique_ptr<DropoutOps> MakeCpuDropout(DType activations);
std::unique_ptr<BatchNormOps> MakeCpuBatchNorm(DType activations);
std::unique_ptr<BagOps> MakeCpuBags(DType activations);
std::unique_ptr<DotOps> MakeCpuDots(DType activations);

// `work` cannot fail.
template <typename Work>
void RunOnCpu(Stream& stream, Work work) {
  stream.Run([work = std::move(work)] {
    work();
    return absl::OkStatus();
  });
}

template <typename Family>
class CpuFamily : public Family {
 public:
  explicit CpuFamily(DType activations) : type_(activations) {}

 protected:
  DType type() const { return type_; }
  void CheckActivations(std::initializer_list<ConstSpan> spans) const { CheckTypes(type_, spans); }

 private:
  const DType type_;
};

}  // namespace psring
