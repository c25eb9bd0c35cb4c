// The worker's side of --server_wire stream: sends gradients and receives answers on a payload connection, on
// a thread of its own, so that both directions move while the workers' threads compute.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/poll_waker.h"
#include "ps_server/wire/payload_socket.h"

namespace psring {

class PayloadClient {
 public:
  // Its functions are called on the connection's thread.
  class User {
   public:
    virtual ~User() = default;
    // Receives more of the payload of a frame whose header is complete, without waiting. True: the frame is
    // complete. An error: of `socket`, or what the server has done wrong.
    virtual absl::StatusOr<bool> OnPayload(PayloadSocket& socket) = 0;
    // The last call. Unavailable: the connection is lost, and the gRPC stream has not said why within a
    // second.
    virtual void OnPayloadEnd(const absl::Status& why) = 0;
  };

  // A connection that the server has accepted. `user` outlives this. ResourceExhausted: out of descriptors.
  static absl::StatusOr<std::unique_ptr<PayloadClient>> Start(FileDescriptor socket, User& user);
  // Waits for the thread, and so for a call of `user` in progress.
  ~PayloadClient();

  // Part of a push, chunk by chunk. `data` stays readable until `keep` is released, on any thread. Any
  // thread.
  struct Outgoing {
    message::Gradient message;
    Bytes data;
    std::shared_ptr<const void> keep;
    uint64_t after = 0;  // PayloadHeader
  };
  void Send(Outgoing outgoing);
  // A message of the gRPC stream has been handled. Any thread.
  void CountHandled();

 private:
  PayloadClient(FileDescriptor socket, User& user) : user_(user), socket_(std::move(socket)) {}
  void Run();
  absl::Status Turn();
  absl::Status Write();
  absl::Status Read();
  void Wait();
  void Lose(const absl::Status& why);
  bool has_outgoing() const {
    MutexLock lock(mutex_);
    return !outgoing_.empty();
  }

  User& user_;
  const PollWaker waker_{};
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> handled_{0};

  // Used only by the thread.
  PayloadSocket socket_;
  bool is_held_ = false;  // the frame waits for messages of the gRPC stream
  PayloadHeader header_;  // of the frame that is being sent
  Bytes payload_;
  bool is_sending_ = false;

  mutable Mutex mutex_;
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);  // the first may be sent in part
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the other members
};

}  // namespace psring
