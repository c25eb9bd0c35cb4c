#include "trainer/pipeline/message_times.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"

namespace psring {
namespace {

constexpr int64_t kMaxSharedSteps = 4;

bool IsKnown(const MessageEnds& ends) { return ends.send.end_ns > 0 && ends.receive.end_ns > 0; }

int64_t Length(const NodeTime& time) { return time.end_ns - time.begin_ns; }

// The shortest time from the begin of a send, by the clock of the sender, until the receiver had its bytes,
// by its own.
int64_t Shortest(const MessageEnds* first, size_t count) {
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (const MessageEnds* ends = first; ends != first + count; ++ends) {
    if (IsKnown(*ends)) shortest = std::min(shortest, ends->receive.end_ns - ends->send.begin_ns);
  }
  return shortest == std::numeric_limits<int64_t>::max() ? 0 : shortest;
}

}  // namespace

std::vector<int64_t> TransferTimes(const std::vector<MessageEnds>& ends, size_t micro_batches) {
  std::vector<int64_t> times(ends.size(), 0);
  for (size_t link = 0; link < ends.size() / micro_batches; ++link) {
    const int64_t there = Shortest(&ends[link * micro_batches], micro_batches);
    const int64_t back = Shortest(&ends[(link ^ 1) * micro_batches], micro_batches);
    // What the receiver's clock is ahead of the sender's.
    const int64_t ahead = there >= 0 && back >= 0 ? 0 : (there - back) / 2;
    for (size_t i = link * micro_batches; i < (link + 1) * micro_batches; ++i) {
      if (!IsKnown(ends[i])) continue;
      const auto& [send, receive] = ends[i];
      const int64_t ready_ns = std::max(send.begin_ns + ahead, receive.begin_ns);
      times[i] =
          std::clamp(receive.end_ns - ready_ns, std::min(Length(send), Length(receive)), Length(receive));
    }
  }
  return times;
}

MessageTimes::MessageTimes(int boundaries, int micro_batches, int64_t warmup_steps)
    : micro_batches_(static_cast<size_t>(micro_batches)),
      steps_to_share_(std::clamp<int64_t>(warmup_steps, 1, kMaxSharedSteps)),
      known_(2 * static_cast<size_t>(boundaries) * micro_batches_) {}

absl::Status MessageTimes::Share(ReplicaExchange& replica, int ranks, const std::vector<MessageEnds>& own,
                                 const std::vector<int>& samples) {
  of_step_.clear();
  if (shared_steps_ == steps_to_share_) return absl::OkStatus();
  std::vector<MessageEnds> all(own.size());
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<MessageEnds> of_rank = own;
    PSRING_RETURN_IF_ERROR(replica.Broadcast(rank, of_rank.data(), of_rank.size()));
    for (size_t i = 0; i < all.size(); ++i) {
      if (of_rank[i].send.end_ns > 0) all[i].send = of_rank[i].send;
      if (of_rank[i].receive.end_ns > 0) all[i].receive = of_rank[i].receive;
    }
  }
  of_step_ = TransferTimes(all, micro_batches_);
  // A first step is slower, and nothing is known of others yet.
  if (shared_steps_++ == 1) known_.assign(known_.size(), {});
  for (size_t i = 0; i < of_step_.size(); ++i) {
    if (of_step_[i] == 0) continue;
    known_[i].sum += static_cast<double>(of_step_[i]) / samples[i % micro_batches_];
    ++known_[i].steps;
  }
  return absl::OkStatus();
}

int64_t MessageTimes::Of(size_t message, int samples, int64_t measured_ns) const {
  if (!of_step_.empty() && of_step_[message] > 0) return std::min(of_step_[message], measured_ns);
  const Known& known = known_[message];
  if (known.steps == 0) return measured_ns;
  return std::min(static_cast<int64_t>(known.sum / known.steps * samples), measured_ns);
}

}  // namespace psring
