// What a training hands to its records: the times of a step, copies of the weights, the result.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "trainer/step/training.h"

namespace psring {
namespace {

// In MiB, for `parameters` of float32.
double StateMb(const OptimizerConfig& optimizer, size_t parameters) {
  return static_cast<double>(OptimizerSlots(optimizer.kind).size() * parameters * sizeof(float)) / (1 << 20);
}

}  // namespace

// After the streams were synchronized and the clock was advanced.
Recorder::Step Training::Measured(const StepInfo& info, StepReport report, int64_t begin_ns, int64_t end_ns) {
  Recorder::Step step{.info = info,
                      .report = std::move(report),
                      .begin_ns = begin_ns,
                      .end_ns = end_ns,
                      .times = executor_->Times(),
                      .names_passes = part_.has_stages(),
                      .delay_ns = delay_->slept_ns(),
                      .loss_sum = score_.loss_sum};
  RankTimes& times = step.times;
  TensorAxis::Times sums = part_.TakeTimes();
  for (const auto& [begin, end] : sums.waits) {
    times.exposed.push_back({begin, end});
    times.compute_ns -= end - begin;
  }
  step.busy = std::move(sums.busy);
  times.bubbles.insert(times.bubbles.end(), waits_.begin(), waits_.end());
  if (replicas_ != nullptr) {
    step.replicas = replicas_->Take();
    step.replicas->device0_extra_mb += StateMb(updates_.optimizer, memory_->weights().device.count);
  }
  return step;
}

// Of this rank, with no work in progress.
absl::StatusOr<ConstSpan> Training::WeightsOnHost() {
  const HostView view = OwnWeights();
  view.Download(*compute_);
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  return ConstSpan(view.host);
}

absl::Status Training::KeepSnapshot() {
  PSRING_ASSIGN_OR_RETURN(const ConstSpan weights, WeightsOnHost());
  PSRING_ASSIGN_OR_RETURN(std::vector<float> buffers, buffers_->OnHost());
  recorder_->Keep({.samples = clock_->samples(), .updates = clock_->updates() * updates_of_step_}, weights,
                  std::move(buffers));
  return absl::OkStatus();
}

absl::StatusOr<BatchScore> Training::ScoreCopy(const WeightsCopy& copy,
                                               const std::function<void(int64_t)>& on_batch) {
  // Not needed for gradients any more, or the last snapshot is what there is now.
  const Span weights = shards_.shards_gradient() ? OwnWeights().device : memory_->gradient().device;
  compute_->Copy(weights.data, copy.weights.data(), weights.bytes());
  PSRING_RETURN_IF_ERROR(buffers_->Load(copy.buffers));
  return Score(weights, on_batch);
}

// What was allocated.
MemoryFigures Training::Memory() const {
  if (replicas_ != nullptr || rows_->touched() != nullptr) return {};
  const auto mb = [](size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return {.params_mb = mb(memory_->weights().device.bytes() + buffers_->view().device.bytes() +
                          executor_->version_bytes()),
          .grads_mb = mb(memory_->gradient().device.bytes() + executor_->gradient_bytes()),
          .optimizer_mb = mb(strategy_.sync->state_bytes()),
          .activations_mb = mb(executor_->slot_bytes() + part_.reserved_bytes())};
}

// All of the result except the curve.
absl::Status Training::Describe() {
  result_.rank = worker_.job_rank();
  result_.world_size = worker_.pipeline != nullptr ? worker_.pipeline->ranks : worker_.world_size;
  result_.strategy = options_.strategy;
  result_.device = worker_.device.name();
  result_.ops = ops_->name();
  result_.algorithm = strategy_row_.algorithm;
  if (worker_.group != nullptr) {  // not for a single worker
    result_.backend = worker_.group->info().backend;
    if (!strategy_row_.has_parameters_on_servers()) result_.algorithm = worker_.group->info().algorithm;
    result_.transport = worker_.group->info().transport;
    result_.wires = worker_.group->info().wires;
    const bool pinned = worker_.device.gpu() >= 0 && !worker_.group->info().on_gpu;
    result_.payload = absl::StrCat(worker_.group->info().transport, pinned ? " through pinned memory" : "");
  }
  if (worker_.client != nullptr) {
    if (worker_.group == nullptr || strategy_row_.has_parameters_on_servers()) {
      result_.backend = "native";
      result_.transport = worker_.client->status().payload;
      result_.payload = worker_.client->status().payload;
    }
    result_.placement = options_.server_placement;
    for (const std::string_view wire : worker_.client->status().wires) {
      if (std::ranges::find(result_.wires, wire) == result_.wires.end()) result_.wires.emplace_back(wire);
    }
  }
  result_.parameters = static_cast<int64_t>(whole().parameters());
  result_.global_batch = plan_.global_batch;
  if (part_.is_first_rank()) result_.flags = TrainingArguments(options_);
  result_.optimizer = OptimizerName(updates_.optimizer.kind);
  result_.lr = updates_.schedule.base;
  result_.steps = plan_.steps;
  for (const Bucket& bucket : pushed_buckets()) result_.bucket_elements.push_back(bucket.count);
  if (shards_weights()) result_.gathered_elements = executor_->GatheredElements(shards_.weights.keeps);
  if (const ModelPart* const part = part_.model_part(); part != nullptr) {
    for (const ReadyRange& tied : part->tied) result_.tied_elements += static_cast<int64_t>(tied.count);
  }
  result_.memory = Memory();
  result_.rows = rows_->mean();
  recorder_->End();
  PSRING_ASSIGN_OR_RETURN(result_.weights_hash, HashOfWeights());
  return absl::OkStatus();
}

}  // namespace psring
