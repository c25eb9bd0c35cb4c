#include "ps_server/round_limits.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/address.h"
#include "common/check.h"
#include "common/mutex.h"
#include "common/reduce.h"
#include "common/tcp_socket.h"

namespace psring {
namespace {

constexpr size_t kWindowBytes = 256 << 10;  // received, and added while it is in the cache
constexpr size_t kBlockBytes = 8 << 10;     // of one fused pass
constexpr uint64_t kMostBytes = uint64_t{1} << 40;

struct Request {
  uint32_t kind = 0;
  int32_t worker = 0;
  uint64_t bytes = 0;
};

absl::Status Failed(const char* call) {
  return absl::UnavailableError(absl::StrCat("the control round: ", call, ": ", strerror(errno)));
}

// Reads and writes wait, at most so long.
absl::Status MakeBlocking(int fd, absl::Duration timeout) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) return Failed("fcntl");
  const timeval limit = absl::ToTimeval(timeout);
  if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
      setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0) {
    return Failed("setsockopt");
  }
  return PrepareTcpSocket(fd);
}

absl::Status Put(int fd, const void* data, size_t bytes) {
  const auto* next = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t n = send(fd, next, bytes, MSG_NOSIGNAL);
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

// All workers' threads meet here, or hear who did not come.
class Meeting {
 public:
  Meeting(int workers, absl::Duration timeout) : workers_(workers), timeout_(timeout) {}

  // `last` runs in the thread of whoever comes last, before the others go on.
  template <typename Last>
  absl::Status Wait(Last last) {
    MutexLock lock(mutex_);
    const int64_t round = rounds_;
    if (++here_ == workers_) {
      outcome_ = last();
      here_ = 0;
      ++rounds_;
      changed_.NotifyAll();
      return outcome_;
    }
    const absl::Time deadline = absl::Now() + timeout_;
    while (round == rounds_ && !over_) {
      if (changed_.WaitUntil(mutex_, deadline) || round != rounds_) continue;
      return absl::DeadlineExceededError("the control round: a worker did not come");
    }
    return over_ ? absl::CancelledError("the control round is over") : outcome_;
  }
  absl::Status Wait() {
    return Wait([] { return absl::OkStatus(); });
  }

  void End() {
    MutexLock lock(mutex_);
    over_ = true;
    changed_.NotifyAll();
  }

 private:
  const int workers_;
  const absl::Duration timeout_;
  Mutex mutex_;
  CondVar changed_;
  int here_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t rounds_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status outcome_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

// A part of `count` elements: of the thread `index` of `threads`.
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
  Server(TcpListener listener, std::string host, int workers, absl::Duration timeout)
      : listener_(std::move(listener)),
        address_(AddressText(host, listener_.port)),
        workers_(workers),
        device_(MakeCpuDevice()),
        meeting_(workers, timeout) {
    acceptor_ = std::thread([this] { Accept(); });
  }

  ~Server() override {
    meeting_.End();
    shutdown(listener_.socket.get(), SHUT_RDWR);
    acceptor_.join();
    for (const FileDescriptor& socket : sockets_) shutdown(socket.get(), SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
  }

  std::string address() const override { return address_; }

 private:
  void Accept() {
    while (static_cast<int>(sockets_.size()) < workers_) {
      pollfd waiting = {listener_.socket.get(), POLLIN, 0};
      if (poll(&waiting, 1, -1) < 0 && errno != EINTR) return;
      FileDescriptor socket(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket.valid()) {
        if (errno == EINVAL) return;  // shut down
        continue;
      }
      if (!MakeBlocking(socket.get(), absl::Hours(24)).ok()) continue;  // idle while others are measured
      sockets_.push_back(std::move(socket));
      threads_.emplace_back([this, fd = sockets_.back().get()] {
        // Its worker sees the connection end and says so; the others' threads miss it.
        (void)Serve(fd);
        shutdown(fd, SHUT_RDWR);
      });
    }
  }

  absl::Status Serve(int fd) {
    std::vector<std::byte> window(kWindowBytes);
    while (true) {
      Request request;
      PSRING_RETURN_IF_ERROR(Get(fd, &request, sizeof request));
      const size_t count = request.bytes / sizeof(float);
      if (request.worker < 0 || request.worker >= workers_ || count == 0 || request.bytes > kMostBytes) {
        return absl::InvalidArgumentError("the control round: a strange request");
      }
      if (request.kind == static_cast<uint32_t>(RoundLimit::kRaw)) {
        PSRING_RETURN_IF_ERROR(Raw(fd, request.worker, count, window));
      } else {
        PSRING_RETURN_IF_ERROR(Fused(fd, request.worker, count));
      }
    }
  }

  // Memory for a round, made by whoever comes last.
  absl::Status Prepare(size_t count, size_t copies) {
    return meeting_.Wait([&]() -> absl::Status {
      started_.assign((count * sizeof(float) + kWindowBytes - 1) / kWindowBytes, 0);
      if (count_ == count && buffers_.size() >= copies) return absl::OkStatus();
      if (count_ != count) buffers_.clear();
      count_ = count;
      if (chunks_.size() < started_.size()) chunks_ = std::vector<Mutex>(started_.size());
      while (buffers_.size() < copies) {
        PSRING_ASSIGN_OR_RETURN(buffers_.emplace_back(), device_->Allocate(count * sizeof(float)));
        std::memset(buffers_.back().data(), 0, buffers_.back().bytes());
      }
      return absl::OkStatus();
    });
  }
  float* at(size_t buffer, size_t first) { return static_cast<float*>(buffers_[buffer].data()) + first; }

  // Buffer 0: the weights; 1: the sum.
  absl::Status Raw(int fd, int worker, size_t count, std::vector<std::byte>& window) {
    PSRING_RETURN_IF_ERROR(Prepare(count, 2));
    constexpr size_t kEach = kWindowBytes / sizeof(float);
    for (size_t chunk = 0; chunk < started_.size(); ++chunk) {
      const size_t first = chunk * kEach, length = std::min(kEach, count - first);
      PSRING_RETURN_IF_ERROR(Get(fd, window.data(), length * sizeof(float)));
      MutexLock lock(chunks_[chunk]);
      const void* const terms[] = {window.data(), at(1, first)};
      cpu::Reduce(ReduceOp::kSum, DType::kFloat32, length, at(1, first), terms, started_[chunk] ? 2 : 1);
      started_[chunk] = 1;
    }
    PSRING_RETURN_IF_ERROR(meeting_.Wait());
    const Part part = PartOf(count, worker, workers_);
    Update(at(0, part.first), at(1, part.first), 1.0f / static_cast<float>(workers_), part.count);
    PSRING_RETURN_IF_ERROR(meeting_.Wait());
    return Put(fd, at(0, 0), count * sizeof(float));
  }

  // Apart from Raw's, buffer 2: the weights; then the gradients; then what each worker gets.
  absl::Status Fused(int fd, int worker, size_t count) {
    const auto workers = static_cast<size_t>(workers_);
    PSRING_RETURN_IF_ERROR(Prepare(count, 3 + 2 * workers));
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
    PSRING_RETURN_IF_ERROR(meeting_.Wait());
    const std::byte done{1};
    return Put(fd, &done, sizeof done);
  }

  const TcpListener listener_;
  const std::string address_;
  const int workers_;
  const std::unique_ptr<Device> device_;
  Meeting meeting_;
  // Of the acceptor; read when it has ended.
  std::vector<FileDescriptor> sockets_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
  // Changed by Prepare alone, while everybody waits for it.
  size_t count_ = 0;
  std::vector<Buffer> buffers_;
  std::vector<Mutex> chunks_;
  std::vector<char> started_;  // a gradient stands in the sum; under the chunk's lock
};

}  // namespace

const char* Name(RoundLimit kind) { return kind == RoundLimit::kRaw ? "raw" : "fused"; }

absl::StatusOr<std::unique_ptr<RoundLimitServer>> RoundLimitServer::Start(const std::string& host,
                                                                          int workers,
                                                                          absl::Duration timeout) {
  PSRING_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(host));
  return std::make_unique<Server>(std::move(listener), host, workers, timeout);
}

absl::StatusOr<RoundLimitClient> RoundLimitClient::Connect(const std::string& address, int worker,
                                                           absl::Duration timeout) {
  PSRING_ASSIGN_OR_RETURN(const HostPort server, ParseAddress(address));
  PSRING_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectTcp(server.host, server.port, absl::Now() + timeout));
  PSRING_RETURN_IF_ERROR(MakeBlocking(socket.get(), timeout));
  return RoundLimitClient(std::move(socket), worker);
}

absl::Status RoundLimitClient::Run(RoundLimit kind, ConstSpan gradient, Span weights) {
  PSRING_CHECK(gradient.count == weights.count && gradient.count > 0);
  const Request request = {static_cast<uint32_t>(kind), worker_, gradient.bytes()};
  PSRING_RETURN_IF_ERROR(Put(socket_.get(), &request, sizeof request));
  if (kind == RoundLimit::kRaw) {
    PSRING_RETURN_IF_ERROR(Put(socket_.get(), gradient.data, gradient.bytes()));
    return Get(socket_.get(), weights.data, weights.bytes());
  }
  std::byte done;
  return Get(socket_.get(), &done, sizeof done);
}

}  // namespace psring
