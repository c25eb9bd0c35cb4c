#include "common/reduce.h"

#include "absl/strings/str_cat.h"
#include "common/cpu_kernels.h"

namespace psring {

const char* Name(ReduceOp op) { return op == ReduceOp::kSum ? "sum" : op == ReduceOp::kMean ? "mean" : op == ReduceOp::kMin ? "min" : "max"; }
const char* Name(DType type) { return type == DType::kFloat32 ? "float32" : type == DType::kBFloat16 ? "bfloat16" : "float16"; }

}  // namespace psring
