#include "experiments/machine/connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/measure/trace.h"

namespace psring {
namespace {

constexpr size_t kBlock = 256 << 10;
// How long a measurement continues while a connection has received nothing, in s.
constexpr double kMaxPatience = 5;

double SecondsSince(int64_t begin_ns) { return 1e-9 * (MonotonicNanos() - begin_ns); }

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// The first byte of a message or block says whether it is the last one.
constexpr char kMore = 0, kLast = 1;
constexpr size_t kMessage = 4;
constexpr size_t kEndBlock = 64 << 10;

absl::Status Broken(const char* call) {
  return absl::UnavailableError(absl::StrCat(
      call, ": ", errno == EAGAIN || errno == EWOULDBLOCK ? "nothing for 5 s" : strerror(errno)));
}

// Ends a measurement even if the other end still takes or sends a little.
class Limit {
 public:
  explicit Limit(double timeout) : timeout_(timeout) {}
  absl::Status Check() const {
    if (SecondsSince(begin_ns_) <= timeout_) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat("the other end has not finished after ", timeout_, " s"));
  }

 private:
  const int64_t begin_ns_ = MonotonicNanos();
  const double timeout_;
};

absl::Status Send(int socket, const char* data, size_t bytes, const Limit& limit) {
  while (bytes > 0) {
    PSRING_RETURN_IF_ERROR(limit.Check());
    const ssize_t sent = send(socket, data, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return Broken("send");
    data += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return absl::OkStatus();
}

// Receives some bytes, at least one.
absl::StatusOr<size_t> ReceiveSome(int socket, char* data, size_t bytes) {
  const ssize_t got = recv(socket, data, bytes, 0);
  if (got == 0) return absl::UnavailableError("the other end closed the connection");
  if (got < 0) return Broken("receive");
  return static_cast<size_t>(got);
}

absl::Status Receive(int socket, char* data, size_t bytes, const Limit& limit) {
  for (size_t at = 0; at < bytes;) {
    PSRING_RETURN_IF_ERROR(limit.Check());
    PSRING_ASSIGN_OR_RETURN(const size_t got, ReceiveSome(socket, data + at, bytes - at));
    at += got;
  }
  return absl::OkStatus();
}

}  // namespace

void PrepareForMeasuring(const FileDescriptor& socket) {
  const timeval timeout{5, 0};
  const int yes = 1;
  fcntl(socket.get(), F_SETFL, fcntl(socket.get(), F_GETFL) & ~O_NONBLOCK);
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));  // fails on a shaper's local socket
}

absl::StatusOr<SocketPair> ConnectSockets(FileDescriptor near, FileDescriptor listener, const char* host) {
  const auto failed = [host](const char* call) {
    return absl::UnavailableError(absl::StrCat("measuring over ", host, ": ", call, ": ", strerror(errno)));
  };
  for (const FileDescriptor* socket : {&near, &listener}) {
    if (!socket->valid()) return failed("socket");
    PrepareForMeasuring(*socket);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (inet_pton(AF_INET, host, &address.sin_addr) != 1) return failed("address");
  socklen_t length = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), name, length) != 0) return failed("bind");
  if (listen(listener.get(), SOMAXCONN) != 0) return failed("listen");
  if (getsockname(listener.get(), name, &length) != 0) return failed("getsockname");
  if (connect(near.get(), name, length) != 0) return failed("connect");
  sockaddr_in own{}, accepted{};
  if (getsockname(near.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) return failed("getsockname");
  FileDescriptor far;
  do {  // others may connect, too
    length = sizeof(accepted);
    far = FileDescriptor(
        accept4(listener.get(), reinterpret_cast<sockaddr*>(&accepted), &length, SOCK_CLOEXEC));
    if (!far.valid()) return failed("accept");
  } while (accepted.sin_port != own.sin_port || accepted.sin_addr.s_addr != own.sin_addr.s_addr);
  PrepareForMeasuring(far);
  return SocketPair{std::move(near), std::move(far)};
}

absl::StatusOr<SocketPair> ConnectOverLoopback() {
  return ConnectSockets(FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
                        FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), "127.0.0.1");
}

absl::StatusOr<double> MeasureLatency(SocketPair connection, double seconds) {
  const double timeout = seconds + 2 * kMaxPatience;
  std::thread echo([&] { (void)EchoUntilDone(connection.far.get(), timeout); });
  const absl::StatusOr<double> latency = MeasureLatencyTo(connection.near.get(), seconds, timeout);
  shutdown(connection.near.get(), SHUT_RDWR);
  echo.join();
  if (latency.ok()) return latency;
  return absl::UnavailableError(absl::StrCat("measuring latency: ", latency.status().message()));
}

absl::StatusOr<std::vector<double>> MeasureRates(std::vector<SocketPair> connections, double warmup,
                                                 double seconds) {
  std::atomic<bool> stop{false};
  std::vector<std::atomic<int64_t>> received(connections.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < connections.size(); ++i) {
    threads.emplace_back([&stop, fd = connections[i].near.get()] {
      const std::vector<char> block(kBlock);
      const Limit none(std::numeric_limits<double>::infinity());
      while (!stop && Send(fd, block.data(), block.size(), none).ok()) {
      }
    });
    threads.emplace_back([&received, i, fd = connections[i].far.get()] {
      std::vector<char> block(kBlock);
      for (ssize_t got; (got = recv(fd, block.data(), block.size(), 0)) > 0;) received[i] += got;
    });
  }
  Sleep(warmup);
  std::vector<double> rates;
  for (const std::atomic<int64_t>& bytes : received) rates.push_back(bytes);
  const int64_t begin = MonotonicNanos();
  const auto one_had_nothing = [&] {
    for (size_t i = 0; i < rates.size(); ++i) {
      if (static_cast<double>(received[i]) <= rates[i]) return true;
    }
    return false;
  };
  // On a busy machine, the threads of a pair may not run for longer than this.
  do {
    Sleep(seconds);
  } while (one_had_nothing() && SecondsSince(begin) < seconds + kMaxPatience);
  const double measured_s = SecondsSince(begin);
  for (size_t i = 0; i < rates.size(); ++i) {
    rates[i] = (static_cast<double>(received[i]) - rates[i]) / measured_s;
  }
  stop = true;
  for (const SocketPair& connection : connections) {
    shutdown(connection.near.get(), SHUT_RDWR);  // unblocks threads in the middle of a block
    shutdown(connection.far.get(), SHUT_RDWR);
  }
  for (std::thread& thread : threads) thread.join();
  for (double rate : rates) {
    if (rate <= 0) return absl::UnavailableError("measuring throughput: nothing arrived");
  }
  return rates;
}

namespace {

constexpr size_t kArray = (16 << 20) / sizeof(float);

// Seconds per byte of an array of kArray elements, averaged over passes for `seconds`.
template <typename Pass>
double SecondsPerByte(double seconds, Pass pass) {
  const int64_t begin = MonotonicNanos();
  int64_t bytes = 0;
  do {
    pass();
    bytes += static_cast<int64_t>(kArray * sizeof(float));
  } while (SecondsSince(begin) < seconds);
  return SecondsSince(begin) / static_cast<double>(bytes);
}

// Prevents the compiler from merging passes.
void Touch(void* data) { asm volatile("" : : "r"(data) : "memory"); }

absl::StatusOr<double> LoopbackBytesPerSecond(int count, double seconds) {
  std::vector<SocketPair> connections;
  for (int i = 0; i < count; ++i) {
    PSRING_ASSIGN_OR_RETURN(connections.emplace_back(), ConnectOverLoopback());
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<double> rates,
                          MeasureRates(std::move(connections), 0.1 * seconds, 0.9 * seconds));
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

}  // namespace

double MeasureAdd(double seconds) {
  std::vector<float> to(kArray, 1), from(kArray, 2);
  return SecondsPerByte(seconds, [&] {
    for (size_t i = 0; i < kArray; ++i) to[i] += from[i];
    Touch(to.data());
  });
}

double MeasureUpdate(double seconds) {
  std::vector<float> weights(kArray, 1), momentum(kArray, 0), gradient(kArray, 1e-6f);
  return SecondsPerByte(seconds, [&] {
    for (size_t i = 0; i < kArray; ++i) {
      momentum[i] = 0.9f * momentum[i] + gradient[i];
      weights[i] -= 0.01f * momentum[i];
    }
    Touch(weights.data());
  });
}

absl::StatusOr<Wires> CalibrateLoopback(int cores, absl::Duration time) {
  const double part = absl::ToDoubleSeconds(time) / 4;
  Wires wires;
  PSRING_ASSIGN_OR_RETURN(SocketPair connection, ConnectOverLoopback());
  PSRING_ASSIGN_OR_RETURN(wires.latency_s, MeasureLatency(std::move(connection), part));
  PSRING_ASSIGN_OR_RETURN(wires.bytes_per_s, LoopbackBytesPerSecond(1, part));
  const int pairs = std::clamp(cores / 2, 1, 8);
  wires.medium_bytes_per_s = wires.bytes_per_s;
  if (pairs > 1) {
    PSRING_ASSIGN_OR_RETURN(wires.medium_bytes_per_s, LoopbackBytesPerSecond(pairs, part));
  }
  wires.add_s_per_byte = MeasureAdd(part);
  return wires;
}

absl::StatusOr<double> MeasureLatencyTo(int socket, double seconds, double timeout) {
  char message[kMessage] = {kMore};
  std::vector<double> round_trips;
  const Limit limit(timeout);
  for (const int64_t begin = MonotonicNanos(); SecondsSince(begin) < seconds || round_trips.empty();) {
    const int64_t sent = MonotonicNanos();
    PSRING_RETURN_IF_ERROR(Send(socket, message, kMessage, limit));
    PSRING_RETURN_IF_ERROR(Receive(socket, message, kMessage, limit));
    round_trips.push_back(SecondsSince(sent));
  }
  message[0] = kLast;
  PSRING_RETURN_IF_ERROR(Send(socket, message, kMessage, limit));
  // The median excludes round trips during which another process had the processor.
  const auto median = round_trips.begin() + static_cast<ptrdiff_t>(round_trips.size() / 2);
  std::nth_element(round_trips.begin(), median, round_trips.end());
  return *median / 2;
}

absl::Status EchoUntilDone(int socket, double timeout) {
  char message[kMessage];
  const Limit limit(timeout);
  while (true) {
    PSRING_RETURN_IF_ERROR(Receive(socket, message, kMessage, limit));
    if (message[0] != kMore) return absl::OkStatus();
    PSRING_RETURN_IF_ERROR(Send(socket, message, kMessage, limit));
  }
}

absl::StatusOr<double> ReceiveRate(int socket, double warmup, double seconds, double timeout) {
  std::vector<char> block(kEndBlock);
  const int64_t begin = MonotonicNanos();
  const Limit limit(timeout);
  double all = 0, counted = 0, from_s = warmup, until_s = warmup;
  bool last = false;
  while (!last) {
    for (size_t at = 0; at < kEndBlock;) {
      PSRING_RETURN_IF_ERROR(limit.Check());
      PSRING_ASSIGN_OR_RETURN(const size_t got, ReceiveSome(socket, block.data() + at, kEndBlock - at));
      at += got;
      all += got;
      const double now_s = SecondsSince(begin);
      // Counting begins and ends with an arrival.
      if (now_s <= warmup) {
        from_s = now_s;
      } else if (now_s <= warmup + seconds) {
        counted += got;
        until_s = now_s;
      }
    }
    last = block[0] != kMore;
  }
  if (counted > 0 && until_s > from_s) return counted / (until_s - from_s);
  // One of the machines had other work to do.
  return all / SecondsSince(begin);
}

absl::Status SendFor(int socket, double seconds, double timeout) {
  std::vector<char> block(kEndBlock, kMore);
  const Limit limit(timeout);
  for (const int64_t begin = MonotonicNanos(); SecondsSince(begin) < seconds;) {
    PSRING_RETURN_IF_ERROR(Send(socket, block.data(), block.size(), limit));
  }
  block[0] = kLast;
  return Send(socket, block.data(), block.size(), limit);
}

}  // namespace psring
