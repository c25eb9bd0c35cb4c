// The worker's side of --server_wire stream: sends gradients and rows and receives answers on a payload
// connection, on a thread of its own, so that both directions move while the workers' threads compute.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/poll_waker.h"
#include "ps_server/wire/payload_queue.h"

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
  static absl::StatusOr<std::unique_ptr<PayloadClient>> Start(MemberSocket socket, User& user);
  // Waits for the thread, and so for a call of `user` in progress.
  ~PayloadClient();

  // Sends all of `data`. Any thread.
  void Send(const message::ToServer& message, Bytes data, std::shared_ptr<const void> keep, uint64_t after);
  // A message of the gRPC stream has been handled. Any thread.
  void CountHandled();

 private:
  PayloadClient(MemberSocket socket, User& user) : user_(user), socket_(std::move(socket)) {}
  void Run();
  absl::Status Turn();
  absl::Status Read();
  void Wait();
  void Lose(const absl::Status& why);

  User& user_;
  const PollWaker waker_{};
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> handled_{0};

  // Used only by the thread.
  PayloadSocket socket_;
  bool is_held_ = false;  // the frame waits for messages of the gRPC stream

  PayloadQueue<message::ToServer> outgoing_;
  std::thread thread_;  // last: it uses the other members
};

}  // namespace psring
