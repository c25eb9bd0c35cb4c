#include "ring_worker/groups/channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {

absl::StatusOr<std::unique_ptr<Channel>> Channel::Create(std::unique_ptr<ProcessGroup> pair, Device& device,
                                                         const std::string& name,
                                                         std::shared_ptr<Stream> lane) {
  if (pair->size() != 2) {
    return InvalidArgument("channel ", name, ": a channel connects two ranks, not ", pair->size());
  }
  if (!device.host_reads_memory() && !pair->info().on_gpu) {
    const std::string& why = pair->info().through_host;
    return InvalidArgument("channel ", name, ": ", pair->info().backend, " cannot exchange memory of ",
                           device.name(), why.empty() ? "" : absl::StrCat(" (", why, ")"),
                           "; use --device cpu");
  }
  if (lane == nullptr) lane = device.NewStream(StreamKind::kBackground, name);
  return std::unique_ptr<Channel>(new Channel(std::move(pair), std::move(lane)));
}

absl::Status Channel::Transfer(Span data) { return pair_->Broadcast(data, /*root=*/0, *lane_); }

}  // namespace psring
