#include "ps_server/bench/round_limits.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/base/mutex.h"
#include "common/device/memory_limit.h"
#include "common/kernels/reduce.h"
#include "common/net/address.h"
#include "common/net/authentication.h"
#include "common/net/tcp_socket.h"

namespace psring {
namespace {

constexpr size_t kWindowBytes = 256 << 10;  // received, and added while in the cache
constexpr size_t kBlockBytes = 8 << 10;     // of one fused pass
constexpr char kDone = 0;                   // answers a fused round; the weights answer a raw one

struct Request {
  uint64_t kind = 0;
  uint64_t bytes = 0;  // of the gradient, which follows (kRaw)
  bool operator==(const Request&) const = default;
};

absl::Status Failed(const char* call) {
  return Unavailable("the control round: ", call, ": ", strerror(errno));
}

// Reads and writes block for at most `timeout`.
absl::Status MakeBlocking(int fd, absl::Duration timeout) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) return Failed("fcntl");
  const timeval limit = absl::ToTimeval(timeout);
  if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
      setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0) {
    return Failed("setsockopt");
  }
  return absl::OkStatus();
}

absl::Status Lost(const absl::Status& why) { return Unavailable("the control round: ", why.message()); }
absl::Status Late() { return Unavailable("the control round: no answer in time"); }

absl::Status Put(MemberSocket& socket, const void* data, size_t bytes) {
  const auto* next = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const absl::StatusOr<size_t> n = socket.Send(next, bytes);
    if (!n.ok()) return Lost(n.status());
    if (*n == 0) return Late();
    next += *n;
    bytes -= *n;
  }
  return absl::OkStatus();
}

absl::Status Get(MemberSocket& socket, void* data, size_t bytes) {
  auto* next = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const absl::StatusOr<size_t> n = socket.Receive(next, bytes);
    if (!n.ok()) return Lost(n.status());
    if (*n == 0) return Late();
    next += *n;
    bytes -= *n;
  }
  return absl::OkStatus();
}

// Other limits and collectives are measured between two requests.
absl::Status GetRequest(MemberSocket& socket, Request& request) {
  pollfd waiting = {socket.fd(), POLLIN, 0};
  while (poll(&waiting, 1, -1) < 0 && errno == EINTR) {
  }
  return Get(socket, &request, sizeof request);
}

// The part of `count` elements of one of `threads` threads.
struct Part {
  size_t first = 0, count = 0;
};
Part PartOf(size_t count, int index, int threads) {
  const size_t each = (count + static_cast<size_t>(threads) - 1) / static_cast<size_t>(threads);
  const size_t first = std::min(count, each * static_cast<size_t>(index));
  return {first, std::min(each, count - first)};
}

// weights -= sum * scale
void Update(float* weights, const float* sum, float scale, size_t count) {
  for (size_t i = 0; i < count; ++i) weights[i] -= sum[i] * scale;
}

class Server final : public RoundLimitServer {
 public:
  Server(int workers, absl::Duration timeout)
      : workers_(workers), timeout_(timeout), device_(MakeCpuDevice()), sockets_(workers) {}

  ~Server() override {
    listener_.reset();
    (void)End();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Listen(const std::string& host, const JobSecret& secret) {
    PSRING_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(host));
    const Credentials credentials = {
        .secret = secret, .purpose = Purpose::kRoundLimits, .token = NewListenerToken()};
    address_ = PublishedText({host, listener.port, credentials.token});
    PSRING_ASSIGN_OR_RETURN(listener_,
                            AuthenticatedListener::Start(
                                std::move(listener), credentials,
                                [this](PendingConnections::Member member) { Admit(std::move(member)); }));
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

 private:
  // On the listener's thread. The first connection of each worker is kept; once there are all, rounds begin.
  void Admit(PendingConnections::Member member) {
    const uint64_t worker = member.detail;
    if (worker >= sockets_.size() || sockets_[worker].valid()) return;
    if (!MakeBlocking(member.socket.fd(), timeout_).ok()) return;
    sockets_[worker] = std::move(member.socket);
    sockets_[worker].ReadAhead();
    if (!std::ranges::all_of(sockets_, &MemberSocket::valid)) return;
    for (int each = 0; each < workers_; ++each) {
      threads_.emplace_back([this, each] {
        const absl::Status why = Serve(each);
        if (why.ok()) return EndRounds();
        if (End() && !absl::IsUnavailable(why)) {
          std::fprintf(stderr, "ps_server: %s\n", std::string(why.message()).c_str());
        }
      });
    }
  }

  // No further round begins. The last one is still answered.
  void EndRounds() {
    MutexLock lock(mutex_);
    over_ = true;
    changed_.NotifyAll();
  }

  // Ends all connections. False: the rounds had ended before.
  bool End() {
    bool first = false;
    {
      MutexLock lock(mutex_);
      first = !std::exchange(over_, true);
      changed_.NotifyAll();
    }
    for (const MemberSocket& socket : sockets_) {
      if (socket.valid()) shutdown(socket.fd(), SHUT_RDWR);
    }
    return first;
  }

  // OK: the connection ended between two rounds.
  absl::Status Serve(int worker) {
    MemberSocket& socket = sockets_[worker];
    std::vector<std::byte> window(kWindowBytes);
    while (true) {
      Request request;
      if (!GetRequest(socket, request).ok()) return absl::OkStatus();
      const bool raw = request.kind == static_cast<uint64_t>(RoundLimit::kRaw);
      if ((!raw && request.kind != static_cast<uint64_t>(RoundLimit::kFused)) || request.bytes == 0 ||
          request.bytes % sizeof(float) != 0) {
        return InvalidArgument("the control round: worker ", worker, " sent an invalid request");
      }
      PSRING_RETURN_IF_ERROR(Meet(request, [&] { return Prepare(request); }));
      PSRING_RETURN_IF_ERROR(raw ? Raw(socket, worker, request, window) : Fused(socket, worker, request));
    }
  }

  // Waits until all workers have called it with the same request, and returns the result of `last`, which the
  // last worker's thread runs before any call returns.
  absl::Status Meet(
      const Request& request, const std::function<absl::Status()>& last = [] { return absl::OkStatus(); }) {
    MutexLock lock(mutex_);
    if (here_ > 0 && request != request_) {
      return InvalidArgument("the control round: workers request ", request.bytes, " and ", request_.bytes,
                             " bytes, or other kinds");
    }
    request_ = request;
    const int64_t meeting = meetings_;
    if (++here_ == workers_) {
      here_ = 0;
      ++meetings_;
      outcome_ = last();
      changed_.NotifyAll();
      return outcome_;
    }
    const MonotonicTime deadline = MonotonicNow() + timeout_;
    while (meeting == meetings_ && !over_) {
      if (changed_.WaitUntil(mutex_, deadline) || meeting != meetings_) continue;
      return DeadlineExceeded("the control round: a worker did not arrive in time");
    }
    return meeting != meetings_ ? outcome_ : Unavailable("the control round: it ended");
  }

  // Allocates the memory of a round while all workers wait. Consecutive rounds of one size continue with the
  // same weights.
  absl::Status Prepare(const Request& request) {
    const bool raw = request.kind == static_cast<uint64_t>(RoundLimit::kRaw);
    const size_t buffers = raw ? 2 : 3 + 2 * static_cast<size_t>(workers_);
    if (std::exchange(bytes_, request.bytes) != request.bytes) buffers_.clear();
    const size_t missing = buffers - std::min(buffers, buffers_.size());
    if (missing > 0 && request.bytes > UsableMemory(*device_) / missing) {
      return ResourceExhausted("the control round: no memory for gradients of ", request.bytes, " bytes");
    }
    started_.assign((request.bytes + kWindowBytes - 1) / kWindowBytes, 0);
    if (chunks_.size() < started_.size()) chunks_ = std::vector<Mutex>(started_.size());
    while (buffers_.size() < buffers) {
      PSRING_ASSIGN_OR_RETURN(Buffer buffer, device_->Allocate(request.bytes));
      std::memset(buffer.data(), 0, buffer.bytes());
      buffers_.push_back(std::move(buffer));
    }
    return absl::OkStatus();
  }
  float* at(size_t buffer, size_t first) { return static_cast<float*>(buffers_[buffer].data()) + first; }

  // Buffer 0: the weights; 1: the sum.
  absl::Status Raw(MemberSocket& socket, int worker, const Request& request, std::vector<std::byte>& window) {
    const size_t count = request.bytes / sizeof(float);
    constexpr size_t kEach = kWindowBytes / sizeof(float);
    for (size_t chunk = 0; chunk < started_.size(); ++chunk) {
      const size_t first = chunk * kEach, length = std::min(kEach, count - first);
      PSRING_RETURN_IF_ERROR(Get(socket, window.data(), length * sizeof(float)));
      MutexLock lock(chunks_[chunk]);
      const void* const terms[] = {window.data(), at(1, first)};
      cpu::Reduce(ReduceOp::kSum, DType::kFloat32, length, at(1, first), terms, started_[chunk] ? 2 : 1);
      started_[chunk] = 1;
    }
    PSRING_RETURN_IF_ERROR(Meet(request));
    const Part part = PartOf(count, worker, workers_);
    Update(at(0, part.first), at(1, part.first), 1.0f / static_cast<float>(workers_), part.count);
    PSRING_RETURN_IF_ERROR(Meet(request));
    return Put(socket, at(0, 0), request.bytes);
  }

  // Buffer 2: the weights; then the gradients; then the weights of each worker.
  absl::Status Fused(MemberSocket& socket, int worker, const Request& request) {
    const auto workers = static_cast<size_t>(workers_);
    const int threads = std::min(workers_, 2);
    if (worker < threads) {
      constexpr size_t kEach = kBlockBytes / sizeof(float);
      float sum[kEach];
      std::vector<const void*> gradients(workers);
      const Part part = PartOf(request.bytes / sizeof(float), worker, threads);
      for (size_t done = 0; done < part.count; done += kEach) {
        const size_t first = part.first + done, length = std::min(kEach, part.count - done);
        for (size_t i = 0; i < workers; ++i) gradients[i] = at(3 + i, first);
        cpu::Reduce(ReduceOp::kSum, DType::kFloat32, length, sum, gradients.data(), workers_);
        Update(at(2, first), sum, 1.0f / static_cast<float>(workers_), length);
        for (size_t i = 0; i < workers; ++i) {
          std::memcpy(at(3 + workers + i, first), at(2, first), length * sizeof(float));
        }
      }
    }
    PSRING_RETURN_IF_ERROR(Meet(request));
    return Put(socket, &kDone, sizeof kDone);
  }

  std::string address_;
  const int workers_;
  const absl::Duration timeout_;
  const std::unique_ptr<Device> device_;
  std::vector<MemberSocket> sockets_;  // by worker; the listener's thread sets them before rounds begin
  std::vector<std::thread> threads_;
  std::unique_ptr<AuthenticatedListener> listener_;

  Mutex mutex_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  Request request_ ABSL_GUARDED_BY(mutex_);       // of the workers that wait
  int here_ ABSL_GUARDED_BY(mutex_) = 0;          // their number
  int64_t meetings_ ABSL_GUARDED_BY(mutex_) = 0;  // completed
  absl::Status outcome_ ABSL_GUARDED_BY(mutex_);  // of the last one

  // Prepare changes them while all workers wait.
  uint64_t bytes_ = 0;  // of a buffer
  std::vector<Buffer> buffers_;
  std::vector<Mutex> chunks_;
  std::vector<char> started_;  // the sum contains a gradient; guarded by the chunk's mutex
};

}  // namespace

const char* Name(RoundLimit kind) { return kind == RoundLimit::kRaw ? "raw" : "fused"; }

absl::StatusOr<std::unique_ptr<RoundLimitServer>> RoundLimitServer::Start(const std::string& host,
                                                                          const JobSecret& secret,
                                                                          int workers,
                                                                          absl::Duration timeout) {
  auto server = std::make_unique<Server>(workers, timeout);
  PSRING_RETURN_IF_ERROR(server->Listen(host, secret));
  return server;
}

absl::StatusOr<RoundLimitClient> RoundLimitClient::Connect(const std::string& address,
                                                           const JobSecret& secret, int worker,
                                                           absl::Duration timeout) {
  const MonotonicTime deadline = MonotonicNow() + timeout;
  PSRING_ASSIGN_OR_RETURN(const HostPort server, ParseAddress(address));
  PSRING_ASSIGN_OR_RETURN(FileDescriptor tcp, ConnectTcp(server.host, server.port, deadline));
  const Credentials credentials = {.secret = secret, .purpose = Purpose::kRoundLimits, .token = server.token};
  PSRING_ASSIGN_OR_RETURN(MemberSocket socket,
                          AuthenticateTcp(std::move(tcp), credentials,
                                          absl::StrCat("the control round at ", WithoutToken(address)),
                                          deadline, static_cast<uint64_t>(worker)));
  PSRING_RETURN_IF_ERROR(MakeBlocking(socket.fd(), timeout));
  socket.ReadAhead();
  return RoundLimitClient(std::move(socket));
}

absl::Status RoundLimitClient::Run(RoundLimit kind, ConstSpan gradient, Span weights) {
  PSRING_CHECK(gradient.count == weights.count && gradient.count > 0);
  const bool raw = kind == RoundLimit::kRaw;
  const Request request = {static_cast<uint64_t>(kind), gradient.bytes()};
  PSRING_RETURN_IF_ERROR(Put(socket_, &request, sizeof request));
  if (raw) {
    PSRING_RETURN_IF_ERROR(Put(socket_, gradient.data, gradient.bytes()));
    return Get(socket_, weights.data, weights.bytes());
  }
  char done = 0;
  return Get(socket_, &done, sizeof done);
}

}  // namespace psring
