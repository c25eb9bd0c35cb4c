// What a model has beside its weights that is not trained, such as BatchNorm's running statistics.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/device/device.h"
#include "common/device/host_view.h"
#include "trainer/layers/shared_statistics.h"
#include "trainer/step/train_loop.h"

namespace psring {

// Used by the training thread. A model without buffers has an empty one.
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
