#include "ps_server/wire/shared_payload.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/mutex.h"
#include "common/cuda/cuda_device.h"
#include "common/net/authentication.h"
#include "common/net/random_token.h"
#include "common/net/tcp_socket.h"

namespace psring {
namespace {

constexpr size_t kTokenBytes = 32;  // as text
constexpr size_t kPageBytes = 4096;
constexpr size_t kMaxWaiting = 1024;  // handed over, and not yet taken by a Join
constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr absl::Duration kKept = absl::Minutes(1);

// What a worker sends: three files (page, gradients, weights) and "TOKEN GRADIENT_BYTES WEIGHT_BYTES",
// followed by the handles of both if they are on a GPU. The answer is "in", or this if the handles are open:
constexpr char kInOnGpu[] = "in, on the GPU";

class Receiver : public PayloadReceiver {
 public:
  Receiver(Device& device, const Credentials& credentials, UnixSocket listener, std::string name)
      : device_(device),
        listener_(std::move(listener)),
        pending_(credentials),
        name_(std::move(name)),
        token_(credentials.token) {
    thread_ = std::thread([this] { Serve(); });
  }
  ~Receiver() override {
    shutdown(listener_.fd(), SHUT_RDWR);  // ends the thread's Wait
    thread_.join();
  }

  std::string offer() const override { return absl::StrCat(name_, " ", token_); }

  std::optional<WorkerMemory> Take(const std::string& token) override {
    MutexLock lock(mutex_);
    const auto found = std::ranges::find(waiting_, token, &Waiting::token);
    if (found == waiting_.end()) return std::nullopt;
    std::optional<WorkerMemory> memory = std::move(found->memory);
    waiting_.erase(found);
    return memory;
  }

 private:
  struct Waiting {
    std::string token;
    WorkerMemory memory;
    MonotonicTime since;
  };

  void Serve() {
    while (true) {
      auto workers = pending_.Wait({listener_.fd()}, MonotonicNow() + kPatience);
      if (absl::IsCancelled(workers.status())) return;
      if (!workers.ok()) {
        absl::SleepFor(kPatience / 20);  // out of descriptors
        continue;
      }
      for (PendingConnections::Member& worker : *workers) {
        // A worker that does not follow the handshake uses no shared memory.
        (void)Admit(UnixSocket(worker.socket.TakeDescriptor()));
      }
      ForgetOld();
    }
  }

  absl::Status Admit(const UnixSocket& worker) {
    const MonotonicTime deadline = MonotonicNow() + kPatience;
    PSRING_ASSIGN_OR_RETURN(UnixSocket::Message message, worker.Receive(deadline));
    const std::vector<std::string> words = absl::StrSplit(message.text, ' ');
    Waiting handed{.since = MonotonicNow()};
    uint64_t gradients = 0, weights = 0;
    if (message.files.size() != 3 || (words.size() != 3 && words.size() != 5) ||
        words[0].size() != kTokenBytes || !absl::SimpleAtoi(words[1], &gradients) ||
        !absl::SimpleAtoi(words[2], &weights)) {
      return InvalidArgument("not a worker that shares its memory");
    }
    handed.token = words[0];
    const auto map = [&](size_t file, size_t bytes) {
      return SharedMemory::Adopt(message.files[file].release(), bytes, /*prefault=*/false);
    };
    PSRING_ASSIGN_OR_RETURN(const SharedMemory page, map(0, kPageBytes));
    if (std::memcmp(page.data(), handed.token.data(), kTokenBytes) != 0) {
      return InvalidArgument("the worker's token is not in its memory");
    }
    PSRING_ASSIGN_OR_RETURN(handed.memory.gradients, map(1, gradients));
    PSRING_ASSIGN_OR_RETURN(handed.memory.weights, map(2, weights));
    if (words.size() == 5) {
      // If one cannot be opened (another driver, no peer access), the host's memory is used.
      absl::StatusOr<Buffer> gpu_gradients = ImportMemory(device_, words[3], gradients);
      absl::StatusOr<Buffer> gpu_weights = ImportMemory(device_, words[4], weights);
      if (gpu_gradients.ok() && gpu_weights.ok()) {
        handed.memory.gradients_on_gpu = *std::move(gpu_gradients);
        handed.memory.weights_on_gpu = *std::move(gpu_weights);
      }
    }
    const std::string answer = handed.memory.on_gpu() ? kInOnGpu : "in";
    if (handed.memory.on_gpu()) {
      FileDescriptor second(fcntl(worker.fd(), F_DUPFD_CLOEXEC, 0));
      if (!second.valid()) return SystemError("cannot keep a worker's local connection");
      handed.memory.in_use = UnixSocket(std::move(second));
    }
    {
      MutexLock lock(mutex_);
      if (waiting_.size() >= kMaxWaiting) return ResourceExhausted("too many workers wait with their memory");
      waiting_.push_back(std::move(handed));
    }
    std::memcpy(page.data() + kTokenBytes, token_.data(), kTokenBytes);
    return worker.Send(answer, {}, deadline);
  }

  void ForgetOld() {
    const MonotonicTime oldest = MonotonicNow() - kKept;
    MutexLock lock(mutex_);
    std::erase_if(waiting_, [&](const Waiting& one) { return one.since < oldest; });
  }

  Device& device_;
  const UnixSocket listener_;
  PendingConnections pending_;  // used by the thread
  const std::string name_, token_;
  Mutex mutex_;
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace

std::optional<uint64_t> PlaceIn(const SharedSpan& shared, ConstSpan span) {
  const auto* const data = static_cast<const std::byte*>(shared.span.data);
  const auto* const begin = static_cast<const std::byte*>(span.data);
  if (begin < data || begin > data + shared.span.bytes()) return std::nullopt;
  const auto place = static_cast<uint64_t>(begin - data);
  if (span.bytes() > shared.span.bytes() - place) return std::nullopt;
  return place;
}

absl::StatusOr<std::unique_ptr<PayloadReceiver>> PayloadReceiver::Open(Device& device,
                                                                       const JobSecret& secret) {
  const Credentials credentials = {
      .secret = secret, .purpose = Purpose::kSharedPayload, .token = RandomToken(kTokenBytes)};
  PSRING_RETURN_IF_ERROR(CheckCredentials(credentials));
  std::string name = absl::StrCat("psring-", RandomToken(kTokenBytes));
  PSRING_ASSIGN_OR_RETURN(UnixSocket listener, UnixSocket::Listen(name));
  return std::make_unique<Receiver>(device, credentials, std::move(listener), std::move(name));
}

absl::StatusOr<HandedOver> HandOverMemory(const std::string& offer, const JobSecret& secret,
                                          const SharedSpan& gradients, const SharedSpan& weights,
                                          MonotonicTime deadline) {
  if (gradients.fd < 0 || weights.fd < 0) return FailedPrecondition("the worker's memory is private");
  const std::vector<std::string> words = absl::StrSplit(offer, ' ');
  if (words.size() != 2 || words[1].size() != kTokenBytes) {
    return Unavailable("the server offers no shared memory");
  }
  std::string token = RandomToken(kTokenBytes);
  PSRING_ASSIGN_OR_RETURN(const SharedMemory page, SharedMemory::Create(kPageBytes));
  std::memcpy(page.data(), token.data(), kTokenBytes);
  absl::StatusOr<UnixSocket> server = UnixSocket::Connect(words[0], deadline);
  if (!server.ok()) {
    return Unavailable("its local socket cannot be reached from here (", server.status().message(), ")");
  }
  const Credentials credentials = {.secret = secret, .purpose = Purpose::kSharedPayload, .token = words[1]};
  PSRING_RETURN_IF_ERROR(AuthenticateTo(server->fd(), credentials, "its local socket", deadline));
  std::string message = absl::StrCat(token, " ", gradients.span.bytes(), " ", weights.span.bytes());
  if (!gradients.on_gpu.empty() && !weights.on_gpu.empty()) {
    absl::StrAppend(&message, " ", gradients.on_gpu, " ", weights.on_gpu);
  }
  PSRING_RETURN_IF_ERROR(server->Send(message, {page.fd(), gradients.fd, weights.fd}, deadline));
  PSRING_ASSIGN_OR_RETURN(const UnixSocket::Message answer, server->Receive(deadline));
  if (std::memcmp(page.data() + kTokenBytes, words[1].data(), kTokenBytes) != 0) {
    return Unavailable("the server's token did not appear in this worker's memory");
  }
  const bool on_gpu = answer.text == kInOnGpu;
  return HandedOver{
      .token = std::move(token), .on_gpu = on_gpu, .in_use = on_gpu ? *std::move(server) : UnixSocket()};
}

}  // namespace psring
