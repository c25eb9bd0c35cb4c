// Convolutions by cuDNN, for cuda_convolution.h.
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cuda_ops/cuda_convolution.h"
#include "common/cuda_ops/cuda_ops.h"
#include "common/cuda_ops/cudnn.h"
#include "common/cuda_ops/gpu_scratch.h"

namespace psring {
namespace {

// More than the fast algorithms need for psring's images.
constexpr size_t kConvolutionWorkspaceBytes = size_t{64} << 20;

using Part = Convolution::Part;

// cuDNN 9 has several "not supported" codes.
bool IsNotSupported(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED || status / 1000 * 1000 == CUDNN_STATUS_NOT_SUPPORTED;
}

// The cuDNN descriptors of a convolution, with the first permitted algorithm of cuDNN's heuristics. Created
// once per shape.
class Plan {
 public:
  Plan(const Cudnn& cudnn, cudnnHandle_t handle, Precision precision)
      : cudnn_(cudnn), handle_(handle), precision_(precision) {}
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (const cudnnTensorDescriptor_t tensor : {x_, y_, bias_}) {
      if (tensor != nullptr) cudnn_.DestroyTensor(tensor);
    }
    if (filter_ != nullptr) cudnn_.DestroyFilter(filter_);
    if (activation_ != nullptr) cudnn_.DestroyActivation(activation_);
    if (convolution_ != nullptr) cudnn_.DestroyConvolution(convolution_);
  }

  // False: cuDNN has no permitted algorithm.
  absl::StatusOr<bool> Make(const Convolution& c) {
    PSRING_RETURN_IF_ERROR(Describe(c));
    // Without an activation, the fused forward call supports only this algorithm.
    constexpr std::optional kOnly = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    switch (c.part) {
      case Part::kForward:
        return Choose<cudnnConvolutionFwdAlgoPerf_t>(
            forward_algorithm_, c.shape.activation == Activation::kRelu ? std::nullopt : kOnly,
            cudnn_.GetForwardAlgorithm, x_, filter_, convolution_, y_);
      case Part::kInputGradient:
        return Choose<cudnnConvolutionBwdDataAlgoPerf_t>(
            input_algorithm_, std::nullopt, cudnn_.GetBackwardDataAlgorithm, filter_, y_, convolution_, x_);
    }
    return Internal("no such part of a convolution");
  }

  // False: cuDNN rejects the call after all. `workspace`: of workspace_bytes().
  absl::StatusOr<bool> Run(const Convolution& c, void* workspace) {
    const float one = 1, zero = 0;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    switch (c.part) {
      case Part::kForward:  // the optional summand, here y itself, has the factor 0
        status = cudnn_.BiasActivationForward(handle_, &one, x_, c.from, filter_, c.weight, convolution_,
                                              forward_algorithm_, workspace, workspace_bytes_, &zero, y_,
                                              c.to, bias_, c.bias, activation_, y_, c.to);
        break;
      case Part::kInputGradient:
        status = cudnn_.BackwardData(handle_, &one, filter_, c.weight, y_, c.from, convolution_,
                                     input_algorithm_, workspace, workspace_bytes_, &zero, x_, c.to);
        break;
    }
    if (IsNotSupported(status)) return false;
    PSRING_RETURN_IF_ERROR(cudnn_.ToStatus("cuDNN's convolution", status));
    return true;
  }

  size_t workspace_bytes() const { return workspace_bytes_; }

 private:
  absl::Status Describe(const Convolution& c) {
    const ConvShape& s = c.shape;
    const cudnnDataType_t type = c.type == DType::kFloat32 ? CUDNN_DATA_FLOAT : CUDNN_DATA_BFLOAT16;
    // Sizes come in the order batch, channels, height, width, whatever the layout.
    PSRING_RETURN_IF_ERROR(Tensor(x_, type, s.batch, s.in_channels, s.height, s.width));
    PSRING_RETURN_IF_ERROR(Tensor(y_, type, s.batch, s.out_channels, s.out_height(), s.out_width()));
    PSRING_RETURN_IF_ERROR(Check("cudnnCreateFilterDescriptor", cudnn_.CreateFilter(&filter_)));
    PSRING_RETURN_IF_ERROR(Check("cudnnSetFilter4dDescriptor",
                                 cudnn_.SetFilter4d(filter_, type, CUDNN_TENSOR_NHWC, s.out_channels,
                                                    s.in_channels, s.kernel, s.kernel)));
    PSRING_RETURN_IF_ERROR(
        Check("cudnnCreateConvolutionDescriptor", cudnn_.CreateConvolution(&convolution_)));
    PSRING_RETURN_IF_ERROR(
        Check("cudnnSetConvolution2dDescriptor",
              cudnn_.SetConvolution2d(convolution_, /*pad_h=*/s.padding, /*pad_w=*/s.padding,
                                      /*stride_h=*/s.stride, /*stride_w=*/s.stride,
                                      /*dilation_h=*/1, /*dilation_w=*/1, CUDNN_CROSS_CORRELATION,
                                      CUDNN_DATA_FLOAT)));
    PSRING_RETURN_IF_ERROR(SetMath(MathAsked()));
    if (c.part != Part::kForward) return absl::OkStatus();
    PSRING_RETURN_IF_ERROR(Tensor(bias_, type, 1, s.out_channels, 1, 1));
    PSRING_RETURN_IF_ERROR(Check("cudnnCreateActivationDescriptor", cudnn_.CreateActivation(&activation_)));
    return Check("cudnnSetActivationDescriptor",
                 cudnn_.SetActivation(
                     activation_,
                     s.activation == Activation::kRelu ? CUDNN_ACTIVATION_RELU : CUDNN_ACTIVATION_IDENTITY,
                     CUDNN_PROPAGATE_NAN, std::numeric_limits<double>::max()));
  }

  absl::Status Tensor(cudnnTensorDescriptor_t& tensor, cudnnDataType_t type, int batch, int channels,
                      int height, int width) {
    PSRING_RETURN_IF_ERROR(Check("cudnnCreateTensorDescriptor", cudnn_.CreateTensor(&tensor)));
    return Check("cudnnSetTensor4dDescriptor",
                 cudnn_.SetTensor4d(tensor, CUDNN_TENSOR_NHWC, type, batch, channels, height, width));
  }

  // By default cuDNN would compute float32 in tf32.
  cudnnMathType_t MathAsked() const {
    if (precision_ == Precision::kTf32) return CUDNN_DEFAULT_MATH;
    return precision_ == Precision::kBFloat16 ? CUDNN_TENSOR_OP_MATH : CUDNN_FMA_MATH;
  }

  // The first algorithm that is deterministic, fits the workspace and has the requested precision; `only`: if
  // it is this one. `get` lists the algorithms for `arguments`.
  template <typename Perf, typename Algorithm, typename Get, typename... Arguments>
  absl::StatusOr<bool> Choose(Algorithm& algorithm, std::type_identity_t<std::optional<Algorithm>> only,
                              Get get, Arguments... arguments) {
    std::array<Perf, 16> all = {};
    int found = 0;
    const cudnnStatus_t status = get(handle_, arguments..., static_cast<int>(all.size()), &found, all.data());
    if (IsNotSupported(status)) return false;
    PSRING_RETURN_IF_ERROR(Check("cuDNN's choice of an algorithm", status));
    for (int i = 0; i < found; ++i) {
      const Perf& perf = all[i];
      if (perf.status != CUDNN_STATUS_SUCCESS || perf.determinism != CUDNN_DETERMINISTIC) continue;
      if (perf.memory > kConvolutionWorkspaceBytes) continue;
      if (only.has_value() && perf.algo != *only) continue;
      if (precision_ == Precision::kFloat32 && perf.mathType == CUDNN_TENSOR_OP_MATH) continue;
      algorithm = perf.algo;
      workspace_bytes_ = perf.memory;
      if (precision_ != Precision::kFloat32) PSRING_RETURN_IF_ERROR(SetMath(perf.mathType));
      return true;
    }
    return false;
  }

  absl::Status SetMath(cudnnMathType_t math) {
    return Check("cudnnSetConvolutionMathType", cudnn_.SetConvolutionMathType(convolution_, math));
  }

  absl::Status Check(absl::string_view call, cudnnStatus_t status) { return cudnn_.ToStatus(call, status); }

  const Cudnn& cudnn_;
  const cudnnHandle_t handle_;
  const Precision precision_;
  cudnnTensorDescriptor_t x_ = nullptr, y_ = nullptr, bias_ = nullptr;
  cudnnFilterDescriptor_t filter_ = nullptr;
  cudnnConvolutionDescriptor_t convolution_ = nullptr;
  cudnnActivationDescriptor_t activation_ = nullptr;
  cudnnConvolutionFwdAlgo_t forward_algorithm_ = {};
  cudnnConvolutionBwdDataAlgo_t input_algorithm_ = {};
  size_t workspace_bytes_ = 0;
};

class CudnnConvolution : public CudaConvolution {
 public:
  CudnnConvolution(Cudnn cudnn, cudnnHandle_t handle, Precision precision, Device& device)
      : cudnn_(std::move(cudnn)),
        handle_(handle),
        precision_(precision),
        workspace_(device),
        name_(absl::StrCat("cudnn ", cudnn_.version)) {}

  ~CudnnConvolution() override {
    plans_.clear();
    cudnn_.Destroy(handle_);
  }

  const std::string& name() const override { return name_; }

  absl::StatusOr<bool> Run(const Convolution& c, cudaStream_t stream) override {
    const auto [at, is_new] = plans_.try_emplace(Key{c.part, c.type, c.shape});
    std::unique_ptr<Plan>& plan = at->second;  // null: there is none
    absl::StatusOr<bool> done = false;
    if (is_new) {
      auto made = std::make_unique<Plan>(cudnn_, handle_, precision_);
      done = made->Make(c);
      if (done.ok() && *done) plan = std::move(made);
    }
    if (done.ok() && plan != nullptr) {
      done = Run(*plan, c, stream);
      if (done.ok() && !*done) plan = nullptr;
    }
    if (done.ok()) return done;
    const ConvShape& s = c.shape;
    return Prefixed(done.status(), "convolution ", s.kernel, "x", s.kernel, " ", s.in_channels, "-",
                    s.out_channels, " on ", s.height, "x", s.width, ", batch ", s.batch, ": ");
  }

 private:
  using Key = std::tuple<Part, DType, ConvShape>;

  absl::StatusOr<bool> Run(Plan& plan, const Convolution& c, cudaStream_t stream) {
    PSRING_ASSIGN_OR_RETURN(void* const workspace, workspace_.Reserve(plan.workspace_bytes()));
    PSRING_RETURN_IF_ERROR(cudnn_.ToStatus("cudnnSetStream", cudnn_.SetStream(handle_, stream)));
    return plan.Run(c, workspace);
  }

  const Cudnn cudnn_;
  const cudnnHandle_t handle_;
  const Precision precision_;
  GpuScratch workspace_;
  const std::string name_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaConvolution>> MakeCudaConvolution(Device& device, Precision precision) {
  PSRING_ASSIGN_OR_RETURN(Cudnn cudnn, LoadCudnn());
  cudnnHandle_t handle = nullptr;
  if (const absl::Status made = cudnn.ToStatus("cudnnCreate", cudnn.Create(&handle)); !made.ok()) {
    return FailedPrecondition("cuDNN ", cudnn.version, ": ", made.message());
  }
  return std::make_unique<CudnnConvolution>(std::move(cudnn), handle, precision, device);
}

absl::StatusOr<std::string> ConvolutionLibrary() {
  PSRING_ASSIGN_OR_RETURN(const Cudnn cudnn, LoadCudnn());
  return absl::StrCat("cudnn ", cudnn.version);
}

}  // namespace psring
