// The messages on a control connection. The last one says that its rank is done, or has failed, with the
// reason; if a connection ends without it, the peer's process has died. Before, the rank may say once that it
// has waited too long, and for whom.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/net/tls/member_socket.h"

namespace psring {

struct ControlMessage {
  uint32_t magic = 0x43535032;
  int32_t code = 0;        // absl::StatusCode; 0: done
  int32_t waits_for = -1;  // -1: this is the last message; otherwise the rank that the sender waits for
  uint32_t length = 0;
  char message[1008] = {};
};
static_assert(sizeof(ControlMessage) == 1024);

struct Notice {
  absl::StatusCode code;
  std::string message;
  int waits_for = -1;  // see ControlMessage
};
// Does not block: the two messages fit into an empty socket buffer. Ignores errors: the peer is gone. Any
// thread.
void SendNotice(MemberSocket& control, const Notice& notice);

// One peer's control connection. One thread at a time; another one may use SendNotice on its socket.
class ControlConnection {
 public:
  ControlConnection(int rank, int peer, std::unique_ptr<MemberSocket> socket)
      : rank_(rank), peer_(peer), socket_(std::move(socket)) {}

  int fd() const { return socket_->fd(); }
  bool left() const { return left_; }        // it is done or has given up
  bool gave_up() const { return gave_up_; }  // the error of Receive is the peer's reason

  // If the peer has waited too long: the rank that it waits for, and what the peer said. -1 otherwise.
  int waits_for() const { return waits_for_; }
  const std::string& waits_text() const { return waits_text_; }

  // Reads what has arrived, without waiting. Returns the peer's reason if it gave up, Unavailable if it died,
  // DataLoss for an invalid message, otherwise OK.
  absl::Status Receive();

 private:
  const int rank_, peer_;
  const std::unique_ptr<MemberSocket> socket_;
  ControlMessage message_;
  size_t received_ = 0;
  int waits_for_ = -1;
  std::string waits_text_;
  bool left_ = false;
  bool gave_up_ = false;
};

}  // namespace psring
