// The speed of GPUs in training, from published measurements, so that a workload's computing time on another
// device follows from its operations. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/workloads/workload.h"

namespace psring {

// Measured FLOP/s over the peak for one family of models.
struct MeasuredUtilisation {
  const char* family;  // Workload::family
  double share;
  const char* source;
};

struct MeasuredDevice {
  const char* name;  // "V100"; "V100-mixed" for another precision
  const char* precision;
  double peak_flops_per_s;  // data sheet, dense
  double memory_bytes;      // of the variant with the most
  std::vector<MeasuredUtilisation> measured;
};
const std::vector<MeasuredDevice>& MeasuredDevices();

// The workload as the device computes it: its operations at the measured share of the peak; each layer keeps
// its share of the step. NotFound lists the devices. InvalidArgument: the workload's operations or family are
// not known, or the family was not measured on the device; a speed relative to another device is then needed.
absl::StatusOr<Workload> OnDevice(const Workload& workload, const std::string& device);

// The memory of the device that `Workload::device` names, in its variant with the most. 0: not known.
double MostMemoryOf(const std::string& device);

// Whether the device that `Workload::device` describes computes with weights and activations of 16 bits.
bool ComputesIn16Bits(const Workload& workload);

// Whether its times were recorded on a CPU, so that they do not describe training on a GPU.
bool RecordedOnCpu(const Workload& workload);

}  // namespace psring
