#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"
#include "common/ops/cpu_layers.h"
#include "common/ops/cpu_ops.h"
#include "common/ops/ops_common.h"
#include "common/ops/transformer_kernels.h"

namespace psring {
namespace {

const cpu::AttentionKernels& BestAttentionKernels() {
  const cpu::AttentionKernels* kernels[3];
  return *kernels[cpu::SupportedAttentionKernels(kernels) - 1];
}

}  // namespace

void CpuNormalization::LayerNormForward(const LayerNormShape& shape, ConstSpan x, ConstSpan weight,
                                        ConstSpan bias, Span y, Span statistics, Stream& stream) {
  CheckLayerNorm(shape, x, weight, bias, y, statistics);
  CheckTypes(type_, {x, y});
  RunOnCpu(stream,
           [=] { cpu::LayerNormForward(shape, x, weight.floats(), bias.floats(), y, statistics.floats()); });
}

void CpuNormalization::LayerNormBackward(const LayerNormShape& shape, ConstSpan x, ConstSpan weight,
                                         ConstSpan statistics, ConstSpan dy, Span dx, bool add, Span dweight,
                                         Span dbias, Stream& stream) {
  CheckLayerNorm(shape, x, weight, dbias, dy, statistics);
  PSRING_CHECK(dx.count == x.count && dweight.count == weight.count);
  CheckTypes(type_, {x, dy, dx});
  RunOnCpu(stream, [=] {
    cpu::LayerNormBackward(shape, x, weight.floats(), statistics.floats(), dy, dx, add, dweight.floats(),
                           dbias.floats());
  });
}

CpuAttention::CpuAttention(DType activations, int threads)
    : type_(activations), threads_(threads), kernels_(BestAttentionKernels()) {}

void CpuAttention::Forward(const AttentionShape& shape, ConstSpan qkv, Span y, Span log_sum_exp,
                           Stream& stream) {
  CheckAttention(shape, qkv, y, log_sum_exp);
  CheckTypes(type_, {qkv, y});
  RunOnCpu(stream, [=, this] {
    ForEachHead(shape,
                {.context = shape.context,
                 .heads = shape.heads,
                 .head_size = shape.head_size,
                 .is_bfloat16 = type_ == DType::kBFloat16,
                 .qkv = qkv.data,
                 .y = y.data,
                 .log_sum_exp = log_sum_exp.floats()},
                kernels_.forward);
  });
}

void CpuAttention::Backward(const AttentionShape& shape, ConstSpan qkv, ConstSpan y, ConstSpan log_sum_exp,
                            ConstSpan dy, Span dqkv, Stream& stream) {
  CheckAttention(shape, qkv, y, log_sum_exp);
  CheckAttention(shape, dqkv, dy, log_sum_exp);
  CheckTypes(type_, {qkv, y, dy, dqkv});
  RunOnCpu(stream, [=, this] {
    ForEachHead(shape,
                {.context = shape.context,
                 .heads = shape.heads,
                 .head_size = shape.head_size,
                 .is_bfloat16 = type_ == DType::kBFloat16,
                 .qkv = qkv.data,
                 .y = const_cast<void*>(y.data),  // only read
                 .log_sum_exp = const_cast<float*>(log_sum_exp.floats()),
                 .dy = dy.data,
                 .dqkv = dqkv.data},
                kernels_.backward);
  });
}

void CpuAttention::ForEachHead(const AttentionShape& shape, const cpu::Attention& attention,
                               void (*kernel)(const cpu::Attention&, int, float*)) {
  constexpr size_t kAlignment = 64 / sizeof(float);
  const size_t per_thread =
      (cpu::AttentionScratch(shape.context, shape.head_size) + kAlignment - 1) / kAlignment * kAlignment;
  if (scratch_.size() < threads_ * per_thread + kAlignment)
    scratch_.resize(threads_ * per_thread + kAlignment);
  const size_t beyond = reinterpret_cast<uintptr_t>(scratch_.data()) / sizeof(float) % kAlignment;
  float* const scratch = scratch_.data() + (kAlignment - beyond) % kAlignment;
  const int heads = shape.batch * shape.heads;
#pragma omp parallel for num_threads(threads_) schedule(static) if (threads_ > 1)
  for (int head = 0; head < heads; ++head) {
    kernel(attention, head, scratch + omp_get_thread_num() * per_thread);
  }
}

void CpuEmbedding::Forward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan table,
                           ConstSpan positions, Span y, Stream& stream) {
  CheckEmbedding(shape, table, positions, y);
  CheckTypes(type_, {y});
  stream.Run([=] {
    const int outside = cpu::EmbeddingForward(shape, indices, table.floats(), positions.floats(), y);
    return outside < 0 ? absl::OkStatus() : IndexOutside(shape, outside, indices[outside]);
  });
}

void CpuEmbedding::Backward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan dy, Span dtable,
                            Span dpositions, bool add, Stream& stream) {
  CheckEmbedding(shape, dtable, dpositions, dy);
  CheckTypes(type_, {dy});
  stream.Run([=] {
    if (!add) std::fill_n(dtable.floats(), dtable.count, 0.0f);
    const int outside = cpu::EmbeddingBackward(shape, indices, dy, dtable.floats(), dpositions.floats());
    return outside < 0 ? absl::OkStatus() : IndexOutside(shape, outside, indices[outside]);
  });
}

void CpuDropout::Apply(const DropoutShape& shape, const uint64_t* seeds, ConstSpan x, ConstSpan residual,
                       Span y, Stream& stream) {
  CheckDropout(shape, x, residual, y);
  CheckTypes(type_, {x, residual, y});
  RunOnCpu(stream, [=] { cpu::Dropout(shape, seeds, x, residual, y); });
}

void CpuLoss::SoftmaxCrossEntropy(int batch, int classes, ConstSpan logits, const int32_t* labels,
                                  Span dlogits, double* loss_sum, int64_t* correct, Stream& stream) {
  CheckLoss(batch, classes, logits, dlogits);
  CheckTypes(type_, {logits, dlogits});
  stream.Run([=] {
    const int outside = cpu::SoftmaxCrossEntropy(batch, classes, logits, labels, dlogits, loss_sum, correct);
    return outside < 0 ? absl::OkStatus() : LabelOutside(classes, outside, labels[outside]);
  });
}

void CpuBags::Forward(const BagShape& shape, const int32_t* at, ConstSpan values, Span y, Stream& stream) {
  CheckBags(shape, values, y);
  CheckTypes(type_, {y});
  stream.Run([=] {
    const int outside = cpu::BagsForward(shape, at, values.floats(), y);
    return outside < 0 ? absl::OkStatus() : RowOutside(shape.rows, outside, at[outside]);
  });
}

void CpuBags::Backward(int width, const RowGroups& groups, ConstSpan dy, Span gradient, Stream& stream) {
  CheckGroups(width, groups, dy, gradient);
  CheckTypes(type_, {dy});
  RunOnCpu(stream, [=] { cpu::BagsBackward(static_cast<size_t>(width), groups, dy, gradient.floats()); });
}

void CpuDots::Forward(const DotShape& shape, ConstSpan a, ConstSpan b, Span y, Stream& stream) {
  CheckDots(shape, a, b, y);
  CheckTypes(type_, {a, b, y});
  RunOnCpu(stream, [=] { cpu::DotsForward(shape, a, b, y); });
}

void CpuDots::Backward(const DotShape& shape, ConstSpan a, ConstSpan b, ConstSpan dy, Span da, Span db,
                       Stream& stream) {
  CheckDots(shape, a, b, dy);
  CheckDots(shape, da, db, dy);
  CheckTypes(type_, {a, b, dy, da, db});
  RunOnCpu(stream, [=] { cpu::DotsBackward(shape, a, b, dy, da, db); });
}

}  // namespace psring
