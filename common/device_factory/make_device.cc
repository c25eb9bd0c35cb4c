#include "common/device_factory/make_device.h"

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/errors.h"
#include "common/cuda/cuda_device.h"

namespace psring {

absl::StatusOr<std::unique_ptr<Device>> MakeDevice(const std::string& spec) {
  if (spec == "cpu") return MakeCpuDevice();
  if (spec == "auto") {
    if (CudaDeviceCount() == 0) return MakeCpuDevice();
    return MakeCudaDevice(0);
  }
  if (spec == "cuda") return MakeCudaDevice(0);
  absl::string_view index_text = spec;
  int index = 0;
  if (absl::ConsumePrefix(&index_text, "cuda:") && absl::SimpleAtoi(index_text, &index) && index >= 0) {
    return MakeCudaDevice(index);
  }
  return InvalidArgument("--device ", spec, ": unknown device; use auto, cpu, cuda or cuda:<index>");
}

std::string DeviceOfRank(const std::string& spec, int local_rank, int gpus) {
  if (spec == "auto" && gpus == 0) return "cpu";
  if ((spec == "auto" || spec == "cuda") && gpus > 0) return absl::StrCat("cuda:", local_rank % gpus);
  return spec;
}

}  // namespace psring
