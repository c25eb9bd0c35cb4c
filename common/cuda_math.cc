// Matrix products by cuBLASLt and kernels by CUDA, for gpu_ops.h.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/cublas_lt.h"
#include "common/cuda_device.h"
#include "common/cuda_launcher.h"

namespace psring {
namespace {

// What NVIDIA recommends for its newest GPUs; older ones ask for less.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

// The largest power of two, up to 256, that divides an address: algorithms differ in what they need.
uint32_t AlignmentOf(const void* address) {
  const uintptr_t lowest_bit = reinterpret_cast<uintptr_t>(address) & -reinterpret_cast<uintptr_t>(address);
  return lowest_bit == 0 ? 256 : static_cast<uint32_t>(std::min<uintptr_t>(256, lowest_bit));
}

// A product as cuBLASLt is told of it, with the algorithm that it has chosen. Made once for a kind of
// product.
//
// cuBLASLt's matrices are column-major, and a row-major matrix read so is its transpose. So c^T = b^T a^T is
// computed: b comes first, and bias, which belongs to c's columns, to the rows of c^T, as cuBLASLt has it.
class Plan {
 public:
  explicit Plan(const CublasLt& lt) : lt_(lt) {}
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (product_ != nullptr) lt_.MatmulDescDestroy(product_);
    for (const cublasLtMatrixLayout_t layout : {b_, a_, c_}) {
      if (layout != nullptr) lt_.MatrixLayoutDestroy(layout);
    }
  }

  absl::Status Make(cublasLtHandle_t handle, const MatrixProduct& p) {
    PSRING_RETURN_IF_ERROR(lt_.ToStatus("cublasLtMatmulDescCreate",
                                        lt_.MatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
    PSRING_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    PSRING_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (p.bias != nullptr) {
      PSRING_RETURN_IF_ERROR(
          Set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS));
      PSRING_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias));
    }
    // Rows, columns: of the memory, read by columns.
    PSRING_RETURN_IF_ERROR(p.b_transposed ? Layout(b_, p.k, p.n) : Layout(b_, p.n, p.k));
    PSRING_RETURN_IF_ERROR(p.a_transposed ? Layout(a_, p.m, p.k) : Layout(a_, p.k, p.m));
    PSRING_RETURN_IF_ERROR(Layout(c_, p.n, p.m));
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

  absl::Status Layout(cublasLtMatrixLayout_t& layout, size_t rows, size_t columns) {
    return lt_.ToStatus(
        "cublasLtMatrixLayoutCreate",
        lt_.MatrixLayoutCreate(&layout, CUDA_R_32F, rows, columns, static_cast<int64_t>(rows)));
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
    if (found == 0) return absl::UnimplementedError("cuBLASLt knows no algorithm for it");
    algorithm_ = best.algo;
    return absl::OkStatus();
  }

  const CublasLt& lt_;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t b_ = nullptr, a_ = nullptr, c_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

class CudaMath : public CudaLauncher {
 public:
  CudaMath(const CublasLt& lt, cublasLtHandle_t handle, Buffer workspace)
      : lt_(lt), handle_(handle), workspace_(std::move(workspace)) {}

  ~CudaMath() override {
    plans_.clear();
    lt_.Destroy(handle_);
  }

  std::string_view name() const override { return "cublaslt"; }

  absl::Status Multiply(const MatrixProduct& p) override {
    const Key key{p.m,
                  p.n,
                  p.k,
                  p.a_transposed,
                  p.b_transposed,
                  p.bias != nullptr,
                  p.relu,
                  p.add,
                  AlignmentOf(p.a),
                  AlignmentOf(p.b),
                  AlignmentOf(p.c),
                  AlignmentOf(p.bias)};
    std::unique_ptr<Plan>& plan = plans_[key];
    absl::Status status;
    if (plan == nullptr) {
      auto made = std::make_unique<Plan>(lt_);
      status = made->Make(handle_, p);
      if (status.ok()) plan = std::move(made);
    }
    if (status.ok()) status = plan->Run(handle_, p, workspace_.data(), queue());
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat("product of ", p.m, " x ", p.k, " and ", p.k, " x ", p.n,
                                                    ": ", status.message()));
  }

 private:
  using Key = std::tuple<size_t, size_t, size_t, bool, bool, bool, bool, bool, uint32_t, uint32_t, uint32_t,
                         uint32_t>;

  const CublasLt lt_;
  const cublasLtHandle_t handle_;
  const Buffer workspace_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(Device& device) {
  PSRING_ASSIGN_OR_RETURN(const CublasLt lt, LoadCublasLt());
  // On this device, which the thread has selected by allocating from it.
  PSRING_ASSIGN_OR_RETURN(Buffer workspace, device.Allocate(kWorkspaceBytes));
  cublasLtHandle_t handle = nullptr;
  PSRING_RETURN_IF_ERROR(lt.ToStatus("cublasLtCreate", lt.Create(&handle)));
  return MakeGpuOps(device, std::make_unique<CudaMath>(lt, handle, std::move(workspace)));
}

}  // namespace psring
