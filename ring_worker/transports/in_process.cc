#include <cstring>
#include <deque>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/cpu_kernels.h"
#include "common/mutex.h"
#include "ring_worker/transport.h"

namespace psring {
namespace {

struct PostedSend {
  Tag tag;
  CallInfo call;
  ConstSpan from;
};

// What the ranks share. A send is posted to the receiver, who takes it straight from the sender's memory.
struct Exchange {
  explicit Exchange(int ranks) : ranks(ranks) {}

  struct Rank {
    std::map<int, std::deque<PostedSend>> inbox;  // by sender
    std::map<Tag, int> unread_sends;
    int reads_in_progress = 0;  // of this rank's memory, by others, outside the lock
    bool left = false;
    absl::Status failure;
    Traffic traffic;
    CondVar changed;
  };

  Mutex mutex;
  std::vector<Rank> ranks ABSL_GUARDED_BY(mutex);
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(int rank, int size, std::shared_ptr<Exchange> exchange)
      : rank_(rank), size_(size), exchange_(std::move(exchange)) {}

  ~InProcessTransport() override {
    MutexLock lock(exchange_->mutex);
    self().left = true;
    // Nobody may read this rank's memory any more.
    for (Exchange::Rank& rank : exchange_->ranks) rank.inbox.erase(rank_);
    while (self().reads_in_progress > 0) self().changed.Wait(exchange_->mutex);
    for (Exchange::Rank& rank : exchange_->ranks) rank.changed.NotifyAll();
  }

  std::string name() const override { return "in_process"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void BeginCall(const CallInfo& call) override { call_ = call; }

  void Send(int peer, Tag tag, ConstSpan from) override {
    PSRING_CHECK(peer >= 0 && peer < size_ && peer != rank_ && tag.call == call_.number);
    MutexLock lock(exchange_->mutex);
    ++self().unread_sends[tag];
    Exchange::Rank& receiver = exchange_->ranks[peer];
    receiver.inbox[rank_].push_back({tag, call_, from});
    receiver.changed.NotifyAll();
  }

  void Receive(int peer, Tag tag, Span to, Combine combine) override {
    PSRING_CHECK(peer >= 0 && peer < size_ && peer != rank_ && tag.call == call_.number);
    receives_.push_back({peer, tag, to, combine});
  }

  absl::Status Wait(Tag tag, absl::Time deadline) override {
    const absl::Time begin = absl::Now();
    MutexLock lock(exchange_->mutex);
    while (true) {
      if (!self().failure.ok()) {
        // The caller may free its memory once this returns.
        while (self().reads_in_progress > 0) self().changed.Wait(exchange_->mutex);
        return self().failure;
      }
      // Receives complete in the order in which they were started: the earliest unfinished transfer of all
      // ranks is then always at the front of its queue, so there is no deadlock, and sums have one order.
      if (!receives_.empty() && TakeFront()) continue;
      if (!Unfinished(tag)) return absl::OkStatus();
      if (const int peer = PeerThatLeft(); peer >= 0) {
        Fail(absl::UnavailableError(
            absl::StrCat("rank ", peer, " has left; rank ", rank_, " still needs it for ", ToString(call_))));
      } else if (!self().changed.WaitUntil(exchange_->mutex, deadline) && self().failure.ok() &&
                 absl::Now() >= deadline && !FrontIsThere() && Unfinished(tag)) {
        Fail(absl::DeadlineExceededError(absl::StrCat("rank ", rank_, " waited ",
                                                      absl::FormatDuration(absl::Now() - begin), " for ",
                                                      PeersAwaited(), " (", ToString(tag), ")")));
      }
    }
  }

  void Abort(absl::Status why) override {
    MutexLock lock(exchange_->mutex);
    Fail(std::move(why));
  }

  Traffic traffic() const override {
    MutexLock lock(exchange_->mutex);
    return exchange_->ranks[rank_].traffic;
  }

 private:
  struct PendingReceive {
    int peer;
    Tag tag;
    Span to;
    Combine combine;
  };

  Exchange::Rank& self() ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) { return exchange_->ranks[rank_]; }

  void Fail(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    if (!self().failure.ok()) return;
    self().failure = why;
    for (Exchange::Rank& rank : exchange_->ranks) {
      if (rank.failure.ok()) {
        rank.failure = absl::Status(why.code(), absl::StrCat("rank ", rank_, " gave up: ", why.message()));
      }
      rank.changed.NotifyAll();
    }
  }

  bool FrontIsThere() ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    return !receives_.empty() && !self().inbox[receives_.front().peer].empty();
  }

  // Completes the first receive if its send is there. Lets go of the lock while it moves the data.
  bool TakeFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    if (!FrontIsThere()) return false;
    const PendingReceive receive = receives_.front();
    const PostedSend send = self().inbox[receive.peer].front();
    if (send.tag != receive.tag || send.call != call_ || send.from.count != receive.to.count) {
      Fail(absl::FailedPreconditionError(absl::StrCat(
          "rank ", receive.peer, " is in ", ToString(send.call), " and sends ", send.from.bytes(), " bytes (",
          ToString(send.tag), "); rank ", rank_, " is in ", ToString(call_), " and expects ",
          receive.to.bytes(), " bytes (", ToString(receive.tag), ")")));
      return true;
    }
    receives_.pop_front();
    self().inbox[receive.peer].pop_front();
    Exchange::Rank& sender = exchange_->ranks[receive.peer];
    ++sender.reads_in_progress;

    exchange_->mutex.Unlock();
    if (receive.combine == Combine::kAdd) {
      cpu::Add(send.from.count, receive.to.floats(), send.from.floats());
    } else if (send.from.count > 0) {
      std::memcpy(receive.to.data, send.from.data, send.from.bytes());
    }
    exchange_->mutex.Lock();

    --sender.reads_in_progress;
    sender.traffic.payload_tx_bytes += send.from.bytes();
    self().traffic.payload_rx_bytes += send.from.bytes();
    auto unread = sender.unread_sends.find(send.tag);
    if (--unread->second == 0) sender.unread_sends.erase(unread);
    sender.changed.NotifyAll();
    return true;
  }

  bool Unfinished(const Tag& tag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    for (const PendingReceive& receive : receives_) {
      if (receive.tag == tag) return true;
    }
    return self().unread_sends.contains(tag);
  }

  // Peers that this rank's unfinished transfers are with: senders first, then those that have not read.
  std::vector<int> Awaited() ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    std::vector<int> peers;
    if (!receives_.empty()) peers.push_back(receives_.front().peer);
    for (int peer = 0; peer < size_; ++peer) {
      const auto& inbox = exchange_->ranks[peer].inbox;
      const auto sent = inbox.find(rank_);
      const bool unread = sent != inbox.end() && !sent->second.empty();
      if (unread && (peers.empty() || peers.front() != peer)) peers.push_back(peer);
    }
    return peers;
  }

  int PeerThatLeft() ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    for (int peer : Awaited()) {
      if (exchange_->ranks[peer].left) return peer;
    }
    return -1;
  }

  std::string PeersAwaited() ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    std::string text;
    for (int peer : Awaited()) absl::StrAppend(&text, text.empty() ? "" : " and ", "rank ", peer);
    return text;
  }

  const int rank_;
  const int size_;
  const std::shared_ptr<Exchange> exchange_;
  CallInfo call_;
  std::deque<PendingReceive> receives_;  // of the one thread that calls
};

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int ranks) {
  auto exchange = std::make_shared<Exchange>(ranks);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank) {
    transports.push_back(std::make_unique<InProcessTransport>(rank, ranks, exchange));
  }
  return transports;
}

}  // namespace psring
