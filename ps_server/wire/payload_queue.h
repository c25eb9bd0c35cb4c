// What one side of a payload connection has to send: messages with their payload, chunk by chunk.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "ps_server/wire/payload_socket.h"

namespace psring {

// `Message`: message::ToServer or message::ToWorker. Any thread; Write and Close: that of the socket.
template <typename Message>
class PayloadQueue {
 public:
  struct Entry {
    Message message;
    Bytes data = {};  // readable until `keep` is released, on any thread
    std::shared_ptr<const void> keep = nullptr;
    uint64_t after = 0;  // PayloadHeader
    // The part of `data` to send: from the beginning of a chunk to that of another, or to the end.
    size_t from = 0, upto = 0;
    bool is_whole() const { return upto == data.size(); }  // or the last part
  };

  void Add(Entry entry) {
    MutexLock lock(mutex_);
    if (!closed_) entries_.push_back(std::move(entry));
  }
  bool empty() const {
    MutexLock lock(mutex_);
    return entries_.empty();
  }
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    MutexLock lock(mutex_);
    for (const Entry& entry : entries_) visit(entry);
  }

  // Sends more of the first chunk, if the socket accepts it.
  absl::Status Write(PayloadSocket& socket) {
    if (!socket.may_write()) return absl::OkStatus();
    if (!is_sending_) {
      MutexLock lock(mutex_);
      if (entries_.empty()) return absl::OkStatus();
      Entry& front = entries_.front();
      message::SetOffset(front.message, front.from);
      payload_ = front.data.subspan(front.from, ChunkLength(front.data.size(), front.from));
      header_ = {.bytes = static_cast<uint32_t>(payload_.size()),
                 .after = front.after,
                 .fields = FieldsOf(front.message)};
      is_sending_ = true;
    }
    PSRING_ASSIGN_OR_RETURN(const bool sent, socket.Send(header_, payload_));
    if (!sent) return absl::OkStatus();
    is_sending_ = false;
    Entry complete;  // released without the lock
    MutexLock lock(mutex_);
    Entry& front = entries_.front();
    front.from += payload_.size();
    if (front.from < front.upto) return absl::OkStatus();
    complete = std::move(front);
    entries_.pop_front();
    return absl::OkStatus();
  }

  // Releases all entries, and those that are added later.
  void Close() {
    std::deque<Entry> unsent;
    MutexLock lock(mutex_);
    closed_ = true;
    entries_.swap(unsent);
  }

 private:
  // Of the chunk that is being sent.
  PayloadHeader header_;
  Bytes payload_;
  bool is_sending_ = false;

  mutable Mutex mutex_;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // the first may be sent in part
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace psring
