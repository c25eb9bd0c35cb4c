// Layer norm, attention, embeddings and dropout on CPUs. Loops make one pass over memory: a row that is read
// again is in the first-level cache. Sums over a row are added in 16 lanes and then lane by lane.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/kernels/attention.h"
#include "common/kernels/lanes.h"
#include "common/kernels/threefry.h"
#include "common/ops/cpu_layers.h"

namespace psring {
namespace {

using cpu::kLanes;
using cpu::LoadVector;
using cpu::StoreVector;
using cpu::SumOfLanes;
using cpu::Vector;
using elementwise::BitsAs;
using elementwise::Load;
using elementwise::Store;

template <typename T>
PSRING_INLINE void Normalize(const LayerNormShape& s, const T* __restrict x, const float* __restrict weight,
                             const float* __restrict bias, T* __restrict y, float* __restrict statistics) {
  const size_t width = s.width, rows = s.rows, whole = width / kLanes * kLanes;
  for (size_t row = 0; row < rows; ++row, x += width, y += width) {
    Vector sums = {};
    for (size_t c = 0; c < whole; c += kLanes) sums += LoadVector(x + c);
    float sum = SumOfLanes(sums);
    for (size_t c = whole; c < width; ++c) sum += Load(x[c]);
    const float mean = sum / static_cast<float>(width);
    Vector squares = {};
    for (size_t c = 0; c < whole; c += kLanes) {
      const Vector distance = LoadVector(x + c) - mean;
      squares += distance * distance;
    }
    float square = SumOfLanes(squares);
    for (size_t c = whole; c < width; ++c) square += (Load(x[c]) - mean) * (Load(x[c]) - mean);
    const float inverse = 1.0f / std::sqrt(square / static_cast<float>(width) + s.epsilon);
    for (size_t c = 0; c < width; ++c) y[c] = Store<T>((Load(x[c]) - mean) * inverse * weight[c] + bias[c]);
    statistics[row] = mean;
    statistics[rows + row] = inverse;
  }
}

// dx = (g - mean(g) - n mean(g n)) / deviation with g = dy weight and n the normalized x.
template <typename T>
PSRING_INLINE void NormalizeGradient(const LayerNormShape& s, const T* __restrict x,
                                     const float* __restrict weight, const float* __restrict statistics,
                                     const T* __restrict dy, T* __restrict dx, bool add,
                                     float* __restrict dweight, float* __restrict dbias) {
  const size_t width = s.width, rows = s.rows, whole = width / kLanes * kLanes;
  for (size_t row = 0; row < rows; ++row, x += width, dy += width, dx += width) {
    const float mean = statistics[row], inverse = statistics[rows + row];
    Vector sums = {}, products = {};
    for (size_t c = 0; c < whole; c += kLanes) {
      const Vector d = LoadVector(dy + c), n = (LoadVector(x + c) - mean) * inverse;
      const Vector g = d * LoadVector(weight + c);
      sums += g;
      products += g * n;
      StoreVector(LoadVector(dweight + c) + d * n, dweight + c);
      StoreVector(LoadVector(dbias + c) + d, dbias + c);
    }
    float sum = SumOfLanes(sums), product = SumOfLanes(products);
    for (size_t c = whole; c < width; ++c) {
      const float d = Load(dy[c]), n = (Load(x[c]) - mean) * inverse, g = d * weight[c];
      sum += g;
      product += g * n;
      dweight[c] += d * n;
      dbias[c] += d;
    }
    const float g_mean = sum / static_cast<float>(width), gn_mean = product / static_cast<float>(width);
    for (size_t c = 0; c < width; ++c) {
      const float n = (Load(x[c]) - mean) * inverse, g = Load(dy[c]) * weight[c];
      const float before = add ? Load(dx[c]) : 0.0f;
      dx[c] = Store<T>(before + (g - g_mean - n * gn_mean) * inverse);
    }
  }
}

template <typename T>
PSRING_INLINE void LookUp(const EmbeddingShape& s, const int32_t* indices, const float* table,
                          const float* positions, T* __restrict y) {
  const size_t width = s.width;
  for (int i = 0; i < s.count; ++i, y += width) {
    const int at = indices[i] - s.first;
    const bool has_row = at >= 0 && at < s.rows;
    const float* __restrict row = table + (has_row ? size_t(at) * width : 0);
    const float* __restrict position = positions + (s.context > 0 ? size_t(i % s.context) * width : 0);
    if (has_row && s.context > 0) {
      for (size_t c = 0; c < width; ++c) y[c] = Store<T>(row[c] + position[c]);
    } else if (has_row || s.context > 0) {
      const float* const only = has_row ? row : position;
      for (size_t c = 0; c < width; ++c) y[c] = Store<T>(only[c]);
    } else {
      for (size_t c = 0; c < width; ++c) y[c] = Store<T>(0.0f);
    }
  }
}

template <typename T>
PSRING_INLINE void AddRows(const EmbeddingShape& s, const int32_t* indices, const T* __restrict dy,
                           float* __restrict dtable, float* __restrict dpositions) {
  const size_t width = s.width;
  for (int i = 0; i < s.count; ++i, dy += width) {
    const int at = indices[i] - s.first;
    const bool has_row = at >= 0 && at < s.rows, has_position = dpositions != nullptr && s.context > 0;
    float* __restrict row = dtable + (has_row ? size_t(at) * width : 0);
    float* __restrict position = dpositions + (has_position ? size_t(i % s.context) * width : 0);
    if (has_row && has_position) {
      for (size_t c = 0; c < width; ++c) {
        row[c] += Load(dy[c]);
        position[c] += Load(dy[c]);
      }
    } else if (has_row || has_position) {
      float* const only = has_row ? row : position;
      for (size_t c = 0; c < width; ++c) only[c] += Load(dy[c]);
    }
  }
}

// y[i] = x[i] scale + residual[i], or only the residual; without a branch.
template <bool kAdds, typename T>
PSRING_INLINE void Put(bool keeps, float scale, const T* x, const T* residual, T* y, size_t i) {
  float value = BitsAs<float>(BitsAs<uint32_t>(Load(x[i]) * scale) & (0u - static_cast<uint32_t>(keeps)));
  if constexpr (kAdds) value += Load(residual[i]);
  y[i] = Store<T>(value);
}

// The elements of one sample from `first` on.
template <bool kAdds, typename T>
PSRING_INLINE void Drop(size_t first, size_t count, const DropoutMask& mask, const T* __restrict x,
                        const T* __restrict residual, T* __restrict y) {
  const ThreefryKey key = mask.key;
  const uint32_t threshold = mask.threshold;
  const float scale = mask.scale;
  constexpr size_t kLanes = DropoutMask::kLanes, kGroup = 4 * kLanes;
  const size_t before = std::min(count, (kGroup - first % kGroup) % kGroup);
  for (size_t i = 0; i < before; ++i) Put<kAdds>(mask.Keeps(first + i), scale, x, residual, y, i);
  const size_t whole = before + (count - before) / kGroup * kGroup;
  for (size_t group = before; group < whole; group += kGroup) {
    const uint32_t counter = static_cast<uint32_t>((first + group) / 4);
#pragma GCC ivdep
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const Words4 bits = Threefry({counter + lane, 0, 0, 0}, key);
      const size_t i = group + lane;
      Put<kAdds>(bits.w0 >= threshold, scale, x, residual, y, i);
      Put<kAdds>(bits.w1 >= threshold, scale, x, residual, y, i + kLanes);
      Put<kAdds>(bits.w2 >= threshold, scale, x, residual, y, i + 2 * kLanes);
      Put<kAdds>(bits.w3 >= threshold, scale, x, residual, y, i + 3 * kLanes);
    }
  }
  for (size_t i = whole; i < count; ++i) Put<kAdds>(mask.Keeps(first + i), scale, x, residual, y, i);
}

template <bool kAdds, typename T>
PSRING_INLINE void DropAll(const DropoutShape& shape, const uint64_t* seeds, const T* x, const T* residual,
                           T* y) {
  const size_t count = shape.elements;
  if (seeds == nullptr) {
    const size_t all = static_cast<size_t>(shape.batch) * count;
#pragma GCC ivdep
    for (size_t i = 0; i < all; ++i) Put<kAdds>(true, 1, x, residual, y, i);
    return;
  }
  for (size_t sample = 0; sample < static_cast<size_t>(shape.batch); ++sample) {
    const size_t at = sample * count;
    Drop<kAdds>(shape.first, count, DropoutMask(shape, seeds[sample]), x + at,
                kAdds ? residual + at : residual, y + at);
  }
}

PSRING_MULTIVERSION void NormForward(const LayerNormShape& shape, ConstSpan x, const float* weight,
                                     const float* bias, Span y, float* statistics) {
  WithActivations(x.type, [&]<typename T>(T) PSRING_INLINED {
    Normalize(shape, Elements<T>(x), weight, bias, Elements<T>(y), statistics);
  });
}

PSRING_MULTIVERSION void NormBackward(const LayerNormShape& shape, ConstSpan x, const float* weight,
                                      const float* statistics, ConstSpan dy, Span dx, bool add,
                                      float* dweight, float* dbias) {
  std::fill_n(dweight, shape.width, 0.0f);
  std::fill_n(dbias, shape.width, 0.0f);
  WithActivations(x.type, [&]<typename T>(T) PSRING_INLINED {
    NormalizeGradient(shape, Elements<T>(x), weight, statistics, Elements<T>(dy), Elements<T>(dx), add,
                      dweight, dbias);
  });
}

PSRING_MULTIVERSION void EmbedForward(const EmbeddingShape& shape, const int32_t* indices, const float* table,
                                      const float* positions, Span y) {
  WithActivations(y.type, [&]<typename T>(T)
                              PSRING_INLINED { LookUp(shape, indices, table, positions, Elements<T>(y)); });
}

PSRING_MULTIVERSION void EmbedBackward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan dy,
                                       float* dtable, float* dpositions) {
  if (dpositions != nullptr) std::fill_n(dpositions, size_t(shape.context) * shape.width, 0.0f);
  WithActivations(dy.type, [&]<typename T>(T) PSRING_INLINED {
    AddRows(shape, indices, Elements<T>(dy), dtable, dpositions);
  });
}

PSRING_MULTIVERSION void DropElements(const DropoutShape& shape, const uint64_t* seeds, ConstSpan x,
                                      ConstSpan residual, Span y) {
  WithActivations(x.type, [&]<typename T>(T) PSRING_INLINED {
    const T* const added = Elements<T>(residual);
    if (added != nullptr) return DropAll<true>(shape, seeds, Elements<T>(x), added, Elements<T>(y));
    DropAll<false>(shape, seeds, Elements<T>(x), added, Elements<T>(y));
  });
}

void CheckLayerNorm(const LayerNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, ConstSpan y,
                    ConstSpan statistics) {
  const size_t rows = shape.rows, width = shape.width;
  PSRING_CHECK(x.count == rows * width && y.count == x.count);
  PSRING_CHECK(weight.count == width && bias.count == width);
  PSRING_CHECK(statistics.count == 2 * rows);
}

void CheckAttention(const AttentionShape& shape, ConstSpan qkv, ConstSpan y, ConstSpan log_sum_exp) {
  const size_t rows = size_t(shape.batch) * shape.context;
  PSRING_CHECK(y.count == rows * shape.width() && qkv.count == 3 * y.count);
  PSRING_CHECK(log_sum_exp.count == rows * shape.heads);
}

void CheckBlock(const AttentionBlock& block, ConstSpan qkv, ConstSpan kv, ConstSpan y,
                ConstSpan log_sum_exp) {
  const auto fits = [](const AttentionBlock::Part& part) {
    return part.first >= 0 && part.count >= 0 && part.count <= part.rows - part.first;
  };
  PSRING_CHECK(fits(block.queries) && fits(block.keys));
  CheckAttention({block.batch, block.queries.rows, block.heads, block.head_size}, qkv, y, log_sum_exp);
  PSRING_CHECK(kv.count == size_t{2} * block.batch * block.keys.rows * block.width());
}

void CheckEmbedding(const EmbeddingShape& shape, ConstSpan table, ConstSpan positions, ConstSpan y) {
  const size_t width = shape.width;
  PSRING_CHECK(table.count == shape.rows * width);
  PSRING_CHECK(positions.count == shape.context * width);
  PSRING_CHECK(y.count == shape.count * width);
}

class CpuNormalization : public CpuFamily<NormalizationOps> {
 public:
  using CpuFamily::CpuFamily;

  void LayerNormForward(const LayerNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan bias, Span y,
                        Span statistics, Stream& stream) override {
    CheckLayerNorm(shape, x, weight, bias, y, statistics);
    CheckActivations({x, y});
    RunOnCpu(stream, [=] { NormForward(shape, x, weight.floats(), bias.floats(), y, statistics.floats()); });
  }
  void LayerNormBackward(const LayerNormShape& shape, ConstSpan x, ConstSpan weight, ConstSpan statistics,
                         ConstSpan dy, Span dx, bool add, Span dweight, Span dbias, Stream& stream) override {
    CheckLayerNorm(shape, x, weight, dbias, dy, statistics);
    PSRING_CHECK(dx.count == x.count && dweight.count == weight.count);
    CheckActivations({x, dy, dx});
    RunOnCpu(stream, [=] {
      NormBackward(shape, x, weight.floats(), statistics.floats(), dy, dx, add, dweight.floats(),
                   dbias.floats());
    });
  }
};

class CpuAttention : public CpuFamily<AttentionOps> {
 public:
  CpuAttention(DType activations, int threads)
      : CpuFamily(activations), threads_(threads), kernels_(BestKernels()) {}

  void Forward(const AttentionShape& shape, ConstSpan qkv, Span y, Span log_sum_exp,
               Stream& stream) override {
    CheckAttention(shape, qkv, y, log_sum_exp);
    CheckActivations({qkv, y});
    Run(kernels_.forward, Square(shape), {qkv, qkv, y, log_sum_exp}, {}, stream);
  }
  void Backward(const AttentionShape& shape, ConstSpan qkv, ConstSpan y, ConstSpan log_sum_exp, ConstSpan dy,
                Span dqkv, Stream& stream) override {
    CheckAttention(shape, qkv, y, log_sum_exp);
    CheckAttention(shape, dqkv, dy, log_sum_exp);
    CheckActivations({qkv, y, dy, dqkv});
    Run(kernels_.backward, Square(shape), {qkv, qkv, y, log_sum_exp}, {dqkv, dqkv, dy}, stream);
  }
  void ForwardBlock(const AttentionBlock& block, ConstSpan qkv, ConstSpan kv, Span y, Span log_sum_exp,
                    Stream& stream) override {
    CheckBlock(block, qkv, kv, y, log_sum_exp);
    CheckActivations({qkv, kv, y});
    Run(kernels_.forward, block, {qkv, kv, y, log_sum_exp}, {}, stream);
  }
  void BackwardBlock(const AttentionBlock& block, ConstSpan qkv, ConstSpan kv, ConstSpan y,
                     ConstSpan log_sum_exp, ConstSpan dy, Span dqkv, Span dkv, Stream& stream) override {
    CheckBlock(block, qkv, kv, y, log_sum_exp);
    CheckBlock(block, dqkv, dkv, dy, log_sum_exp);
    CheckActivations({qkv, kv, y, dy, dqkv, dkv});
    Run(kernels_.backward, block, {qkv, kv, y, log_sum_exp}, {dqkv, dkv, dy}, stream);
  }

 private:
  // Of an attention, or of its gradient. `kv` is `qkv` if queries, keys and values are in one span.
  struct Operands {
    ConstSpan qkv, kv, y, log_sum_exp;
  };

  static const cpu::AttentionKernels& BestKernels() {
    const cpu::AttentionKernels* kernels[3];
    return *kernels[cpu::SupportedAttentionKernels(kernels) - 1];
  }
  static AttentionBlock Square(const AttentionShape& s) {
    const AttentionBlock::Part all = {s.context, 0, s.context};
    return {.batch = s.batch,
            .heads = s.heads,
            .head_size = s.head_size,
            .queries = all,
            .keys = all,
            .offset = 0};
  }
  // Of a span [batch][part.rows][matrices][width], the matrix `which`.
  static cpu::AttentionRows Rows(ConstSpan of, const AttentionBlock::Part& part, int width, int matrices,
                                 int which) {
    const ptrdiff_t row = ptrdiff_t{matrices} * width;
    if (of.data == nullptr) return {};
    const size_t first = size_t(part.first) * row + size_t(which) * width;
    return {.data = static_cast<std::byte*>(const_cast<void*>(of.data)) + first * SizeOf(of.type),
            .row = row,
            .sample = part.rows * row};
  }

  // `gradients`: of a backward kernel, which only reads y and log_sum_exp.
  void Run(void (*kernel)(const cpu::Attention&, int, float*), const AttentionBlock& block,
           const Operands& of, const Operands& gradients, Stream& stream) {
    const bool is_square = of.kv.data == of.qkv.data;
    const int width = block.width(), matrices = is_square ? 3 : 2;
    const cpu::Attention attention{
        .heads = block.heads,
        .head_size = block.head_size,
        .is_bfloat16 = type() == DType::kBFloat16,
        .queries = block.queries.count,
        .keys = block.keys.count,
        .offset = block.offset,
        .merges = !is_square,
        .q = Rows(of.qkv, block.queries, width, 3, 0),
        .k = Rows(of.kv, block.keys, width, matrices, matrices - 2),
        .v = Rows(of.kv, block.keys, width, matrices, matrices - 1),
        .y = Rows(of.y, block.queries, width, 1, 0),
        .log_sum_exp = const_cast<float*>(of.log_sum_exp.floats()) + block.queries.first,
        .log_sum_rows = block.queries.rows,
        .dy = Rows(gradients.y, block.queries, width, 1, 0),
        .dq = Rows(gradients.qkv, block.queries, width, 3, 0),
        .dk = Rows(gradients.kv, block.keys, width, matrices, matrices - 2),
        .dv = Rows(gradients.kv, block.keys, width, matrices, matrices - 1)};
    const int heads = block.batch * block.heads;
    RunOnCpu(stream, [=, this] {
      constexpr size_t kAlignment = 64 / sizeof(float);
      const size_t floats = cpu::AttentionScratch(attention.queries, attention.keys, attention.head_size);
      const size_t per_thread = (floats + kAlignment - 1) / kAlignment * kAlignment;
      if (scratch_.size() < threads_ * per_thread + kAlignment)
        scratch_.resize(threads_ * per_thread + kAlignment);
      const size_t beyond = reinterpret_cast<uintptr_t>(scratch_.data()) / sizeof(float) % kAlignment;
      float* const scratch = scratch_.data() + (kAlignment - beyond) % kAlignment;
#pragma omp parallel for num_threads(threads_) schedule(static) if (threads_ > 1)
      for (int head = 0; head < heads; ++head) {
        kernel(attention, head, scratch + omp_get_thread_num() * per_thread);
      }
    });
  }

  const int threads_;
  const cpu::AttentionKernels& kernels_;
  std::vector<float> scratch_;  // grows to the largest need
};

class CpuEmbedding : public CpuFamily<EmbeddingOps> {
 public:
  using CpuFamily::CpuFamily;

  void Forward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan table, ConstSpan positions,
               Span y, Stream& stream) override {
    CheckEmbedding(shape, table, positions, y);
    CheckActivations({y});
    stream.Run([=] {
      PSRING_RETURN_IF_ERROR(CheckIndices(shape, indices));
      EmbedForward(shape, indices, table.floats(), positions.floats(), y);
      return absl::OkStatus();
    });
  }
  void Backward(const EmbeddingShape& shape, const int32_t* indices, ConstSpan dy, Span dtable,
                Span dpositions, bool add, Stream& stream) override {
    CheckEmbedding(shape, dtable, dpositions, dy);
    CheckActivations({dy});
    stream.Run([=] {
      if (!add) std::fill_n(dtable.floats(), dtable.count, 0.0f);
      PSRING_RETURN_IF_ERROR(CheckIndices(shape, indices));
      EmbedBackward(shape, indices, dy, dtable.floats(), dpositions.floats());
      return absl::OkStatus();
    });
  }

 private:
  static absl::Status CheckIndices(const EmbeddingShape& shape, const int32_t* indices) {
    const int rows = RowsOfAll(shape);
    for (int i = 0; i < shape.count; ++i) {
      if (indices[i] < 0 || indices[i] >= rows) return IndexOutside(shape, i, indices[i]);
    }
    return absl::OkStatus();
  }
};

class CpuDropout : public CpuFamily<DropoutOps> {
 public:
  using CpuFamily::CpuFamily;

  void Apply(const DropoutShape& shape, const uint64_t* seeds, ConstSpan x, ConstSpan residual, Span y,
             Stream& stream) override {
    PSRING_CHECK(shape.probability >= 0 && shape.probability < 1);
    PSRING_CHECK(shape.first + shape.elements < size_t{1} << 34);
    PSRING_CHECK(x.count == size_t(shape.batch) * shape.elements && y.count == x.count);
    PSRING_CHECK(residual.data == nullptr || residual.count == x.count);
    CheckActivations({x, residual, y});
    RunOnCpu(stream, [=] { DropElements(shape, seeds, x, residual, y); });
  }
};

}  // namespace

std::unique_ptr<NormalizationOps> MakeCpuNormalization(DType activations) {
  return std::make_unique<CpuNormalization>(activations);
}
std::unique_ptr<AttentionOps> MakeCpuAttention(DType activations, int threads) {
  return std::make_unique<CpuAttention>(activations, threads);
}
std::unique_ptr<EmbeddingOps> MakeCpuEmbedding(DType activations) {
  return std::make_unique<CpuEmbedding>(activations);
}
std::unique_ptr<DropoutOps> MakeCpuDropout(DType activations) {
  return std::make_unique<CpuDropout>(activations);
}

}  // namespace psring
