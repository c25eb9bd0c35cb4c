// The only message on a control connection: its rank is done, or has failed, with the reason. If a connection
// ends without this message, the peer's process has died.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/net/tcp_socket.h"

namespace psring {

struct FinalMessage {
  uint32_t magic = 0x42535032;
  int32_t code = 0;        // absl::StatusCode; 0: done
  int32_t waits_for = -1;  // the rank that sent nothing before the sender's deadline; -1: another reason
  uint32_t length = 0;
  char message[1008] = {};
};
static_assert(sizeof(FinalMessage) == 1024);

// Does not block: the message fits into an empty socket buffer. Ignores errors: the peer is gone. Any thread.
void SendFinalMessage(int fd, absl::StatusCode code, const std::string& message, int waits_for = -1);

// One peer's control connection. One thread at a time.
class ControlConnection {
 public:
  ControlConnection(int rank, int peer, FileDescriptor socket)
      : rank_(rank), peer_(peer), socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  bool left() const { return left_; }        // it is done or has given up
  bool gave_up() const { return gave_up_; }  // the error of Receive is the peer's reason

  // If the peer gave up waiting for a rank that sent nothing: that rank, and what the peer said. -1
  // otherwise.
  int waits_for() const { return left_ ? message_.waits_for : -1; }
  std::string text() const;

  // Reads what has arrived, without waiting. Returns the peer's reason if it gave up, Unavailable if it died,
  // DataLoss for an invalid message, OK if it is done, gave up waiting or has sent nothing yet.
  absl::Status Receive();

 private:
  const int rank_, peer_;
  const FileDescriptor socket_;
  FinalMessage message_;
  size_t received_ = 0;
  bool left_ = false;
  bool gave_up_ = false;
};

}  // namespace psring
