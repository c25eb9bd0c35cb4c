// The server's side of --server_wire stream: payload connections, and the threads that serve them. A chunk is
// read into the connection's only buffer, and added before the next one is read; answers are sent from the
// weights.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/base/poll_waker.h"
#include "ps_server/server/parameter_server.h"
#include "ps_server/wire/payload_queue.h"

namespace psring {

class PayloadLoop;

// The payload connection of one worker.
class PayloadStream : public std::enable_shared_from_this<PayloadStream> {
 public:
  // The worker's gRPC stream. Both functions are called on the payload connection's thread.
  class Owner {
   public:
    virtual ~Owner() = default;
    // kNotYet: the same again after Wake.
    virtual Receipt OnPayload(const message::ToServer& message, uint64_t after, Bytes payload,
                              Lane& lane) = 0;
    // Once, unless End was called: the connection is lost (Unavailable), or the worker sent something that is
    // not a frame (InvalidArgument).
    virtual void OnPayloadEnd(const absl::Status& why) = 0;
  };

  // `loop` outlives this.
  PayloadStream(MemberSocket socket, PayloadLoop& loop) : loop_(loop), socket_(std::move(socket)) {}

  // False: the worker has closed it. It sends nothing before Begin.
  bool is_open() const;
  // Receives from now on. `owner` is kept until the connection has ended.
  void Begin(std::shared_ptr<Owner> owner);

  // Any thread, without waiting. `after`: see PayloadHeader.
  void Send(Reply reply, uint64_t after);
  void Wake();
  void End();
  // Answers that wait to be sent, and how many of them are rows. Parts of one answer count once.
  struct Unread {
    size_t answers = 0, rows = 0;
  };
  Unread unread() const;

 private:
  friend class PayloadLoop;

  // The rest is called by the loop. Moves what can be moved. False: the connection has ended.
  bool Turn(Lane& lane);
  absl::Status Read(Lane& lane);
  short events() const;
  void Notice(short found);  // by poll()
  bool is_ready() const;     // Turn may move something
  void Close();

  PayloadLoop& loop_;
  PayloadSocket socket_;
  std::vector<std::byte> chunk_;  // being received
  message::ToServer message_;
  bool is_held_ = false;          // it is complete, and the owner has not taken it
  bool is_broken_ = false;        // noticed while one is held, because nothing is read then
  std::shared_ptr<Owner> owner_;  // set by Begin, reset by Close

  std::atomic<bool> woken_{false}, ended_{false};
  PayloadQueue<message::ToWorker> outgoing_;
};

// Thread-safe.
class PayloadStreams {
 public:
  // At most `threads` threads, which start with the first connections. `server` outlives this.
  PayloadStreams(ParameterServer& server, int threads);
  // Ends all connections.
  ~PayloadStreams();

  // Keeps a connection until a Join names `number`, and tells the worker that it may. Closes it if that takes
  // a minute, or if too many wait.
  void Add(uint64_t number, MemberSocket socket);
  // Once. Null: there is none.
  std::shared_ptr<PayloadStream> Take(uint64_t number);

 private:
  struct Waiting {
    uint64_t number;
    std::shared_ptr<PayloadStream> stream;
    MonotonicTime since;
  };
  absl::StatusOr<PayloadLoop*> LeastLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ParameterServer& server_;
  const int threads_;
  Mutex mutex_;
  std::vector<std::unique_ptr<PayloadLoop>> loops_ ABSL_GUARDED_BY(mutex_);
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
