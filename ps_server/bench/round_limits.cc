#include "ps_server/bench/round_limits.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/device/usable_memory.h"
#include "common/net/address.h"
#include "common/net/authentication.h"
#include "common/net/tcp_socket.h"
#include "common/reduce/reduce.h"
#include "ps_server/bench/round_meeting.h"

namespace psring {
namespace {

constexpr size_t kWindowBytes = 256 << 10;  // received, and added while in the cache
constexpr size_t kBlockBytes = 8 << 10;     // of one fused pass
constexpr uint32_t kJoin = 0;               // Request::kind of a connection's first message
constexpr uint32_t kMostReasonBytes = 1024;
constexpr absl::Duration kJoinTimeout = absl::Seconds(5);
constexpr absl::Duration kIdleTimeout = absl::Hours(24);        // between rounds, while others are measured
constexpr absl::Duration kLookEvery = absl::Milliseconds(100);  // whether another connection may begin
constexpr size_t kExtraConnections = 16;  // connections beyond one per worker; more wait

struct Request {
  uint32_t kind = 0;
  int32_t worker = 0;
  uint64_t bytes = 0;  // of the gradient, which follows (kRaw)
};

// Answers each request. reason_bytes 0: success, and the weights follow (kRaw). Otherwise the error text
// follows, and the connection ends.
struct Answer {
  uint32_t reason_bytes = 0;
};

absl::Status Failed(const char* call) {
  return absl::UnavailableError(absl::StrCat("the control round: ", call, ": ", strerror(errno)));
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

absl::Status Put(int fd, const void* data, size_t bytes, int flags = 0) {
  const auto* next = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t n = send(fd, next, bytes, MSG_NOSIGNAL | flags);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed("send");
    next += n;
    bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status Get(int fd, void* data, size_t bytes) {
  auto* next = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t n = recv(fd, next, bytes, MSG_WAITALL);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) return absl::UnavailableError("the control round: the connection ended");
    if (n < 0) return Failed("recv");
    next += n;
    bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status GetRequest(int fd, absl::Duration timeout, Request& request) {
  pollfd waiting = {fd, POLLIN, 0};
  int ready = 0;
  do {
    ready = poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) return absl::DeadlineExceededError("the control round: no request came");
  return Get(fd, &request, sizeof request);
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
      : workers_(workers), timeout_(timeout), device_(MakeCpuDevice()), meeting_(workers, timeout) {}

  ~Server() override {
    meeting_.End();
    {
      MutexLock lock(mutex_);
      over_ = true;
      changed_.NotifyAll();
    }
    listener_.reset();
    for (const Connection& connection : connections_) shutdown(connection.socket.get(), SHUT_RDWR);
    for (Connection& connection : connections_) connection.thread.join();
  }

  absl::Status Listen(const std::string& host, const JobSecret& secret) {
    PSRING_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(host));
    const Credentials credentials = {
        .secret = secret, .purpose = Purpose::kRoundLimits, .token = NewListenerToken()};
    address_ = PublishedText({host, listener.port, credentials.token});
    PSRING_ASSIGN_OR_RETURN(
        listener_, AuthenticatedListener::Start(
                       std::move(listener), credentials,
                       [this](PendingConnections::Member member) { Admit(std::move(member.socket)); }));
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

 private:
  struct Connection {
    FileDescriptor socket;
    std::thread thread;
    std::atomic<bool> over = false;
  };

  void Admit(FileDescriptor socket) {
    if (!AwaitSlot() || !MakeBlocking(socket.get(), timeout_).ok()) return;
    Connection& connection = connections_.emplace_back();
    connection.socket = std::move(socket);
    connection.thread = std::thread([this, &connection] {
      Answers(connection.socket.get());
      MutexLock lock(mutex_);
      connection.over = true;
      changed_.NotifyAll();
    });
  }

  // Waits until one more connection may be accepted. False: the server ends.
  bool AwaitSlot() {
    while (true) {
      connections_.remove_if([](Connection& connection) {
        if (!connection.over) return false;
        connection.thread.join();
        return true;
      });
      MutexLock lock(mutex_);
      if (over_) return false;
      if (connections_.size() < static_cast<size_t>(workers_) + kExtraConnections) return true;
      changed_.WaitUntil(mutex_, MonotonicNow() + kLookEvery);
    }
  }

  // All requests of a connection, until it ends.
  void Answers(int fd) {
    const absl::Status why = Serve(fd);
    // Not after a failure of the connection: the text would be read as weights.
    if (why.code() != absl::StatusCode::kUnavailable) {
      const absl::string_view reason = why.message().substr(0, kMostReasonBytes);
      const Answer answer{.reason_bytes = static_cast<uint32_t>(reason.size())};
      if (Put(fd, &answer, sizeof answer, MSG_MORE).ok()) (void)Put(fd, reason.data(), reason.size());
    }
    shutdown(fd, SHUT_RDWR);
  }

  absl::Status Serve(int fd) {
    Request join;
    PSRING_RETURN_IF_ERROR(GetRequest(fd, std::min(timeout_, kJoinTimeout), join));
    if (join.kind != kJoin) {
      return absl::InvalidArgumentError("the control round: a connection begins with a join");
    }
    PSRING_RETURN_IF_ERROR(meeting_.Join(join.worker));
    ++joins_;
    const absl::Status why = ServeWorker(fd, join.worker);
    meeting_.Leave(join.worker);
    return why;
  }

  absl::Status ServeWorker(int fd, int worker) {
    const Answer welcome;
    PSRING_RETURN_IF_ERROR(Put(fd, &welcome, sizeof welcome));
    std::vector<std::byte> window(kWindowBytes);
    while (true) {
      Request request;
      PSRING_RETURN_IF_ERROR(GetRequest(fd, kIdleTimeout, request));
      PSRING_RETURN_IF_ERROR(Check(request, worker));
      const size_t count = request.bytes / sizeof(float);
      if (request.kind == static_cast<uint32_t>(RoundLimit::kRaw)) {
        PSRING_RETURN_IF_ERROR(Raw(fd, worker, count, window));
      } else {
        PSRING_RETURN_IF_ERROR(Fused(fd, worker, count));
      }
    }
  }

  absl::Status Check(const Request& request, int worker) {
    const bool raw = request.kind == static_cast<uint32_t>(RoundLimit::kRaw);
    const bool fused = request.kind == static_cast<uint32_t>(RoundLimit::kFused);
    if ((!raw && !fused) || request.worker != worker || request.bytes == 0 ||
        request.bytes % sizeof(float) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the control round: worker ", worker, " sent an invalid request"));
    }
    // These change only while all workers wait in Prepare.
    const size_t buffers = BuffersOf(request.kind), bytes = count_ * sizeof(float);
    if (request.bytes == bytes && buffers_.size() >= buffers) return absl::OkStatus();
    const size_t most = (UsableMemory(*device_) + buffers_.size() * bytes) / buffers;
    if (request.bytes <= most) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("the control round: a gradient of ", request.bytes,
                                                     " bytes; the server has memory for ", most));
  }

  size_t BuffersOf(uint32_t kind) const {
    return kind == static_cast<uint32_t>(RoundLimit::kRaw) ? 2 : 3 + 2 * static_cast<size_t>(workers_);
  }

  absl::Status Meet(
      int worker, const RoundCall& call, int fd,
      const std::function<absl::Status()>& last = [] { return absl::OkStatus(); }) {
    const auto has_gone = [fd] {
      pollfd peer = {fd, POLLRDHUP, 0};
      return poll(&peer, 1, 0) > 0;
    };
    return meeting_.Wait(worker, call, has_gone, last);
  }

  // Allocates the memory of a round, on the thread of the last worker that requests it. Consecutive rounds of
  // one size and the same connections continue with the same weights.
  absl::Status Prepare(int worker, const RoundCall& call, int fd) {
    const size_t buffers = BuffersOf(static_cast<uint32_t>(call.kind));
    return Meet(worker, call, fd, [&]() -> absl::Status {
      started_.assign((call.count * sizeof(float) + kWindowBytes - 1) / kWindowBytes, 0);
      const int64_t joins = joins_;
      if (std::exchange(joins_before_, joins) != joins || count_ != call.count) buffers_.clear();
      if (buffers_.size() >= buffers) return absl::OkStatus();
      count_ = call.count;
      if (chunks_.size() < started_.size()) chunks_ = std::vector<Mutex>(started_.size());
      while (buffers_.size() < buffers) {
        PSRING_ASSIGN_OR_RETURN(Buffer buffer, device_->Allocate(call.count * sizeof(float)));
        std::memset(buffer.data(), 0, buffer.bytes());
        buffers_.push_back(std::move(buffer));
      }
      return absl::OkStatus();
    });
  }
  float* at(size_t buffer, size_t first) { return static_cast<float*>(buffers_[buffer].data()) + first; }

  // Buffer 0: the weights; 1: the sum.
  absl::Status Raw(int fd, int worker, size_t count, std::vector<std::byte>& window) {
    RoundCall call{.kind = RoundLimit::kRaw, .count = count};
    PSRING_RETURN_IF_ERROR(Prepare(worker, call, fd));
    constexpr size_t kEach = kWindowBytes / sizeof(float);
    for (size_t chunk = 0; chunk < started_.size(); ++chunk) {
      const size_t first = chunk * kEach, length = std::min(kEach, count - first);
      PSRING_RETURN_IF_ERROR(Get(fd, window.data(), length * sizeof(float)));
      MutexLock lock(chunks_[chunk]);
      const void* const terms[] = {window.data(), at(1, first)};
      cpu::Reduce(ReduceOp::kSum, DType::kFloat32, length, at(1, first), terms, started_[chunk] ? 2 : 1);
      started_[chunk] = 1;
    }
    call.stage = 1;
    PSRING_RETURN_IF_ERROR(Meet(worker, call, fd));
    const Part part = PartOf(count, worker, workers_);
    Update(at(0, part.first), at(1, part.first), 1.0f / static_cast<float>(workers_), part.count);
    call.stage = 2;
    PSRING_RETURN_IF_ERROR(Meet(worker, call, fd));
    const Answer answer;
    PSRING_RETURN_IF_ERROR(Put(fd, &answer, sizeof answer, MSG_MORE));
    return Put(fd, at(0, 0), count * sizeof(float));
  }

  // Buffer 2: the weights; then the gradients; then the weights of each worker.
  absl::Status Fused(int fd, int worker, size_t count) {
    const auto workers = static_cast<size_t>(workers_);
    RoundCall call{.kind = RoundLimit::kFused, .count = count};
    PSRING_RETURN_IF_ERROR(Prepare(worker, call, fd));
    const int threads = std::min(workers_, 2);
    if (worker < threads) {
      constexpr size_t kEach = kBlockBytes / sizeof(float);
      float sum[kEach];
      std::vector<const void*> gradients(workers);
      const Part part = PartOf(count, worker, threads);
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
    call.stage = 1;
    PSRING_RETURN_IF_ERROR(Meet(worker, call, fd));
    const Answer answer;
    return Put(fd, &answer, sizeof answer);
  }

  std::string address_;
  const int workers_;
  const absl::Duration timeout_;
  const std::unique_ptr<Device> device_;
  RoundMeeting meeting_;
  Mutex mutex_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<Connection> connections_;  // used by the listener's thread, then by the destructor
  std::unique_ptr<AuthenticatedListener> listener_;
  std::atomic<int64_t> joins_ = 0;
  // Changed by Prepare, while all workers wait for it.
  int64_t joins_before_ = 0;
  size_t count_ = 0;
  std::vector<Buffer> buffers_;
  std::vector<Mutex> chunks_;
  std::vector<char> started_;  // the sum contains a gradient; guarded by the chunk's mutex
};

// Unavailable: the connection failed. FailedPrecondition: the server's reason.
absl::Status GetAnswer(int fd) {
  Answer answer;
  PSRING_RETURN_IF_ERROR(Get(fd, &answer, sizeof answer));
  if (answer.reason_bytes == 0) return absl::OkStatus();
  std::string reason(std::min(answer.reason_bytes, kMostReasonBytes), 0);
  PSRING_RETURN_IF_ERROR(Get(fd, reason.data(), reason.size()));
  return absl::FailedPreconditionError(reason);
}

// A server that rejects the request does not read all of it: its reason has precedence over a failed send.
absl::Status Exchange(int fd, const Request& request, ConstSpan gradient) {
  absl::Status sent = Put(fd, &request, sizeof request, gradient.count > 0 ? MSG_MORE : 0);
  if (sent.ok()) sent = Put(fd, gradient.data, gradient.bytes());
  const absl::Status answer = GetAnswer(fd);
  return sent.ok() || absl::IsFailedPrecondition(answer) ? answer : sent;
}

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
  PSRING_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectTcp(server.host, server.port, deadline));
  const Credentials credentials = {.secret = secret, .purpose = Purpose::kRoundLimits, .token = server.token};
  PSRING_RETURN_IF_ERROR(AuthenticateTcp(
      socket, credentials, absl::StrCat("the control round at ", WithoutToken(address)), deadline));
  PSRING_RETURN_IF_ERROR(MakeBlocking(socket.get(), timeout));
  PSRING_RETURN_IF_ERROR(Exchange(socket.get(), {.kind = kJoin, .worker = worker}, {}));
  return RoundLimitClient(std::move(socket), worker);
}

absl::Status RoundLimitClient::Run(RoundLimit kind, ConstSpan gradient, Span weights) {
  PSRING_CHECK(gradient.count == weights.count && gradient.count > 0);
  const Request request = {static_cast<uint32_t>(kind), worker_, gradient.bytes()};
  if (kind == RoundLimit::kFused) return Exchange(socket_.get(), request, {});
  PSRING_RETURN_IF_ERROR(Exchange(socket_.get(), request, gradient));
  return Get(socket_.get(), weights.data, weights.bytes());
}

}  // namespace psring
