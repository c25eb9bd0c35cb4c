#include "common/kernels/reduce.h"

#include <cstring>
#include <type_traits>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/kernels/reduce_vectors.h"
#include "common/kernels/sixteen_bits.h"
#include "common/text/translate.h"

// PSRING_MULTIVERSION comes from CMake: the attribute that makes the compiler emit a function once for each
// instruction set, or nothing if it cannot.

namespace psring {
namespace {

// psring prints the first name.
template <typename T>
struct NameRow {
  const char* name;
  T value;
};
constexpr NameRow<ReduceOp> kOpNames[] = {{"sum", ReduceOp::kSum},
                                          {"mean", ReduceOp::kMean},
                                          {"min", ReduceOp::kMin},
                                          {"max", ReduceOp::kMax},
                                          {"avg", ReduceOp::kMean}};
constexpr NameRow<DType> kTypeNames[] = {{"float32", DType::kFloat32},
                                         {"bfloat16", DType::kBFloat16},
                                         {"float16", DType::kFloat16},
                                         {"float", DType::kFloat32},
                                         {"half", DType::kFloat16}};

template <typename T, size_t n>
const char* NameOf(const NameRow<T> (&rows)[n], T value) {
  for (const NameRow<T>& row : rows) {
    if (row.value == value) return row.name;
  }
  return "?";
}

template <typename T, size_t n>
absl::StatusOr<T> Parse(const NameRow<T> (&rows)[n], const char* what, const std::string& name) {
  std::vector<std::string> names;
  for (const NameRow<T>& row : rows) {
    if (name == row.name) return row.value;
    names.push_back(row.name);
  }
  return absl::InvalidArgumentError(
      Tr("unknown $0 '$1'; use one of $2", what, name, absl::StrJoin(names, ", ")));
}

}  // namespace

const char* Name(ReduceOp op) { return NameOf(kOpNames, op); }
const char* Name(DType type) { return NameOf(kTypeNames, type); }
absl::StatusOr<ReduceOp> ParseReduceOp(const std::string& name) { return Parse(kOpNames, "reduction", name); }
absl::StatusOr<DType> ParseDType(const std::string& name) { return Parse(kTypeNames, "type", name); }

namespace cpu {
namespace {

using elementwise::Load;
using elementwise::Store;

// to = first op rest[0] op ... op rest[n - 1], where `rest` counts elements from `begin` on and the others
// from 0. No iteration reads what another writes, although `to` may be one of the sources: hence ivdep.
template <typename Op, typename T, int n, typename First, typename To>
PSRING_INLINE void Pass(size_t begin, size_t count, To* to, const First* first, const void* const* rest) {
  const T* const a = n > 0 ? static_cast<const T*>(rest[0]) + begin : nullptr;
  const T* const b = n > 1 ? static_cast<const T*>(rest[1]) + begin : nullptr;
  const T* const c = n > 2 ? static_cast<const T*>(rest[2]) + begin : nullptr;
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    float value = Load(first[i]);
    if constexpr (n > 0) value = Op()(value, Load(a[i]));
    if constexpr (n > 1) value = Op()(value, Load(b[i]));
    if constexpr (n > 2) value = Op()(value, Load(c[i]));
    to[i] = Store<To>(value);
  }
}

template <typename Op>
PSRING_INLINE void PassOfOneToThree(int n, size_t begin, size_t count, float* to, const float* first,
                                    const void* const* rest) {
  if (n == 1) return Pass<Op, float, 1>(begin, count, to, first, rest);
  if (n == 2) return Pass<Op, float, 2>(begin, count, to, first, rest);
  return Pass<Op, float, 3>(begin, count, to, first, rest);
}

// Elements of a block: its partial results, 8 KiB, stay in the first-level cache.
constexpr size_t kBlock = 2048;

// Two to four sources in one pass over memory; more in several passes over each block, of which only the last
// writes to `to`, since `to` may be any of the sources.
template <typename Op>
PSRING_INLINE void ReduceSources(size_t count, float* to, const void* const* sources, int source_count) {
  const float* const first = static_cast<const float*>(sources[0]);
  if (source_count <= 4) return PassOfOneToThree<Op>(source_count - 1, 0, count, to, first, sources + 1);
  float partial[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t length = count - begin < kBlock ? count - begin : kBlock;
    Pass<Op, float, 3>(begin, length, partial, first + begin, sources + 1);
    int done = 4;
    for (; source_count - done > 3; done += 3)
      Pass<Op, float, 3>(begin, length, partial, partial, sources + done);
    PassOfOneToThree<Op>(source_count - done, begin, length, to + begin, partial, sources + done);
  }
}

// For elements [begin, end) of 16-bit types: one source per pass, to keep the number of loops small.
template <typename Op, typename T>
void ReduceBySource(size_t begin, size_t end, T* to, const void* const* sources, int source_count) {
  float partial[kBlock];
  for (; begin < end; begin += kBlock) {
    const size_t length = end - begin < kBlock ? end - begin : kBlock;
    Pass<Op, T, 0>(begin, length, partial, static_cast<const T*>(sources[0]) + begin, sources);
    for (int i = 1; i < source_count; ++i) Pass<Op, T, 1>(begin, length, partial, partial, sources + i);
    Pass<Op, T, 0>(begin, length, to + begin, partial, sources);
  }
}

// Null: this processor has none.
const VectorKernels::OneType* VectorsOf(DType type) {
  static const VectorKernels* const vectors = BestVectorKernels();
  if (vectors == nullptr) return nullptr;
  return type == DType::kBFloat16 ? &vectors->bfloat16 : &vectors->float16;
}

// Uses vector registers for whole runs if the processor can, portable loops for the rest.
template <typename T>
void Reduce16Bit(ReduceOp op, const VectorKernels::OneType* vectors, size_t count, void* to,
                 const void* const* sources, int n) {
  const size_t whole = vectors == nullptr ? 0 : count - count % kRun;
  if (whole > 0) {
    const auto reduce = op == ReduceOp::kMin   ? vectors->min
                        : op == ReduceOp::kMax ? vectors->max
                                               : vectors->sum;
    reduce(whole, to, sources, n);
  }
  T* const target = static_cast<T*>(to);
  WithOp(op, [&]<typename Op>(Op) { ReduceBySource<Op>(whole, count, target, sources, n); });
}

template <typename T>
void Scale16Bit(const VectorKernels::OneType* vectors, size_t count, void* data, float factor) {
  const size_t whole = vectors == nullptr ? 0 : count - count % kRun;
  if (whole > 0) vectors->scale(whole, data, factor);
  T* const values = static_cast<T*>(data);
  for (size_t i = whole; i < count; ++i) values[i] = Store<T>(Load(values[i]) * factor);
}

template <typename From, typename To>
PSRING_INLINE void ConvertAny(size_t count, const void* from, void* to) {
  const From* const source = static_cast<const From*>(from);
  To* const target = static_cast<To*>(to);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) target[i] = Store<To>(Load(source[i]));
}

}  // namespace

PSRING_MULTIVERSION void ReduceFloat32(ReduceOp op, size_t count, float* to, const void* const* sources,
                                       int n) {
  WithOp(op, [&]<typename Op>(Op) PSRING_INLINED { ReduceSources<Op>(count, to, sources, n); });
}

PSRING_MULTIVERSION void ScaleFloat32(size_t count, float* data, float factor) {
  for (size_t i = 0; i < count; ++i) data[i] *= factor;
}

PSRING_MULTIVERSION void ConvertDifferent(DType from_type, const void* from, DType to_type, void* to,
                                          size_t count) {
  WithType(from_type, [&]<typename From>(From) PSRING_INLINED {
    WithType(to_type, [&]<typename To>(To) PSRING_INLINED {
      if constexpr (!std::is_same_v<From, To>) ConvertAny<From, To>(count, from, to);
    });
  });
}

void Reduce(ReduceOp op, DType type, size_t count, void* to, const void* const* sources, int source_count) {
  PSRING_CHECK(source_count >= 1);
  if (count == 0) return;
  if (source_count == 1) {
    if (to != sources[0]) std::memcpy(to, sources[0], count * SizeOf(type));
    return;
  }
  if (type == DType::kFloat32) {
    return ReduceFloat32(op, count, static_cast<float*>(to), sources, source_count);
  }
  WithHalf(type,
           [&]<typename T>(T) { Reduce16Bit<T>(op, VectorsOf(type), count, to, sources, source_count); });
}

void Scale(DType type, size_t count, void* data, float factor) {
  if (type == DType::kFloat32) return ScaleFloat32(count, static_cast<float*>(data), factor);
  WithHalf(type, [&]<typename T>(T) { Scale16Bit<T>(VectorsOf(type), count, data, factor); });
}

void Convert(DType from_type, const void* from, DType to_type, void* to, size_t count) {
  if (from_type != to_type) return ConvertDifferent(from_type, from, to_type, to, count);
  if (count > 0 && from != to) std::memcpy(to, from, count * SizeOf(from_type));
}

}  // namespace cpu
}  // namespace psring
