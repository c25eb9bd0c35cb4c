// cuDNN on the fake CUDA runtime: it replaces cudnn.cc. Of the algorithms that it offers only one is
// permitted; the others fail.
#include <cstring>

#include "common/cuda_ops/cudnn.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/common/cuda/gpu_in_loops.h"

namespace psring {
namespace {

using Part = Convolution::Part;

constexpr int kGood = 1;  // in all three lists: deterministic, and what a forward call without ReLU takes

struct Tensor {
  cudnnDataType_t type = CUDNN_DATA_INT8;
  int batch = 0, channels = 0, height = 0, width = 0;
};
struct Geometry {
  bool plain = false;  // the same in both directions, no dilation
  int stride = 0, padding = 0;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};
struct Handle {
  cudaStream_t stream = nullptr;
};

template <typename T, typename Opaque>
T& As(Opaque* opaque) {
  return *reinterpret_cast<T*>(opaque);
}
template <typename T, typename Opaque>
cudnnStatus_t New(Opaque** opaque) {
  *opaque = reinterpret_cast<Opaque*>(new T);
  return CUDNN_STATUS_SUCCESS;
}
template <typename T, typename Opaque>
cudnnStatus_t Delete(Opaque* opaque) {
  delete reinterpret_cast<T*>(opaque);
  return CUDNN_STATUS_SUCCESS;
}

size_t GetVersion() { return 91900; }
const char* GetErrorString(cudnnStatus_t) { return "an error of the fake cuDNN"; }
cudnnStatus_t SetStream(cudnnHandle_t handle, cudaStream_t stream) {
  As<Handle>(handle).stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t SetTensor4d(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format, cudnnDataType_t type,
                          int batch, int channels, int height, int width) {
  if (format != CUDNN_TENSOR_NHWC) return CUDNN_STATUS_NOT_SUPPORTED;
  As<Tensor>(tensor) = {type, batch, channels, height, width};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t SetFilter4d(cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format,
                          int out, int in, int height, int width) {
  return SetTensor4d(reinterpret_cast<cudnnTensorDescriptor_t>(filter), format, type, out, in, height, width);
}
cudnnStatus_t SetActivation(cudnnActivationDescriptor_t activation, cudnnActivationMode_t mode,
                            cudnnNanPropagation_t, double) {
  As<cudnnActivationMode_t>(activation) = mode;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t SetConvolution2d(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w, int u, int v,
                               int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                               cudnnDataType_t compute) {
  Geometry& geometry = As<Geometry>(convolution);
  geometry.plain = pad_h == pad_w && u == v && dilation_h == 1 && dilation_w == 1 &&
                   mode == CUDNN_CROSS_CORRELATION && compute == CUDNN_DATA_FLOAT;
  geometry.stride = u;
  geometry.padding = pad_h;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t SetMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math) {
  As<Geometry>(convolution).math = math;
  return CUDNN_STATUS_SUCCESS;
}

// The fastest first, as in cuDNN's heuristics.
template <typename Perf>
cudnnStatus_t Offer(cudnnFilterDescriptor_t filter, cudnnConvolutionDescriptor_t convolution, int most,
                    int* found, Perf* all) {
  if (As<Tensor>(filter).height == TheFakeCuda().kernel_without_cudnn) return CUDNN_STATUS_NOT_SUPPORTED;
  using Algorithm = decltype(all->algo);
  const cudnnMathType_t math = As<Geometry>(convolution).math;
  const struct {
    int algorithm;
    cudnnStatus_t status;
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t math;
  } offers[] = {{0, CUDNN_STATUS_SUCCESS, 0, CUDNN_NON_DETERMINISTIC, math},
                {3, CUDNN_STATUS_SUCCESS, size_t{1} << 40, CUDNN_DETERMINISTIC, math},
                {4, CUDNN_STATUS_NOT_SUPPORTED, 0, CUDNN_DETERMINISTIC, math},
                {math == CUDNN_FMA_MATH ? 5 : kGood, CUDNN_STATUS_SUCCESS, 1000, CUDNN_DETERMINISTIC,
                 CUDNN_TENSOR_OP_MATH},
                {kGood, CUDNN_STATUS_SUCCESS, 1000, CUDNN_DETERMINISTIC, math}};
  *found = 0;
  for (const auto& one : offers) {
    if (*found == most) break;
    Perf& perf = all[(*found)++];
    perf = {};
    perf.algo = static_cast<Algorithm>(one.algorithm);
    perf.status = one.status;
    perf.memory = one.memory;
    perf.determinism = one.determinism;
    perf.mathType = one.math;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t GetForward(cudnnHandle_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t filter,
                         cudnnConvolutionDescriptor_t convolution, cudnnTensorDescriptor_t, int most,
                         int* found, cudnnConvolutionFwdAlgoPerf_t* all) {
  return Offer(filter, convolution, most, found, all);
}
cudnnStatus_t GetBackwardData(cudnnHandle_t, cudnnFilterDescriptor_t filter, cudnnTensorDescriptor_t,
                              cudnnConvolutionDescriptor_t convolution, cudnnTensorDescriptor_t, int most,
                              int* found, cudnnConvolutionBwdDataAlgoPerf_t* all) {
  return Offer(filter, convolution, most, found, all);
}

cudnnStatus_t Convolve(Part part, cudnnHandle_t handle, const Tensor& x, const Tensor& filter,
                       const Tensor& y, const Geometry& geometry, int algorithm, const void* from,
                       const void* weight, void* to, const void* bias, bool relu, void* workspace,
                       size_t workspace_bytes) {
  if (algorithm != kGood || workspace_bytes < 1000) return CUDNN_STATUS_EXECUTION_FAILED;
  if (x.type == CUDNN_DATA_BFLOAT16 && geometry.math != CUDNN_TENSOR_OP_MATH) return CUDNN_STATUS_BAD_PARAM;
  const Convolution c{.part = part,
                      .shape = {.batch = x.batch,
                                .height = x.height,
                                .width = x.width,
                                .in_channels = x.channels,
                                .out_channels = y.channels,
                                .kernel = filter.height,
                                .activation = relu ? Activation::kRelu : Activation::kNone,
                                .stride = geometry.stride,
                                .padding = geometry.padding},
                      .type = x.type == CUDNN_DATA_FLOAT ? DType::kFloat32 : DType::kBFloat16,
                      .from = from,
                      .weight = weight,
                      .to = to,
                      .bias = bias};
  const bool fits = geometry.plain && x.channels == filter.channels && y.channels == filter.batch &&
                    y.height == c.shape.out_height() && y.width == c.shape.out_width() && x.type == y.type &&
                    x.type == filter.type && filter.height == filter.width;
  if (!fits) return CUDNN_STATUS_BAD_PARAM;
  const Precision precision = geometry.math == CUDNN_FMA_MATH ? Precision::kFloat32 : Precision::kTf32;
  OnFakeGpu(As<Handle>(handle).stream, [=] {
    std::memset(workspace, 0xff, 1000);
    ConvolveInLoops(c, precision);
  });
  return CUDNN_STATUS_SUCCESS;
}

bool IsOne(const void* value) { return *static_cast<const float*>(value) == 1; }
bool IsZero(const void* value) { return *static_cast<const float*>(value) == 0; }

cudnnStatus_t BiasActivationForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x,
                                    const void* x_data, cudnnFilterDescriptor_t filter, const void* weight,
                                    cudnnConvolutionDescriptor_t convolution,
                                    cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t bytes,
                                    const void* beta, cudnnTensorDescriptor_t, const void*,
                                    cudnnTensorDescriptor_t bias, const void* bias_data,
                                    cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t y,
                                    void* y_data) {
  const Tensor& b = As<Tensor>(bias);
  if (!IsOne(alpha) || !IsZero(beta) || b.channels != As<Tensor>(y).channels ||
      b.batch * b.height * b.width != 1 || b.type != As<Tensor>(y).type) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  return Convolve(Part::kForward, handle, As<Tensor>(x), As<Tensor>(filter), As<Tensor>(y),
                  As<Geometry>(convolution), algorithm, x_data, weight, y_data, bias_data,
                  As<cudnnActivationMode_t>(activation) == CUDNN_ACTIVATION_RELU, workspace, bytes);
}
cudnnStatus_t BackwardData(cudnnHandle_t handle, const void* alpha, cudnnFilterDescriptor_t filter,
                           const void* weight, cudnnTensorDescriptor_t dy, const void* dy_data,
                           cudnnConvolutionDescriptor_t convolution, cudnnConvolutionBwdDataAlgo_t algorithm,
                           void* workspace, size_t bytes, const void* beta, cudnnTensorDescriptor_t dx,
                           void* dx_data) {
  if (!IsOne(alpha) || !IsZero(beta)) return CUDNN_STATUS_BAD_PARAM;
  return Convolve(Part::kInputGradient, handle, As<Tensor>(dx), As<Tensor>(filter), As<Tensor>(dy),
                  As<Geometry>(convolution), algorithm, dy_data, weight, dx_data, nullptr, false, workspace,
                  bytes);
}

}  // namespace

absl::Status Cudnn::ToStatus(absl::string_view call, cudnnStatus_t status) const {
  return status == CUDNN_STATUS_SUCCESS ? absl::OkStatus() : absl::InternalError(call);
}

absl::StatusOr<Cudnn> LoadCudnn() {
  if (!TheFakeCuda().has_cudnn)
    return absl::FailedPreconditionError("cuDNN was not found: the fake has none");
  return Cudnn{.GetVersion = GetVersion,
               .GetErrorString = GetErrorString,
               .Create = New<Handle>,
               .Destroy = Delete<Handle>,
               .SetStream = SetStream,
               .CreateTensor = New<Tensor>,
               .DestroyTensor = Delete<Tensor>,
               .SetTensor4d = SetTensor4d,
               .CreateFilter = New<Tensor>,
               .DestroyFilter = Delete<Tensor>,
               .SetFilter4d = SetFilter4d,
               .CreateActivation = New<cudnnActivationMode_t>,
               .DestroyActivation = Delete<cudnnActivationMode_t>,
               .SetActivation = SetActivation,
               .CreateConvolution = New<Geometry>,
               .DestroyConvolution = Delete<Geometry>,
               .SetConvolution2d = SetConvolution2d,
               .SetConvolutionMathType = SetMathType,
               .GetForwardAlgorithm = GetForward,
               .GetBackwardDataAlgorithm = GetBackwardData,
               .BiasActivationForward = BiasActivationForward,
               .BackwardData = BackwardData,
               .version = "9.19.0"};
}

}  // namespace psring
