// What a model sends over the network, and when: its gradient tensors in the order in which backward finishes
// them. Recorded once on a GPU, then replayed on a timer or simulated. Pure, except for LoadWorkload.
//
// As a file:
//    # batch: 32                 samples of one worker's step
//    # device: V100              where it was recorded
//    # forward_ms: 63.3          from the step's begin until backward begins
//    # backward_ms: 64.8         optional: until backward ends; else the last ready_ms
//    name,bytes,ready_ms
//    fc.bias,4000,0.5526         ready_ms: since backward began, never less than in the row above
// Optional, for other devices (devices.h): `# flops_per_sample: 2.45e10`, the floating-point operations of
// forward and backward, and `# family: convolutions` or `transformer`. `# tokens_per_sample: 1024`: of texts.
// For pipelines: `# activation_bytes: 393216`, the activations of one sample between two blocks of layers, in
// float32; for tensor parallelism `# heads: 12`, of attention (those of keys, if these are fewer). An
// optional fourth column `declared` is the position of the tensor in the model (from 0), for models whose
// backward does not finish the last tensor first. Other `# key: value` lines (model, sample, source, licence,
// note) describe the workload and its origin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/parameters.h"

namespace psring {

struct GradientTensor {
  std::string name;
  int64_t bytes = 0;    // float32: a multiple of 4, at least 4, at most 4 INT32_MAX
  double ready_ms = 0;  // since backward began
  int declared = -1;    // its position in the model; -1: tensors are declared in reverse order
};

struct Workload {
  std::string name;  // "resnet50", or the file's path
  std::string model, device, sample = "sample", source, licence;
  int batch = 0;
  double forward_ms = 0;
  double flops_per_sample = 0;          // 0: not known
  std::string family;                   // "convolutions" or "transformer"; empty: not known
  double tokens_per_sample = 0;         // of texts; 0: not known
  int64_t activation_bytes = 0;         // of one sample, between two blocks of layers; 0: not known
  int heads = 0;                        // of attention, which tensor parallelism divides; 0: not known
  double backward_ms = 0;               // at least the last ready_ms
  std::vector<GradientTensor> tensors;  // in the order of readiness: last layer first

  int64_t bytes() const;
  double compute_ms() const { return forward_ms + backward_ms; }
};

// Errors name the line and what is wrong with it.
absl::StatusOr<Workload> ParseWorkload(const std::string& name, const std::string& text);

// The built-in workloads, or those of them that `accepts` does.
std::vector<std::string> WorkloadNames(bool (*accepts)(const Workload& workload) = nullptr);
// What is wrong with `model`, the unknown name of a model, if it is a file's or that of a built-in workload:
// --workload replays it. Empty: it is neither.
std::string WorkloadHint(const std::string& model);

// A built-in name, or the path of a file (contains a '/' or ends in ".csv"). NotFound lists the built-in
// names; errors of a file name its path.
absl::StatusOr<Workload> LoadWorkload(const std::string& name_or_path);

// The part of a tensor's name that the tensors of its block of layers share: up to the first number, as in
// "layer4.2.bn1.bias", or without a number up to the first dot.
std::string BlockName(const std::string& tensor);

// The same workload on a device that computes `speedup` times as fast (above 0).
Workload Faster(Workload workload, double speedup);

// Its tensors as a flat buffer whose end is ready first, for PlanBuckets: tensor i of the workload is tensor
// size - 1 - i of the layout.
ParameterLayout LayoutOf(const Workload& workload);

// Its tensors in the order in which the model declares them; `place[i]`: the index of tensor i there.
ParameterLayout DeclaredLayoutOf(const Workload& workload, std::vector<int>& place);

// When each bucket's gradient is complete, in ms since backward began. `buckets`: PlanBuckets over
// LayoutOf(workload).
std::vector<double> BucketReadyMs(const Workload& workload, const std::vector<Bucket>& buckets);

}  // namespace psring
