#include "trainer/step/model_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/cuda/cuda_device.h"

namespace psring {
namespace {

// A server keeps its newest two checkpoints, several servers three.
constexpr size_t kMaxKept = 3;

}  // namespace

absl::StatusOr<std::unique_ptr<WeightMemory>> WeightMemory::Create(Worker& worker, const Options& options) {
  std::unique_ptr<WeightMemory> made(new WeightMemory(worker, options));
  const size_t bytes = options.weights * sizeof(float);
  const bool shares_weights = options.server_shares || made->registers_weights();
  PSRING_ASSIGN_OR_RETURN(
      made->weights_, shares_weights ? worker.device.AllocateShared(bytes) : worker.device.Allocate(bytes));
  PSRING_RETURN_IF_ERROR(made->AllocateGradient());
  PSRING_ASSIGN_OR_RETURN(made->host_weights_, AllocateHostSide(worker.device, made->weights_));
  if (made->registers_weights()) PSRING_RETURN_IF_ERROR(made->Register(made->sent_weights()));
  return made;
}

WeightMemory::~WeightMemory() {
  if (registers_weights()) worker_.registered->push_back(std::move(sent_weights()));
  // The server may have them open until the client is destroyed.
  if (worker_.registered == nullptr || worker_.client == nullptr) return;
  if (worker_.device.gpu() < 0 || worker_.client->status().payload != "cuda_ipc") return;
  worker_.registered->push_back(std::move(weights_));
  worker_.registered->push_back(std::move(own_gradient_));
}

TrainingState WeightMemory::State() const {
  const HostView seen = weights();
  return {.weights = seen,
          .gradient = gradient_,
          .weights_fd = (seen.is_one() ? weights_ : host_weights_).shared_fd(),
          .gradient_fd = gradient_fd_,
          .weights_on_gpu = OnGpu(weights_),
          .gradient_on_gpu = OnGpu(own_gradient_)};
}

// For a parameter server on a GPU of this host; empty: none can use it, or the driver does not share memory.
std::string WeightMemory::OnGpu(const Buffer& memory) const {
  if (!options_.server_shares || worker_.device.gpu() < 0) return "";
  return ExportMemory(worker_.device, memory).value_or("");
}

// The gradient is in memory that the server or the group's ranks on this host can read in place.
absl::Status WeightMemory::AllocateGradient() {
  const size_t bytes = options_.gradient * sizeof(float);
  PSRING_ASSIGN_OR_RETURN(own_gradient_, options_.server_shares || group_shares()
                                             ? worker_.device.AllocateShared(bytes)
                                             : worker_.device.Allocate(bytes));
  const bool through_host = worker_.group != nullptr && !worker_.group->info().on_gpu;
  if (through_host || worker_.client != nullptr) {
    PSRING_ASSIGN_OR_RETURN(host_gradient_, AllocateHostSide(worker_.device, own_gradient_));
  }
  const bool has_host_side = host_gradient_.data() != nullptr;
  gradient_ = HostView::Of(own_gradient_, host_gradient_);
  gradient_fd_ = (has_host_side ? host_gradient_ : own_gradient_).shared_fd();
  if (!group_shares()) return absl::OkStatus();
  worker_.registered->push_back(std::move(has_host_side && through_host ? host_gradient_ : own_gradient_));
  return Register(worker_.registered->back());
}

absl::Status WeightMemory::Register(const Buffer& memory) {
  const ShardGroups* const parts = worker_.shard_groups;
  for (ProcessGroup* const of : {worker_.group, parts != nullptr ? parts->shards.get() : nullptr,
                                 parts != nullptr ? parts->copies.get() : nullptr}) {
    auto* const group = dynamic_cast<MemoryRegistration*>(of);
    if (group != nullptr) PSRING_RETURN_IF_ERROR(group->Register(memory));
  }
  return absl::OkStatus();
}

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
