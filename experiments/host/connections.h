// TCP connections whose both ends this process holds, and what they carry: how wires are measured.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct SocketPair {
  Socket near, far;
};

// From `near`, a socket that is not connected yet, to `host`, an address of the network that `listener`
// belongs to. Waits are bounded (5 s), so that a broken network ends in an error.
absl::StatusOr<SocketPair> ConnectSockets(Socket near, Socket listener, const char* host);
// Both ends on 127.0.0.1.
absl::StatusOr<SocketPair> ConnectOverLoopback();

// Half of a ping-pong of 4 bytes between two threads, in s: the median over `seconds`.
absl::StatusOr<double> MeasureLatency(SocketPair connection, double seconds);

// Bytes/s that arrive at the far end of each connection, while all near ends send at once: over `seconds`,
// after `warmup` seconds in which windows open.
absl::StatusOr<std::vector<double>> MeasureRates(std::vector<SocketPair> connections, double warmup,
                                                 double seconds);

// Seconds to add a byte: one thread adding float32 arrays that do not fit into its caches.
double MeasureAdd(double seconds);
// The same for an optimizer's step with momentum, which reads three arrays and writes two.
double MeasureUpdate(double seconds);

}  // namespace psring
