#include "common/workloads/devices.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/errors.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr char kDlPerf[] = "DLPerf v1.0, NGC PyTorch 20.03, one GPU";
constexpr char kNvidia[] = "NVIDIA DeepLearningExamples, ResNet-50 v1.5 in PyTorch 21.03, one GPU";

// Shares are derived: samples/s times flops_per_sample over the peak.
std::vector<MeasuredDevice> MakeDevices() {
  return {
      // 367.3 images/s (ResNet-50, batch 128) and 119.6 sentences/s (BERT-base, 128 tokens, batch 32).
      {"V100", "float32", 15.7e12, 32e9, {{"convolutions", 0.574, kDlPerf}, {"transformer", 0.533, kDlPerf}}},
      // 1,200 images/s; 39 TFLOP/s of one GPU.
      {"V100-mixed",
       "float16 with float32 sums",
       125e12,
       32e9,
       {{"convolutions", 0.236, kNvidia},
        {"transformer", 0.312, "Shoeybi et al. 2019, Megatron-LM, section 5.1"}}},
      // 938 images/s.
      {"A100-tf32", "TF32", 156e12, 80e9, {{"convolutions", 0.147, kNvidia}}},
      // 2,470 images/s; 137 TFLOP/s for 1.7 billion parameters.
      {"A100",
       "16 bits with float32 sums",
       312e12,
       80e9,
       {{"convolutions", 0.194, kNvidia},
        {"transformer", 0.44, "Narayanan et al. 2021, Megatron-LM, table 1"}}},
      // 7,000 images/s of each of 8 GPUs, batch 400; 430 TFLOP/s per GPU.
      {"H100",
       "16 bits with float32 sums",
       989e12,
       94e9,
       {{"convolutions", 0.174, "MLPerf Training v3.0, entry 3.0-2053, ResNet-50 in MXNet, one machine"},
        {"transformer", 0.43, "Dubey et al. 2024, The Llama 3 Herd of Models, table 4"}}},
  };
}

// The last device on which models of `family` were measured; one exists for each family.
const char* NameWith(const std::string& family) {
  const char* name = "V100";
  for (const MeasuredDevice& device : MeasuredDevices()) {
    for (const MeasuredUtilisation& measured : device.measured) {
      if (family == measured.family) name = device.name;
    }
  }
  return name;
}

}  // namespace

const std::vector<MeasuredDevice>& MeasuredDevices() {
  static const auto& devices = *new std::vector<MeasuredDevice>(MakeDevices());
  return devices;
}

absl::StatusOr<Workload> OnDevice(const Workload& workload, const std::string& name) {
  std::vector<std::string> names;
  for (const MeasuredDevice& device : MeasuredDevices()) {
    names.push_back(device.name);
    if (name != device.name) continue;
    if (!(workload.flops_per_sample > 0) || workload.family.empty()) {
      return InvalidArgument(
          "workload ", workload.name,
          " has no lines '# flops_per_sample: N' and '# family: NAME'; add them, or use --compute_speedup");
    }
    for (const MeasuredUtilisation& measured : device.measured) {
      if (workload.family != measured.family) continue;
      const double ms =
          1e3 * workload.batch * workload.flops_per_sample / (measured.share * device.peak_flops_per_s);
      Workload on = Faster(workload, workload.compute_ms() / ms);
      on.device =
          absl::StrCat(device.name, ", ", device.precision, ", ", absl::AlphaNum(100 * measured.share),
                       "% of its peak as measured (", measured.source, ")");
      return on;
    }
    return InvalidArgument(
        "no measured speed of ", workload.family, " on ", name,
        " is known; use --compute_speedup with the factor to the recorded device, or to that of --device ",
        NameWith(workload.family));
  }
  return NotFound(
      Tr("unknown device '$0'; use one of $1, with --compute_speedup X for a GPU that is X times as fast",
         name, absl::StrJoin(names, ", ")));
}

double MostMemoryOf(const std::string& device) {
  absl::string_view name = device;
  absl::ConsumePrefix(&name, "computed for ");
  for (const MeasuredDevice& known : MeasuredDevices()) {
    if (absl::StartsWith(name, known.name)) return known.memory_bytes;
  }
  return 0;
}

bool ComputesIn16Bits(const Workload& workload) {
  return absl::StrContains(workload.device, "16 bits") || absl::StrContains(workload.device, "float16");
}

bool RecordedOnCpu(const Workload& workload) {
  return absl::StrContains(absl::AsciiStrToLower(workload.device), "cpu");
}

}  // namespace psring
