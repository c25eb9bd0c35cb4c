#include "common/cuda/cuda_device.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cuda/cuda_context.h"
#include "common/cuda/cuda_kernels.h"
#include "common/cuda/cuda_stream.h"

namespace psring {
namespace {

std::string Version(int number) { return absl::StrCat(number / 1000, ".", number % 1000 / 10); }

std::string MiB(size_t bytes) { return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20)); }

absl::Status NoDevice(int index, const std::string& why) {
  return FailedPrecondition("--device cuda:", index, ": no CUDA device: ", why, "; or use --device cpu");
}

// The cause of an `error` of cudaGetDeviceCount on this machine.
absl::Status NoDriver(int index, cudaError_t error) {
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaGetLastError();  // clears the errors, which the caller does not expect
  if (error == cudaErrorInsufficientDriver && driver == 0) {
    return NoDevice(index, "this machine has no NVIDIA driver; install it, and check it with nvidia-smi");
  }
  if (error == cudaErrorInsufficientDriver) {
    return NoDevice(index, absl::StrCat("the NVIDIA driver is for CUDA ", Version(driver),
                                        ", and this build needs ", Version(runtime), "; update the driver"));
  }
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (error == cudaErrorNoDevice || error == cudaSuccess) {
    return NoDevice(
        index, absl::StrCat("there is an NVIDIA driver but no GPU",
                            visible != nullptr ? absl::StrCat(" among CUDA_VISIBLE_DEVICES=", visible) : "",
                            "; nvidia-smi lists the machine's GPUs"));
  }
  return NoDevice(index, absl::StrCat(cudaGetErrorName(error), ", ", cudaGetErrorString(error),
                                      "; nvidia-smi may say more"));
}

absl::Status CheckKernels(int index) {
  const cudaError_t error = gpu::CheckImage();
  if (error == cudaSuccess) return absl::OkStatus();
  int major = 0, minor = 0;
  (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
  (void)cudaGetLastError();
  return NoDevice(index, absl::StrCat("this build has no kernels for its GPU, which has architecture ", major,
                                      minor, " (", cudaGetErrorString(error),
                                      "); build with -DPSRING_CUDA_ARCHITECTURES=", major, minor));
}

absl::Status SelectGpuOf(const Device& device) {
  if (device.gpu() < 0) return FailedPrecondition(device.name(), " is not a GPU");
  return CudaStatus("cudaSetDevice", cudaSetDevice(device.gpu()));
}

class CudaDevice : public Device {
 public:
  CudaDevice(std::shared_ptr<CudaContext> context, std::string unit)
      : context_(std::move(context)), unit_(std::move(unit)) {}

  std::string name() const override { return context_->name(); }
  int gpu() const override { return context_->index(); }
  std::string unit() const override { return unit_; }
  bool host_reads_memory() const override { return false; }

  std::optional<Memory> memory() const override {
    Memory memory = {};
    if (!context_->Select().ok()) return std::nullopt;
    if (cudaMemGetInfo(&memory.free, &memory.total) == cudaSuccess) return memory;
    (void)cudaGetLastError();  // clears the error, which the caller did not cause
    return std::nullopt;
  }

  // Ordinary device memory, whose IPC handle other processes can open.
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    PSRING_RETURN_IF_ERROR(context_->Select());
    void* data = nullptr;
    if (const cudaError_t error = cudaMalloc(&data, bytes == 0 ? 1 : bytes); error != cudaSuccess) {
      (void)cudaGetLastError();  // clears the error, which is handled here
      return OutOfMemory(bytes, error);
    }
    Buffer buffer(data, bytes, [context = context_](void* memory) {
      if (context->Select().ok()) (void)CudaStatus("cudaFree", cudaFree(memory));
    });
    const std::unique_ptr<Stream> stream = NewStream(StreamKind::kCompute, "zero");
    stream->Zero(data, bytes);
    PSRING_RETURN_IF_ERROR(stream->Synchronize());
    return buffer;
  }

  absl::StatusOr<Buffer> AllocateShared(size_t bytes) override { return Allocate(bytes); }

  absl::StatusOr<Buffer> AllocateOnHost(size_t bytes) override {
    PSRING_RETURN_IF_ERROR(context_->Select());
    PSRING_ASSIGN_OR_RETURN(Buffer made, MakeCpuDevice()->AllocateShared(bytes));
    auto memory = std::make_shared<Buffer>(std::move(made));
    void* const data = memory->data();
    PSRING_RETURN_IF_ERROR(
        CudaStatus(absl::StrCat(name(), ": pinning ", MiB(bytes), " of host memory: cudaHostRegister"),
                   cudaHostRegister(data, bytes == 0 ? 1 : bytes, cudaHostRegisterPortable)));
    const int fd = memory->shared_fd();
    return Buffer(
        data, bytes,
        [memory, context = context_](void* pinned) {
          if (context->Select().ok()) (void)CudaStatus("cudaHostUnregister", cudaHostUnregister(pinned));
        },
        fd);
  }

  std::unique_ptr<Stream> NewStream(StreamKind kind, const std::string& name) override {
    return NewCudaStream(context_, kind, name);
  }

 private:
  absl::Status OutOfMemory(size_t bytes, cudaError_t error) {
    const std::optional<Memory> there = memory();
    if (error != cudaErrorMemoryAllocation || !there.has_value()) {
      return CudaStatus(absl::StrCat(name(), ": cudaMalloc of ", bytes, " bytes"), error);
    }
    return ResourceExhausted(name(), ": a buffer of ", bytes, " bytes (", MiB(bytes),
                             ") was requested, but only ", MiB(there->free), " of ", MiB(there->total),
                             " are free");
  }

  const std::shared_ptr<CudaContext> context_;
  const std::string unit_;
};

}  // namespace

int CudaDeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) (void)cudaGetLastError();
  if (error != cudaSuccess || count == 0) return NoDriver(index, error);
  if (index >= count) {
    return NoDevice(index,
                    absl::StrCat("there ", count == 1 ? "is 1 GPU" : absl::StrCat("are ", count, " GPUs"),
                                 ", counted from cuda:0"));
  }
  auto context = std::make_shared<CudaContext>(index);
  PSRING_RETURN_IF_ERROR(context->Select());
  PSRING_RETURN_IF_ERROR(CheckKernels(index));
  cudaDeviceProp properties = {};
  PSRING_RETURN_IF_ERROR(CudaStatus("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, index)));
  return std::make_unique<CudaDevice>(
      std::move(context), absl::BytesToHexString({properties.uuid.bytes, sizeof(properties.uuid.bytes)}));
}

absl::StatusOr<std::string> ExportMemory(Device& device, const Buffer& memory) {
  PSRING_RETURN_IF_ERROR(SelectGpuOf(device));
  cudaIpcMemHandle_t handle = {};
  PSRING_RETURN_IF_ERROR(CudaStatus(absl::StrCat(device.name(), ": cudaIpcGetMemHandle"),
                                    cudaIpcGetMemHandle(&handle, memory.data())));
  return absl::WebSafeBase64Escape({handle.reserved, sizeof(handle.reserved)});
}

absl::StatusOr<Buffer> ImportMemory(Device& device, const std::string& text, size_t bytes) {
  PSRING_RETURN_IF_ERROR(SelectGpuOf(device));
  cudaIpcMemHandle_t handle = {};
  std::string decoded;
  if (!absl::WebSafeBase64Unescape(text, &decoded) || decoded.size() != sizeof(handle.reserved)) {
    return InvalidArgument("not a handle of a GPU's memory");
  }
  std::memcpy(handle.reserved, decoded.data(), sizeof(handle.reserved));
  void* data = nullptr;
  PSRING_RETURN_IF_ERROR(CudaStatus(absl::StrCat(device.name(), ": cudaIpcOpenMemHandle"),
                                    cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess)));
  return Buffer(data, bytes, [gpu = device.gpu()](void* memory) {
    if (CudaStatus("cudaSetDevice", cudaSetDevice(gpu)).ok()) {
      (void)CudaStatus("cudaIpcCloseMemHandle", cudaIpcCloseMemHandle(memory));
    }
  });
}

}  // namespace psring
