// Matrix products by cuBLASLt and kernels by CUDA, for gpu_ops.h.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cuda_ops/cublas_lt.h"
#include "common/cuda_ops/cuda_convolution.h"
#include "common/cuda_ops/cuda_launcher.h"

namespace psring {
namespace {

// NVIDIA's recommendation for its newest GPUs; older ones need less.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

// The largest power of two, up to 256, that divides an address: algorithms differ in what they need.
uint32_t AlignmentOf(const void* address) {
  const uintptr_t lowest_bit = reinterpret_cast<uintptr_t>(address) & -reinterpret_cast<uintptr_t>(address);
  return lowest_bit == 0 ? 256 : static_cast<uint32_t>(std::min<uintptr_t>(256, lowest_bit));
}

// The cuBLASLt descriptors of a product, with the chosen algorithm. Created once per kind of product.
//
// cuBLASLt's matrices are column-major, so it sees a row-major matrix as its transpose. Therefore c^T = b^T
// a^T is computed: b comes first, and the bias, which belongs to c's columns, belongs to the rows of c^T, as
// cuBLASLt requires.
class Plan {
 public:
  Plan(const CublasLt& lt, Precision precision) : lt_(lt), precision_(precision) {}
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (product_ != nullptr) lt_.MatmulDescDestroy(product_);
    for (const cublasLtMatrixLayout_t layout : {b_, a_, c_}) {
      if (layout != nullptr) lt_.MatrixLayoutDestroy(layout);
    }
  }

  absl::Status Make(cublasLtHandle_t handle, const MatrixProduct& p) {
    const cublasComputeType_t compute =
        precision_ == Precision::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    PSRING_RETURN_IF_ERROR(
        lt_.ToStatus("cublasLtMatmulDescCreate", lt_.MatmulDescCreate(&product_, compute, CUDA_R_32F)));
    PSRING_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    PSRING_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (p.bias != nullptr) {  // of c's type, cuBLASLt's default
      PSRING_RETURN_IF_ERROR(
          Set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS));
      PSRING_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias));
    }
    // Rows, columns: of the memory, read by columns.
    PSRING_RETURN_IF_ERROR(p.b_transposed ? Layout(b_, p.inputs, p.k, p.n) : Layout(b_, p.inputs, p.n, p.k));
    PSRING_RETURN_IF_ERROR(p.a_transposed ? Layout(a_, p.inputs, p.m, p.k) : Layout(a_, p.inputs, p.k, p.m));
    PSRING_RETURN_IF_ERROR(Layout(c_, p.output, p.n, p.m));
    return ChooseAlgorithm(handle, p);
  }

  absl::Status Run(cublasLtHandle_t handle, const MatrixProduct& p, void* workspace, cudaStream_t stream) {
    if (p.bias != nullptr) PSRING_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias));
    const float alpha = 1, beta = p.add ? 1 : 0;
    return lt_.ToStatus("cublasLtMatmul",
                        lt_.Matmul(handle, product_, &alpha, p.b, b_, p.a, a_, &beta, p.c, c_, p.c, c_,
                                   &algorithm_, workspace, kWorkspaceBytes, stream));
  }

 private:
  template <typename T>
  absl::Status Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    return lt_.ToStatus("cublasLtMatmulDescSetAttribute",
                        lt_.MatmulDescSetAttribute(product_, attribute, &value, sizeof(value)));
  }

  absl::Status Layout(cublasLtMatrixLayout_t& layout, DType type, size_t rows, size_t columns) {
    PSRING_CHECK(type == DType::kFloat32 || type == DType::kBFloat16);
    const cudaDataType_t cuda_type = type == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF;
    return lt_.ToStatus(
        "cublasLtMatrixLayoutCreate",
        lt_.MatrixLayoutCreate(&layout, cuda_type, rows, columns, static_cast<int64_t>(rows)));
  }

  absl::Status ChooseAlgorithm(cublasLtHandle_t handle, const MatrixProduct& p) {
    cublasLtMatmulPreference_t preference = nullptr;
    PSRING_RETURN_IF_ERROR(
        lt_.ToStatus("cublasLtMatmulPreferenceCreate", lt_.MatmulPreferenceCreate(&preference)));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      return lt_.MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
    };
    cublasStatus_t status = set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    const std::pair<cublasLtMatmulPreferenceAttributes_t, const void*> places[] = {
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.c}};
    for (const auto& [attribute, address] : places) {
      if (status == CUBLAS_STATUS_SUCCESS) status = set(attribute, AlignmentOf(address));
    }
    cublasLtMatmulHeuristicResult_t best = {};
    int found = 0;
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = lt_.MatmulAlgoGetHeuristic(handle, product_, b_, a_, c_, c_, preference, 1, &best, &found);
    }
    lt_.MatmulPreferenceDestroy(preference);
    PSRING_RETURN_IF_ERROR(lt_.ToStatus("cublasLtMatmulAlgoGetHeuristic", status));
    if (found == 0) return Unimplemented("cuBLASLt has no algorithm for it");
    algorithm_ = best.algo;
    return absl::OkStatus();
  }

  const CublasLt& lt_;
  const Precision precision_;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t b_ = nullptr, a_ = nullptr, c_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

class CudaMath : public CudaLauncher {
 public:
  CudaMath(Device& device, const CublasLt& lt, Precision precision, cublasLtHandle_t handle, Buffer workspace)
      : device_(device), lt_(lt), precision_(precision), handle_(handle), workspace_(std::move(workspace)) {}

  ~CudaMath() override {
    plans_.clear();
    lt_.Destroy(handle_);
  }

  std::string_view name() const override {
    if (precision_ == Precision::kTf32) return "cublaslt, tf32";
    return precision_ == Precision::kBFloat16 ? "cublaslt, bfloat16" : "cublaslt";
  }

  absl::Status Multiply(const MatrixProduct& p) override {
    const Key key(p.m, p.n, p.k, p.inputs, p.output, p.a_transposed, p.b_transposed, p.bias != nullptr,
                  p.relu, p.add, AlignmentOf(p.a), AlignmentOf(p.b), AlignmentOf(p.c), AlignmentOf(p.bias));
    std::unique_ptr<Plan>& plan = plans_[key];
    absl::Status status;
    if (plan == nullptr) {
      auto made = std::make_unique<Plan>(lt_, precision_);
      status = made->Make(handle_, p);
      if (status.ok()) plan = std::move(made);
    }
    if (status.ok()) status = plan->Run(handle_, p, workspace_.data(), queue());
    return Prefixed(status, "product of ", p.m, " x ", p.k, " and ", p.k, " x ", p.n, ": ");
  }

  absl::StatusOr<bool> Convolve(const Convolution& convolution) override {
    if (!library_.has_value()) library_ = MakeCudaConvolution(device_, precision_);
    if (absl::IsFailedPrecondition(library_->status())) return false;  // there is none
    PSRING_RETURN_IF_ERROR(library_->status());
    return (**library_)->Run(convolution, queue());
  }

  std::string_view convolver() const override {
    return library_.has_value() && library_->ok() ? std::string_view((**library_)->name()) : "";
  }

 private:
  using Key = std::tuple<size_t, size_t, size_t, DType, DType, bool, bool, bool, bool, bool, uint32_t,
                         uint32_t, uint32_t, uint32_t>;

  Device& device_;
  const CublasLt lt_;
  const Precision precision_;
  const cublasLtHandle_t handle_;
  const Buffer workspace_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
  // Loaded by the first convolution.
  std::optional<absl::StatusOr<std::unique_ptr<CudaConvolution>>> library_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GpuMath>> MakeCudaMath(Device& device, Precision precision) {
  PSRING_ASSIGN_OR_RETURN(const CublasLt lt, LoadCublasLt());
  // On this device, which the thread has selected by allocating from it.
  PSRING_ASSIGN_OR_RETURN(Buffer workspace, device.Allocate(kWorkspaceBytes));
  cublasLtHandle_t handle = nullptr;
  PSRING_RETURN_IF_ERROR(lt.ToStatus("cublasLtCreate", lt.Create(&handle)));
  return std::make_unique<CudaMath>(device, lt, precision, handle, std::move(workspace));
}

}  // namespace psring
