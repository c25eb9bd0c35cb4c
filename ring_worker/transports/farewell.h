// The last word on a control connection, and the only one: "I am done", or "I gave up, because ...". A
// control connection that ends without it is a process that died.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/net/tcp_socket.h"

namespace psring {

struct Farewell {
  uint32_t magic = 0x42535031;
  int32_t code = 0;  // absl::StatusCode; 0: done
  uint32_t length = 0;
  char message[1012] = {};
};
static_assert(sizeof(Farewell) == 1024);

// Short enough for an empty socket buffer; a peer that cannot hear is gone itself. Safe from any thread.
void SayFarewell(int fd, absl::StatusCode code, const std::string& message);

// One peer's control connection. One thread at a time.
class ControlConnection {
 public:
  ControlConnection(int rank, int peer, FileDescriptor socket)
      : rank_(rank), peer_(peer), socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  bool left() const { return left_; }        // it has said that it is done
  bool gave_up() const { return gave_up_; }  // Hear's error is what it said

  // What is there to be heard, without waiting: its reason where the peer gave up, Unavailable where it died,
  // OK where it left or has said nothing yet.
  absl::Status Hear();

 private:
  const int rank_, peer_;
  const FileDescriptor socket_;
  Farewell farewell_;
  size_t received_ = 0;
  bool left_ = false;
  bool gave_up_ = false;
};

}  // namespace psring
