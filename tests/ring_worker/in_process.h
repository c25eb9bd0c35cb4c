// A transport between ranks that are threads of one process: a receiver reads the sender's memory.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/measure/wires.h"
#include "common/reduce/reduce.h"
#include "ring_worker/transports/transport.h"

namespace psring {

struct InProcessSend {
  Tag tag;
  CallInfo call;
  ConstSpan from;
  std::shared_ptr<std::vector<std::byte>> copy;  // the values if the sender's memory may change
};

// Shared by the ranks. A send is posted to the receiver, which reads the sender's memory directly.
struct InProcessExchange {
  explicit InProcessExchange(int ranks) : ranks(ranks) {}

  struct Rank {
    std::map<int, std::deque<InProcessSend>> inbox;  // by sender
    std::vector<Tag> unread_sends;
    int reads_in_progress = 0;  // of this rank's memory, by other ranks, outside the lock
    bool left = false;
    absl::Status failure;
    CondVar changed;
  };

  Mutex mutex;
  std::vector<Rank> ranks ABSL_GUARDED_BY(mutex);
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(int rank, int size, std::shared_ptr<InProcessExchange> exchange)
      : Transport({.name = "in_process",
                   .wires = {kOneProcessWire},
                   .rank = rank,
                   .size = size,
                   .ranks_per_node = size,
                   .traits = {.segment_bytes = 64 << 10, .max_segment_bytes = SIZE_MAX, .depth = 2}}),
        rank_(rank),
        size_(size),
        exchange_(std::move(exchange)) {}

  ~InProcessTransport() override {
    MutexLock lock(exchange_->mutex);
    self().left = true;
    // From now on other ranks must not read this rank's memory; they may still read copies.
    for (InProcessExchange::Rank& rank : exchange_->ranks) {
      std::erase_if(rank.inbox[rank_], [](const InProcessSend& send) { return send.copy == nullptr; });
    }
    while (self().reads_in_progress > 0) self().changed.Wait(exchange_->mutex);
    for (InProcessExchange::Rank& rank : exchange_->ranks) rank.changed.NotifyAll();
  }

  void BeginCall(const CallInfo& call) override { call_ = call; }

  void Send(int peer, Tag tag, ConstSpan from, bool copy) override {
    PSRING_CHECK(peer >= 0 && peer < size_ && peer != rank_ && tag.call == call_.number);
    InProcessSend send = {tag, call_, from, nullptr};
    if (copy) {
      const auto* bytes = static_cast<const std::byte*>(from.data);
      send.copy = std::make_shared<std::vector<std::byte>>(bytes, bytes + from.bytes());
      send.from.data = send.copy->data();
    }
    CountSent(from.bytes());
    MutexLock lock(exchange_->mutex);
    if (!copy) self().unread_sends.push_back(tag);
    InProcessExchange::Rank& receiver = exchange_->ranks[peer];
    receiver.inbox[rank_].push_back(std::move(send));
    receiver.changed.NotifyAll();
  }

  void Receive(Tag tag, Span to, ReduceOp op, const void* own, absl::Span<const int> sources) override {
    PSRING_CHECK(tag.call == call_.number);
    receives_.push_back({tag, to, op, own, {sources.begin(), sources.end()}});
  }

  absl::Status Register(const Buffer&) override { return absl::OkStatus(); }
  void Unregister(const Buffer&) override {}

  absl::Status Wait(Tag tag, absl::Duration timeout) override {
    const MonotonicTime begin = MonotonicNow();
    const MonotonicTime deadline = begin + timeout;
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
                 MonotonicNow() >= deadline && !FrontIsThere() && Unfinished(tag)) {
        Fail(absl::DeadlineExceededError(absl::StrCat("rank ", rank_, " waited ",
                                                      absl::FormatDuration(MonotonicNow() - begin), " for ",
                                                      PeersAwaited(), " (", ToString(tag), ")")));
      }
    }
  }

  void Abort(absl::Status why) override {
    MutexLock lock(exchange_->mutex);
    Fail(std::move(why));
  }

 private:
  struct PendingReceive {
    Tag tag;
    Span to;
    ReduceOp op;
    const void* own;
    std::vector<int> sources;
  };

  InProcessExchange::Rank& self() ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    return exchange_->ranks[rank_];
  }

  void Fail(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    if (!self().failure.ok()) return;
    self().failure = why;
    for (InProcessExchange::Rank& rank : exchange_->ranks) {
      if (rank.failure.ok()) {
        rank.failure = absl::Status(why.code(), absl::StrCat("rank ", rank_, " gave up: ", why.message()));
      }
      rank.changed.NotifyAll();
    }
  }

  // The first source of the front receive that has not sent yet; -1: all have.
  int FirstMissing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    for (int source : receives_.front().sources) {
      if (source != rank_ && self().inbox[source].empty()) return source;
    }
    return -1;
  }
  bool FrontIsThere() ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    return !receives_.empty() && FirstMissing() < 0;
  }

  // Completes the first receive if its sends have arrived. Releases the lock while it moves the data.
  bool TakeFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    if (!FrontIsThere()) return false;
    const PendingReceive receive = std::move(receives_.front());
    receives_.pop_front();
    std::vector<InProcessSend> sends;
    std::vector<const void*> terms;
    for (int source : receive.sources) {
      if (source == rank_) {
        terms.push_back(receive.own);
        continue;
      }
      sends.push_back(self().inbox[source].front());
      const InProcessSend& send = sends.back();
      if (!(send.tag == receive.tag) || !(send.call == call_) || send.from.count != receive.to.count) {
        Fail(absl::FailedPreconditionError(
            absl::StrCat("rank ", source, " is in ", ToString(send.call), " and sends ", send.from.bytes(),
                         " bytes (", ToString(send.tag), "); rank ", rank_, " is in ", ToString(call_),
                         " and expects ", receive.to.bytes(), " bytes (", ToString(receive.tag), ")")));
        return true;
      }
      self().inbox[source].pop_front();
      terms.push_back(send.from.data);
    }
    for (int source : receive.sources) ++exchange_->ranks[source].reads_in_progress;

    exchange_->mutex.Unlock();
    cpu::Reduce(receive.op, receive.to.type, receive.to.count, receive.to.data, terms.data(),
                static_cast<int>(terms.size()));
    exchange_->mutex.Lock();

    auto send = sends.begin();
    for (int source : receive.sources) {
      InProcessExchange::Rank& sender = exchange_->ranks[source];
      --sender.reads_in_progress;
      if (source != rank_) {
        CountReceived(send->from.bytes());
        auto& unread = sender.unread_sends;
        if (send->copy == nullptr) unread.erase(std::find(unread.begin(), unread.end(), send->tag));
        ++send;
      }
      sender.changed.NotifyAll();
    }
    return true;
  }

  bool Unfinished(const Tag& tag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    for (const PendingReceive& receive : receives_) {
      if (receive.tag == tag) return true;
    }
    const auto& unread = self().unread_sends;
    return std::find(unread.begin(), unread.end(), tag) != unread.end();
  }

  // Peers of this rank's unfinished transfers: senders first, then those that have not read.
  std::vector<int> Awaited() ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
    std::vector<int> peers;
    if (!receives_.empty() && FirstMissing() >= 0) peers.push_back(FirstMissing());
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
  const std::shared_ptr<InProcessExchange> exchange_;
  CallInfo call_;
  std::deque<PendingReceive> receives_;  // used by the calling thread only
};

// `ranks` connected transports.
inline std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int ranks) {
  auto exchange = std::make_shared<InProcessExchange>(ranks);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank) {
    transports.push_back(std::make_unique<InProcessTransport>(rank, ranks, exchange));
  }
  return transports;
}

}  // namespace psring
