// cuBLASLt on the fake CUDA runtime, as documented: it replaces cublas_lt.cc. Matrices are column-major; only
// documented combinations are accepted.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/cuda_ops/cublas_lt.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/common/cuda/gpu_in_loops.h"

namespace psring {
namespace {

constexpr uint64_t kAlgorithm = 4711;

struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t leading;
};
struct Product {
  cublasComputeType_t compute;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct Preference {
  size_t workspace = 0;
};

template <typename Opaque, typename T>
cublasStatus_t Give(Opaque* opaque, T* made) {
  *opaque = reinterpret_cast<Opaque>(made);
  return CUBLAS_STATUS_SUCCESS;
}
template <typename T, typename Opaque>
cublasStatus_t Delete(Opaque opaque) {
  delete reinterpret_cast<T*>(opaque);
  return CUBLAS_STATUS_SUCCESS;
}

const Layout& Of(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<const Layout*>(layout); }
Product& Of(cublasLtMatmulDesc_t product) { return *reinterpret_cast<Product*>(product); }

DType TypeOf(cudaDataType_t type) { return type == CUDA_R_32F ? DType::kFloat32 : DType::kBFloat16; }

bool IsSupported(const Product& p, const Layout& a, const Layout& b, const Layout& c) {
  const bool inputs_fit = a.type == b.type && (a.type == CUDA_R_32F || a.type == CUDA_R_16BF);
  const bool output_fits = c.type == a.type || (a.type == CUDA_R_16BF && c.type == CUDA_R_32F);
  const bool compute_fits =
      p.compute == CUBLAS_COMPUTE_32F || (p.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type == CUDA_R_32F);
  const bool has_bias = p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
  return inputs_fit && output_fits && compute_fits &&
         (has_bias ? p.bias != nullptr : p.epilogue == CUBLASLT_EPILOGUE_DEFAULT);
}

cublasStatus_t Create(cublasLtHandle_t* handle) { return Give(handle, new int); }
const char* GetStatusString(cublasStatus_t) { return "an error of the fake cuBLASLt"; }

cublasStatus_t MatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  return Give(product, new Product{compute});
}

template <typename T>
cublasStatus_t Put(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof(to)) return CUBLAS_STATUS_INVALID_VALUE;
  to = *static_cast<const T*>(from);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t MatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                                      const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Put(Of(product).a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Put(Of(product).b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Put(Of(product).epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Put(Of(product).bias, value, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t MatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                  uint64_t columns, int64_t leading) {
  if (leading < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  return Give(layout, new Layout{type, rows, columns, leading});
}

cublasStatus_t PreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return Give(preference, new Preference);
}
cublasStatus_t PreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                      cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                      size_t bytes) {
  uint32_t alignment = 0;
  if (attribute != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return Put(alignment, value, bytes);
  return Put(reinterpret_cast<Preference*>(preference)->workspace, value, bytes);
}

cublasStatus_t GetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                            cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                            cublasLtMatmulPreference_t, int most, cublasLtMatmulHeuristicResult_t* results,
                            int* found) {
  *found = 0;
  if (!IsSupported(Of(product), Of(a), Of(b), Of(c))) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (most < 1) return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {};
  results[0].algo.data[0] = kAlgorithm;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t Matmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
                      cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                      const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                      cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                      size_t workspace_bytes, cudaStream_t stream) {
  const Product p = Of(product);
  const Layout la = Of(a_layout), lb = Of(b_layout), lc = Of(c_layout);
  const bool a_turned = p.a == CUBLAS_OP_T, b_turned = p.b == CUBLAS_OP_T;
  const size_t m = a_turned ? la.columns : la.rows, k = a_turned ? la.rows : la.columns,
               n = b_turned ? lb.rows : lb.columns;
  if (!IsSupported(p, la, lb, lc) || c != d || c_layout != d_layout || algorithm->data[0] != kAlgorithm ||
      (b_turned ? lb.columns : lb.rows) != k || lc.rows != m || lc.columns != n) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const Precision precision =
      p.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? Precision::kTf32 : Precision::kFloat32;
  OnFakeGpu(stream, [=] {
    std::memset(workspace, 0xff, std::min(workspace_bytes, size_t{1000}));
    const auto factors = [precision](const Layout& l, const void* values) {
      return FactorsOf(precision, TypeOf(l.type), values, l.leading * l.columns);
    };
    const std::vector<double> as = factors(la, a), bs = factors(lb, b);
    for (size_t column = 0; column < n; ++column) {
      for (size_t row = 0; row < m; ++row) {
        double sum = 0;
        for (size_t i = 0; i < k; ++i)
          sum += as[a_turned ? i + row * la.leading : row + i * la.leading] *
                 bs[b_turned ? column + i * lb.leading : i + column * lb.leading];
        const size_t at = row + column * lc.leading;
        sum *= scale;
        if (keep != 0) sum += keep * ValueAt(TypeOf(lc.type), d, at);
        if (p.epilogue != CUBLASLT_EPILOGUE_DEFAULT) sum += ValueAt(TypeOf(lc.type), p.bias, row);
        if (p.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS) sum = std::max(sum, 0.0);
        StoreAt(TypeOf(lc.type), d, at, sum);
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

absl::Status CublasLt::ToStatus(absl::string_view call, cublasStatus_t status) const {
  return status == CUBLAS_STATUS_SUCCESS ? absl::OkStatus() : absl::InternalError(call);
}

absl::StatusOr<CublasLt> LoadCublasLt() {
  return CublasLt{.Create = Create,
                  .Destroy = Delete<int>,
                  .GetStatusString = GetStatusString,
                  .Matmul = Matmul,
                  .MatmulDescCreate = MatmulDescCreate,
                  .MatmulDescDestroy = Delete<Product>,
                  .MatmulDescSetAttribute = MatmulDescSetAttribute,
                  .MatrixLayoutCreate = MatrixLayoutCreate,
                  .MatrixLayoutDestroy = Delete<Layout>,
                  .MatmulPreferenceCreate = PreferenceCreate,
                  .MatmulPreferenceDestroy = Delete<Preference>,
                  .MatmulPreferenceSetAttribute = PreferenceSetAttribute,
                  .MatmulAlgoGetHeuristic = GetHeuristic};
}

}  // namespace psring
