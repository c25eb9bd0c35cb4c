// The functions of this folder's headers in a build without CUDA: they return errors.
#include <unistd.h>

#include "common/base/errors.h"
#include "common/cuda/cuda_device.h"
#include "common/cuda/recorded_work.h"

namespace psring {
namespace {

absl::Status NotAGpu(const Device& device) { return FailedPrecondition(device.name(), " is not a GPU"); }

}  // namespace

int CudaDeviceCount() { return 0; }

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index) {
  const bool has_driver = access("/proc/driver/nvidia/version", F_OK) == 0;
  return FailedPrecondition("--device cuda:", index,
                            ": no CUDA device: this build of psring has no CUDA, and this machine has ",
                            has_driver ? "an" : "no", " NVIDIA driver; use --device cpu",
                            has_driver ? ", or install the CUDA toolkit and build again: ./run build" : "");
}

absl::StatusOr<std::string> ExportMemory(Device& device, const Buffer&) { return NotAGpu(device); }

absl::StatusOr<Buffer> ImportMemory(Device& device, const std::string&, size_t) { return NotAGpu(device); }

absl::Status BeginRecording(Stream&) { return Unimplemented("only a GPU's compute stream can be recorded"); }

absl::StatusOr<std::unique_ptr<RecordedWork>> EndRecording(Stream& stream) { return BeginRecording(stream); }

}  // namespace psring
