#include "experiments/calibrate.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/trace.h"

namespace psring {
namespace {

constexpr size_t kBlock = 1 << 20;

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

struct Connection {
  Socket near, far;
};

// Both ends of a connection over the loopback. Waits are bounded, so that a broken network ends in an error.
absl::StatusOr<Connection> Connect() {
  const auto failed = [](const char* call) {
    return absl::UnavailableError(absl::StrCat("calibration over 127.0.0.1: ", call, ": ", strerror(errno)));
  };
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), length) != 0) return failed("bind");
  if (listen(listener.fd(), 1) != 0) return failed("listen");
  if (getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return failed("getsockname");
  Connection connection{Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), Socket()};
  if (connect(connection.near.fd(), reinterpret_cast<sockaddr*>(&address), length) != 0)
    return failed("connect");
  connection.far = Socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (connection.far.fd() < 0) return failed("accept");
  for (const Socket* socket : {&connection.near, &connection.far}) {
    const int yes = 1;
    const timeval patience{5, 0};
    setsockopt(socket->fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    setsockopt(socket->fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(socket->fd(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  }
  return connection;
}

bool SendAll(int fd, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveAll(int fd, char* data, size_t bytes) {
  return recv(fd, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

double SecondsSince(int64_t begin_ns) { return 1e-9 * static_cast<double>(MonotonicNanos() - begin_ns); }

absl::StatusOr<double> MeasureLatency(double seconds) {
  PSRING_ASSIGN_OR_RETURN(Connection connection, Connect());
  std::thread echo([fd = connection.far.fd()] {
    char word[4];
    while (ReceiveAll(fd, word, sizeof(word)) && SendAll(fd, word, sizeof(word))) {
    }
  });
  char word[4] = {};
  std::vector<double> round_trips;
  const int64_t begin = MonotonicNanos();
  bool well = true;
  while (well && SecondsSince(begin) < seconds) {
    const int64_t sent = MonotonicNanos();
    well = SendAll(connection.near.fd(), word, sizeof(word)) &&
           ReceiveAll(connection.near.fd(), word, sizeof(word));
    round_trips.push_back(SecondsSince(sent));
  }
  shutdown(connection.near.fd(), SHUT_RDWR);
  echo.join();
  if (!well) return absl::UnavailableError("calibration over 127.0.0.1: the connection broke");
  // The median: a round trip in which somebody else had the processor is not the wire's.
  std::nth_element(round_trips.begin(), round_trips.begin() + static_cast<ptrdiff_t>(round_trips.size() / 2),
                   round_trips.end());
  return round_trips[round_trips.size() / 2] / 2;
}

absl::StatusOr<double> MeasureBytesPerSecond(int connections, double seconds) {
  std::vector<Connection> open;
  for (int i = 0; i < connections; ++i) {
    PSRING_ASSIGN_OR_RETURN(open.emplace_back(), Connect());
  }
  std::atomic<bool> stop{false};
  std::atomic<int64_t> received{0};
  std::vector<std::thread> threads;
  const int64_t begin = MonotonicNanos();
  for (const Connection& connection : open) {
    threads.emplace_back([&stop, fd = connection.near.fd()] {
      const std::vector<char> block(kBlock);
      while (!stop && SendAll(fd, block.data(), block.size())) {
      }
      shutdown(fd, SHUT_WR);
    });
    threads.emplace_back([&received, fd = connection.far.fd()] {
      std::vector<char> block(kBlock);
      for (ssize_t got; (got = recv(fd, block.data(), block.size(), 0)) > 0;) received += got;
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const double rate = static_cast<double>(received) / SecondsSince(begin);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  if (rate <= 0) return absl::UnavailableError("calibration over 127.0.0.1: nothing arrived");
  return rate;
}

double MeasureAdd(double seconds) {
  const size_t count = (16 << 20) / sizeof(float);
  std::vector<float> to(count, 1), from(count, 2);
  const int64_t begin = MonotonicNanos();
  int64_t bytes = 0;
  do {
    for (size_t i = 0; i < count; ++i) to[i] += from[i];
    bytes += static_cast<int64_t>(count * sizeof(float));
    // Keeps the compiler from folding the passes into one.
    asm volatile("" : : "r"(to.data()) : "memory");
  } while (SecondsSince(begin) < seconds);
  return SecondsSince(begin) / static_cast<double>(bytes);
}

}  // namespace

absl::StatusOr<Wires> CalibrateLoopback(int cores, absl::Duration time) {
  const double part = absl::ToDoubleSeconds(time) / 4;
  Wires wires;
  PSRING_ASSIGN_OR_RETURN(wires.latency_s, MeasureLatency(part));
  PSRING_ASSIGN_OR_RETURN(wires.bytes_per_s, MeasureBytesPerSecond(1, part));
  const int pairs = std::clamp(cores / 2, 1, 8);
  wires.medium_bytes_per_s = wires.bytes_per_s;
  if (pairs > 1) {
    PSRING_ASSIGN_OR_RETURN(wires.medium_bytes_per_s, MeasureBytesPerSecond(pairs, part));
  }
  wires.add_s_per_byte = MeasureAdd(part);
  return wires;
}

}  // namespace psring
