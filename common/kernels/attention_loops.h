// The kernels of attention_kernels.h, written with vectors of the compiler. Each file that includes this is
// compiled for one instruction set; everything here has internal linkage.
//
// A head's matrices are first copied to scratch memory, with rows and columns padded with zeros to multiples
// of kBlock. So all products have whole tiles, and one routine computes all of them. Keys that none of kBlock
// queries attends to are skipped.
#pragma once

#include <cstring>

#include "common/kernels/attention.h"
#include "common/kernels/elementwise_math.h"
#include "common/kernels/sixteen_bits.h"

namespace psring::cpu {
namespace {

using elementwise::BFloat16;

constexpr int kBlock = 16;     // queries that are processed together; all padding is to multiples of it
constexpr int kKeyBlock = 64;  // keys that are processed together

constexpr float kLowest = -3e38f;

constexpr int Padded(int n) { return (n + kBlock - 1) / kBlock * kBlock; }

// c [m][n] = or, if `add`, += a [m][k] b [k][n]. Element (i, l) of a is a[i * a_row + l * a_column]; m and n
// are multiples of kBlock. `lanes`: floats in a vector; `rows` x 2 vectors are kept in registers.
template <int lanes, int rows>
struct Product {
  typedef float Vector __attribute__((vector_size(lanes * sizeof(float)), aligned(sizeof(float)), may_alias));

  template <int vectors>
  static void Tile(int k, const float* a, ptrdiff_t a_row, ptrdiff_t a_column, const float* b,
                   ptrdiff_t b_row, float* c, ptrdiff_t c_row, bool add) {
    Vector sum[rows][vectors];
    for (int i = 0; i < rows; ++i) {
      for (int v = 0; v < vectors; ++v) {
        sum[i][v] = add ? *reinterpret_cast<const Vector*>(c + i * c_row + v * lanes) : Vector{};
      }
    }
    for (int l = 0; l < k; ++l) {
      Vector right[vectors];
      for (int v = 0; v < vectors; ++v)
        right[v] = *reinterpret_cast<const Vector*>(b + l * b_row + v * lanes);
      for (int i = 0; i < rows; ++i) {
        const float left = a[i * a_row + l * a_column];
        for (int v = 0; v < vectors; ++v) sum[i][v] += left * right[v];
      }
    }
    for (int i = 0; i < rows; ++i) {
      for (int v = 0; v < vectors; ++v) *reinterpret_cast<Vector*>(c + i * c_row + v * lanes) = sum[i][v];
    }
  }

  // Of `count` floats, a multiple of kBlock.
  static float Sum(const float* values, int count) {
    Vector sums = {};
    for (int j = 0; j < count; j += lanes) sums += *reinterpret_cast<const Vector*>(values + j);
    float parts[lanes], sum = 0;
    memcpy(parts, &sums, sizeof(parts));
    for (const float part : parts) sum += part;
    return sum;
  }
  static float Highest(const float* values, int count, float highest) {
    Vector best = *reinterpret_cast<const Vector*>(values);
    for (int j = lanes; j < count; j += lanes) {
      const Vector other = *reinterpret_cast<const Vector*>(values + j);
      best = other > best ? other : best;
    }
    float parts[lanes];
    memcpy(parts, &best, sizeof(parts));
    for (const float part : parts) highest = part > highest ? part : highest;
    return highest;
  }

  static void Run(int m, int n, int k, const float* a, ptrdiff_t a_row, ptrdiff_t a_column, const float* b,
                  ptrdiff_t b_row, float* c, ptrdiff_t c_row, bool add) {
    int j = 0;
    for (; j + 2 * lanes <= n; j += 2 * lanes) {
      for (int i = 0; i < m; i += rows) {
        Tile<2>(k, a + i * a_row, a_row, a_column, b + j, b_row, c + i * c_row + j, c_row, add);
      }
    }
    for (; j < n; j += lanes) {
      for (int i = 0; i < m; i += rows) {
        Tile<1>(k, a + i * a_row, a_row, a_column, b + j, b_row, c + i * c_row + j, c_row, add);
      }
    }
  }
};

// Copies a matrix [rows][columns] with `stride` to `to` [padded rows][padded columns], times `factor`.
template <typename T>
void CopyRows(int rows, int columns, const T* from, ptrdiff_t stride, float factor, float* to) {
  const int width = Padded(columns);
  for (int i = 0; i < rows; ++i, from += stride, to += width) {
    for (int d = 0; d < columns; ++d) to[d] = elementwise::Load(from[d]) * factor;
    for (int d = columns; d < width; ++d) to[d] = 0;
  }
  memset(to, 0, size_t(Padded(rows) - rows) * width * sizeof(float));
}

// Transposes: to [columns][padded rows]. kBlock rows at a time, which the cache can keep.
template <typename T>
void CopyColumns(int rows, int columns, const T* from, ptrdiff_t stride, float* to) {
  const int width = Padded(rows);
  for (int first = 0; first < width; first += kBlock, from += kBlock * stride, to += kBlock) {
    const int count = rows - first < kBlock ? rows - first : kBlock;
    for (int d = 0; d < columns; ++d) {
      for (int i = 0; i < count; ++i) to[d * width + i] = elementwise::Load(from[i * stride + d]);
      for (int i = count; i < kBlock; ++i) to[d * width + i] = 0;
    }
  }
}

template <typename T>
float Dot(int count, const float* left, const T* right) {
  float sums[kBlock] = {}, sum = 0;
  int d = 0;
  for (; d + kBlock <= count; d += kBlock) {
    for (int i = 0; i < kBlock; ++i) sums[i] += left[d + i] * elementwise::Load(right[d + i]);
  }
  for (; d < count; ++d) sum += left[d] * elementwise::Load(right[d]);
  for (const float part : sums) sum += part;
  return sum;
}

// to = to * kept + from * factor; `kept` 0: to is not read.
template <typename T>
void StoreRows(int rows, int columns, const float* from, float factor, T* to, ptrdiff_t stride,
               float kept = 0) {
  for (int i = 0; i < rows; ++i, from += Padded(columns), to += stride) {
    if (kept == 0) {
      for (int d = 0; d < columns; ++d) to[d] = elementwise::Store<T>(from[d] * factor);
    } else {
      for (int d = 0; d < columns; ++d) {
        to[d] = elementwise::Store<T>(elementwise::Load(to[d]) * kept + from[d] * factor);
      }
    }
  }
}

// The first row of a head.
template <typename T>
T* HeadOf(const Attention& a, const AttentionRows& rows, int pair) {
  return static_cast<T*>(rows.data) + pair / a.heads * rows.sample + ptrdiff_t{pair % a.heads} * a.head_size;
}

int AtMost(int value, int most) { return value < most ? value : most; }

// The number of keys that query `i` attends to among `count` keys from `first` on.
int Visible(const Attention& a, int i, int first, int count) {
  const int visible = AtMost(AtMost(i + a.offset + 1, a.keys) - first, count);
  return visible > 0 ? visible : 0;
}

// The keys, with padding, of which one of the kBlock queries from `first` on attends to some.
int KeysEnd(const Attention& a, int first) {
  const int end = AtMost(first + kBlock + a.offset, a.keys);
  return end > 0 ? Padded(end) : 0;
}

template <typename Multiply, typename T>
void ForwardHead(const Attention& a, int pair, float* scratch) {
  const int size = a.head_size, width = Padded(size), padded = Padded(a.queries), columns = Padded(a.keys);
  float* const queries = scratch;                        // [padded][width], scaled
  float* const keys = queries + size_t(padded) * width;  // [size][columns]
  float* const values = keys + size_t(columns) * width;  // [columns][width]
  CopyRows(a.queries, size, HeadOf<const T>(a, a.q, pair), a.q.row, 1.0f / __builtin_sqrtf(float(size)),
           queries);
  CopyColumns(a.keys, size, HeadOf<const T>(a, a.k, pair), a.k.row, keys);
  CopyRows(a.keys, size, HeadOf<const T>(a, a.v, pair), a.v.row, 1.0f, values);
  float* const output = values + size_t(columns) * width;  // [kBlock][width]
  float* const scores = output + size_t(kBlock) * width;   // [kBlock][kKeyBlock]
  T* const y = HeadOf<T>(a, a.y, pair);
  for (int first = 0; first < padded; first += kBlock) {
    float highest[kBlock], sum[kBlock];
    for (int i = 0; i < kBlock; ++i) highest[i] = kLowest, sum[i] = 0;
    const int end = KeysEnd(a, first);
    if (end == 0) memset(output, 0, size_t(kBlock) * width * sizeof(float));
    for (int key = 0; key < end; key += kKeyBlock) {
      const int count = AtMost(end - key, kKeyBlock);
      Multiply::Run(kBlock, count, size, queries + size_t(first) * width, width, 1, keys + key, columns,
                    scores, kKeyBlock, false);
      for (int i = 0; i < kBlock; ++i) {
        float* const row = scores + i * kKeyBlock;
        const int visible = Visible(a, first + i, key, count);
        for (int j = visible; j < count; ++j) row[j] = kLowest;
        const float most = Multiply::Highest(row, count, highest[i]);
        for (int j = 0; j < count; ++j) row[j] = elementwise::Exp(row[j] - most);
        for (int j = visible; j < count; ++j) row[j] = 0;
        const float total = Multiply::Sum(row, count);
        const float kept = key == 0 ? 0 : elementwise::Exp(highest[i] - most);
        for (int d = 0; key > 0 && d < width; ++d) output[i * width + d] *= kept;
        sum[i] = sum[i] * kept + total;
        highest[i] = most;
      }
      Multiply::Run(kBlock, width, count, scores, kKeyBlock, 1, values + size_t(key) * width, width, output,
                    width, key > 0);
    }
    const int rows = AtMost(a.queries - first, kBlock);
    for (int i = 0; i < rows; ++i) {
      float& log_sum = a.log_sum_exp[pair * a.log_sum_rows + first + i];
      float own = kLowest, share = 0, kept = 0;  // of a query without keys
      if (sum[i] != 0) own = highest[i] + __builtin_logf(sum[i]), share = 1.0f / sum[i];
      if (a.merges) {  // each mean counts by the sum of its exponentials
        const float before = log_sum, most = before > own ? before : own;
        const float both =
            most + __builtin_logf(elementwise::Exp(before - most) + elementwise::Exp(own - most));
        kept = elementwise::Exp(before - both);
        share *= elementwise::Exp(own - both);
        own = both;
      }
      log_sum = own;
      StoreRows(1, size, output + i * width, share, y + (first + i) * a.y.row, 0, kept);
    }
  }
}

// With p the weights, s the scores: dv = p^T dy, dp = dy v^T, ds = p (dp - rows of (dy . y)), dq = ds k,
// dk = ds^T q (Dao et al. 2022, appendix B). With y and log_sum_exp of all keys, the gradients of blocks of
// keys add up.
template <typename Multiply, typename T>
void BackwardHead(const Attention& a, int pair, float* scratch) {
  const int size = a.head_size, width = Padded(size), padded = Padded(a.queries), columns = Padded(a.keys);
  const size_t of_queries = size_t(padded) * width, of_keys = size_t(columns) * width;
  const float scale = 1.0f / __builtin_sqrtf(float(size));
  float* const queries = scratch;             // [padded][width], scaled
  float* const keys = queries + of_queries;   // [columns][width]
  float* const key_columns = keys + of_keys;  // [size][columns]
  float* const value_columns = key_columns + of_keys;
  float* const dy = value_columns + of_keys;  // [padded][width], as dq
  float* const dq = dy + of_queries;
  float* const dk = dq + of_queries;  // [columns][width], as dv
  float* const dv = dk + of_keys;
  float* const weights = dv + of_keys;             // [kBlock][kKeyBlock]
  float* const ds = weights + kBlock * kKeyBlock;  // [kBlock][kKeyBlock]
  const T* const y = HeadOf<const T>(a, a.y, pair);
  const T* const k = HeadOf<const T>(a, a.k, pair);
  CopyRows(a.queries, size, HeadOf<const T>(a, a.q, pair), a.q.row, scale, queries);
  CopyRows(a.keys, size, k, a.k.row, 1.0f, keys);
  CopyColumns(a.keys, size, k, a.k.row, key_columns);
  CopyColumns(a.keys, size, HeadOf<const T>(a, a.v, pair), a.v.row, value_columns);
  CopyRows(a.queries, size, HeadOf<const T>(a, a.dy, pair), a.dy.row, 1.0f, dy);
  memset(dk, 0, 2 * of_keys * sizeof(float));
  for (int first = 0; first < padded; first += kBlock) {
    float log_sum_exp[kBlock] = {}, dots[kBlock] = {};  // 0 for rows of the padding, whose gradients are 0
    const int rows = AtMost(a.queries - first, kBlock), end = KeysEnd(a, first);
    const size_t query = size_t(first) * width;
    for (int i = 0; i < rows; ++i) {
      log_sum_exp[i] = a.log_sum_exp[pair * a.log_sum_rows + first + i];
      dots[i] = Dot(size, dy + query + size_t(i) * width, y + (first + i) * a.y.row);
    }
    if (end == 0) memset(dq + query, 0, size_t(kBlock) * width * sizeof(float));
    for (int key = 0; key < end; key += kKeyBlock) {
      const int count = AtMost(end - key, kKeyBlock);
      Multiply::Run(kBlock, count, size, queries + query, width, 1, key_columns + key, columns, weights,
                    kKeyBlock, false);
      Multiply::Run(kBlock, count, size, dy + query, width, 1, value_columns + key, columns, ds, kKeyBlock,
                    false);
      for (int i = 0; i < kBlock; ++i) {
        float* const p = weights + i * kKeyBlock;
        float* const d = ds + i * kKeyBlock;
        const int visible = Visible(a, first + i, key, count);
        for (int j = 0; j < count; ++j) {
          p[j] = elementwise::Exp(p[j] - log_sum_exp[i]);
          d[j] = p[j] * (d[j] - dots[i]);
        }
        for (int j = visible; j < count; ++j) p[j] = d[j] = 0;
      }
      const size_t at = size_t(key) * width;
      Multiply::Run(count, width, kBlock, weights, 1, kKeyBlock, dy + query, width, dv + at, width, true);
      Multiply::Run(count, width, kBlock, ds, 1, kKeyBlock, queries + query, width, dk + at, width, true);
      Multiply::Run(kBlock, width, count, ds, kKeyBlock, 1, keys + at, width, dq + query, width, key > 0);
    }
  }
  StoreRows(a.queries, size, dq, scale, HeadOf<T>(a, a.dq, pair), a.dq.row, a.merges ? 1.0f : 0.0f);
  StoreRows(a.keys, size, dk, 1.0f, HeadOf<T>(a, a.dk, pair), a.dk.row);
  StoreRows(a.keys, size, dv, 1.0f, HeadOf<T>(a, a.dv, pair), a.dv.row);
}

template <typename Multiply>
void Forward(const Attention& a, int pair, float* scratch) {
  if (a.is_bfloat16) return ForwardHead<Multiply, BFloat16>(a, pair, scratch);
  ForwardHead<Multiply, float>(a, pair, scratch);
}
template <typename Multiply>
void Backward(const Attention& a, int pair, float* scratch) {
  if (a.is_bfloat16) return BackwardHead<Multiply, BFloat16>(a, pair, scratch);
  BackwardHead<Multiply, float>(a, pair, scratch);
}

}  // namespace
}  // namespace psring::cpu
