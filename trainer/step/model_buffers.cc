#include "trainer/step/model_buffers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace psring {
namespace {

// A server keeps its newest two checkpoints, several servers three.
constexpr size_t kMaxKept = 3;

}  // namespace

absl::StatusOr<std::unique_ptr<ModelBuffers>> ModelBuffers::Create(Worker& worker,
                                                                   const ParameterLayout& layout,
                                                                   Stream& compute, int64_t kept_every) {
  std::unique_ptr<ModelBuffers> made(new ModelBuffers(worker, layout, compute, kept_every));
  if (layout.buffers().empty()) return made;
  PSRING_ASSIGN_OR_RETURN(made->buffers_,
                          worker.device.Allocate(layout.initial_buffers().size() * sizeof(float)));
  PSRING_ASSIGN_OR_RETURN(made->host_side_, AllocateHostSide(worker.device, made->buffers_));
  if (worker.statistics == nullptr) return made;
  size_t most = 0;  // a buffer has a value for each channel
  for (const Tensor& buffer : layout.buffers()) most = std::max(most, buffer.count);
  made->statistics_.emplace(*worker.statistics, most);
  return made;
}

absl::Status ModelBuffers::Load(const std::vector<float>& values) {
  const std::vector<float>& from = values.empty() ? layout_.initial_buffers() : values;
  PSRING_CHECK(from.size() * sizeof(float) == buffers_.bytes());
  if (from.empty()) return absl::OkStatus();
  compute_.Copy(buffers_.data(), from.data(), buffers_.bytes());
  return compute_.Synchronize();
}

absl::StatusOr<std::vector<float>> ModelBuffers::OnHost() {
  const HostView values = view();
  values.Download(compute_);
  PSRING_RETURN_IF_ERROR(compute_.Synchronize());
  return std::vector<float>(values.host.floats(), values.host.floats() + values.host.count);
}

absl::Status ModelBuffers::Keep(int64_t step) {
  if (kept_every_ == 0 || buffers_.bytes() == 0) return absl::OkStatus();
  if (!kept_.empty() && step % kept_every_ != 0) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(kept_[step], OnHost());
  if (kept_.size() > kMaxKept) kept_.erase(kept_.begin());
  return absl::OkStatus();
}

absl::Status ModelBuffers::Restore(int64_t step) {
  if (buffers_.bytes() == 0) return absl::OkStatus();
  kept_.erase(kept_.upper_bound(step), kept_.end());
  if (const auto kept = kept_.find(step); kept != kept_.end()) return Load(kept->second);
  worker_.on_note(absl::StrCat("the running statistics of step ", step,
                               " are not stored any more; they "
                               "continue with the present ones"));
  return absl::OkStatus();
}

}  // namespace psring
