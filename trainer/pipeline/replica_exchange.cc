#include "trainer/pipeline/replica_exchange.h"

#include <algorithm>
#include <cstring>

namespace psring {
namespace {

constexpr size_t kBytesAtOnce = 1 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<ReplicaExchange>> ReplicaExchange::Create(ProcessGroup& group,
                                                                         Device& device) {
  PSRING_ASSIGN_OR_RETURN(Buffer memory, device.Allocate(kBytesAtOnce));
  PSRING_ASSIGN_OR_RETURN(Buffer host, AllocateHostSide(device, memory));
  return std::unique_ptr<ReplicaExchange>(
      new ReplicaExchange(group, device, std::move(memory), std::move(host)));
}

ReplicaExchange::ReplicaExchange(ProcessGroup& group, Device& device, Buffer memory, Buffer host)
    : group_(group),
      in_place_(group.info().on_gpu || device.host_reads_memory()),
      memory_(std::move(memory)),
      host_(std::move(host)),
      lane_(device.NewStream(StreamKind::kBackground, "replica")) {}

absl::Status ReplicaExchange::BroadcastBytes(int root, void* data, size_t bytes) {
  auto* const values = static_cast<std::byte*>(data);
  for (size_t at = 0; at < bytes; at += kBytesAtOnce) {
    const size_t now = std::min(kBytesAtOnce, bytes - at);
    const HostView view = HostView::Of(memory_, host_).Slice(0, now / sizeof(float));
    if (group_.rank() == root) std::memcpy(view.host.data, values + at, now);
    if (in_place_) view.Upload(*lane_);
    PSRING_RETURN_IF_ERROR(group_.Broadcast(in_place_ ? view.device : view.host, root, *lane_));
    if (in_place_) view.Download(*lane_);
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    if (group_.rank() != root) std::memcpy(values + at, view.host.data, now);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ReplicaExchange::Whole(const ModelPart& part,
                                                          LayoutPart PositionPart::*member,
                                                          const float* own) {
  const bool buffers = member == &PositionPart::of_buffers;
  std::vector<float> whole(buffers ? part.whole.initial_buffers().size() : part.whole.count()), values;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const PositionPart& of = part.parts[static_cast<size_t>(rank)];
    values.assign(buffers ? of.buffers : of.parameters, 0);
    if (rank == group_.rank()) std::copy_n(own, values.size(), values.begin());
    PSRING_RETURN_IF_ERROR(Broadcast(rank, values.data(), values.size()));
    PutPart(of.*member, values.data(), whole.data());
  }
  return whole;
}

}  // namespace psring
