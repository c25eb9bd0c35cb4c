// The memory of a model during training: weights and gradient, and buffers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/device/host_view.h"
#include "trainer/layers/shared_statistics.h"
#include "trainer/step/train_loop.h"
#include "trainer/strategies/sync_strategy.h"

namespace psring {

// The weights and the gradient of this rank: flat buffers in memory that the group's ranks and the server on
// this host read in place if they can.
class WeightMemory {
 public:
  struct Options {
    size_t weights = 0, gradient = 0;  // elements
    bool server_shares = false;        // a parameter server on this host may use both
    bool group_sends_weights = false;  // and not only gradients
  };
  // `worker` is borrowed. Registers with its groups, if it has Worker::registered, what they send.
  static absl::StatusOr<std::unique_ptr<WeightMemory>> Create(Worker& worker, const Options& options);
  // Passes memory that others may still use on to Worker::registered.
  ~WeightMemory();

  HostView weights() const { return HostView::Of(weights_, host_weights_); }
  HostView gradient() const { return gradient_; }
  // For SyncStrategy::Start: where both are. The rest is not set.
  TrainingState State() const;

 private:
  WeightMemory(Worker& worker, const Options& options) : worker_(worker), options_(options) {}

  absl::Status AllocateGradient();
  absl::Status Register(const Buffer& memory);
  bool group_shares() const { return worker_.group != nullptr && worker_.registered != nullptr; }
  // If the group sends weights: it gets the memory in which it sees them.
  bool registers_weights() const { return group_shares() && options_.group_sends_weights; }
  Buffer& sent_weights() {
    return host_weights_.data() != nullptr && !worker_.group->info().on_gpu ? host_weights_ : weights_;
  }
  std::string OnGpu(const Buffer& memory) const;

  Worker& worker_;
  const Options options_;
  Buffer weights_, own_gradient_;
  Buffer host_weights_, host_gradient_;  // if the host cannot read the device's memory
  HostView gradient_;
  int gradient_fd_ = -1;
};

// What is not trained, such as BatchNorm's running statistics. Used by the training thread. A model without
// buffers has an empty one.
class ModelBuffers {
 public:
  // All are borrowed; `layout` is that of this rank's model. `kept_every`: Keep copies the buffers after so
  // many steps; 0: never.
  static absl::StatusOr<std::unique_ptr<ModelBuffers>> Create(Worker& worker, const ParameterLayout& layout,
                                                              Stream& compute, int64_t kept_every);

  HostView view() const { return HostView::Of(buffers_, host_side_); }
  // Of all ranks (--sync_batch_norm); null: each rank has its own.
  SharedStatistics* statistics() { return statistics_.has_value() ? &*statistics_ : nullptr; }

  // With no work in progress: those of a checkpoint or copy; empty: the initial ones.
  absl::Status Load(const std::vector<float>& values);
  absl::StatusOr<std::vector<float>> OnHost();

  // Before `step`: a copy, since a synchronous server that restarts may go back to this step.
  absl::Status Keep(int64_t step);
  // Training goes back to `step`. Without its copy the present values stay, which the user is told.
  absl::Status Restore(int64_t step);

 private:
  ModelBuffers(Worker& worker, const ParameterLayout& layout, Stream& compute, int64_t kept_every)
      : worker_(worker), layout_(layout), compute_(compute), kept_every_(kept_every) {}

  Worker& worker_;
  const ParameterLayout& layout_;
  Stream& compute_;
  const int64_t kept_every_;
  Buffer buffers_, host_side_;
  std::optional<SharedStatistics> statistics_;
  std::map<int64_t, std::vector<float>> kept_;  // by the step that begins with them
};

}  // namespace psring
