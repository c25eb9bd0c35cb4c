// Elementwise reductions for collectives. The loops are compiled for several instruction sets, and the best
// one is chosen when the program starts; the bits are the same on every processor, whatever the range and
// alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/kernels/dtype.h"

namespace psring {

const char* Name(ReduceOp op);  // "sum", "mean", "min", "max"
const char* Name(DType type);   // "float32", "bfloat16", "float16"
// InvalidArgument lists the valid names. nccl-tests' names are accepted too: "avg", "float", "half".
absl::StatusOr<ReduceOp> ParseReduceOp(const std::string& name);
absl::StatusOr<DType> ParseDType(const std::string& name);

namespace cpu {

// to[i] = sources[0][i] op sources[1][i] op ..., from left to right, for i below `count`. 16-bit types are
// computed in float32 and rounded once, to nearest even, at the end. A source may be `to` itself; otherwise
// memory must not overlap. At least one source; with one it is a copy. Two to four float32 sources take one
// pass over memory. kMean adds like kSum: see Scale. A NaN among the values of an element makes its result
// NaN, with unspecified payload.
void Reduce(ReduceOp op, DType type, size_t count, void* to, const void* const* sources, int source_count);

// data[i] *= factor, in float32.
void Scale(DType type, size_t count, void* data, float factor);

// Converts values between any two types, for checks and for wire formats; rounds to nearest even. The memory
// must not overlap, unless types and pointers are equal.
void Convert(DType from_type, const void* from, DType to_type, void* to, size_t count);

}  // namespace cpu
}  // namespace psring
