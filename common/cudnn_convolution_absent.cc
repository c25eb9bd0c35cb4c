#include "common/cuda_convolution.h"
#include "common/cuda_device.h"

namespace psring {

absl::StatusOr<std::unique_ptr<CudaConvolution>> MakeCudaConvolution(Device&, Precision) {
  return ConvolutionLibrary().status();
}

absl::StatusOr<std::string> ConvolutionLibrary() {
  return absl::FailedPreconditionError("this build has no cuDNN");
}

}  // namespace psring
