// Gloo's collectives over TCP: the newer ones, which are functions of a context. They do not include
// reduce-scatter, so it is not offered (the older class supports neither deadlines nor unequal counts).
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <filesystem>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/measure/wires.h"
#include "common/net/random_token.h"
#include "ring_worker/groups/groups.h"

namespace psring {
namespace {

// Gloo's messages, without the source location.
std::string Message(const std::exception& error) {
  const std::string text = error.what();
  const size_t end = text.front() == '[' ? text.find("] ") : std::string::npos;
  return end == std::string::npos ? text : text.substr(end + 2);
}

// Converts gloo's exceptions to a status.
template <typename Work>
absl::Status Caught(const std::string& what, const Work& work) {
  try {
    work();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    const std::string message = Message(error);
    const bool late = absl::StrContains(message, "imed out") || absl::StrContains(message, "imeout");
    return absl::Status(late ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable,
                        absl::StrCat(what, ": ", message));
  }
}

// Stores gloo's keys and values in our rendezvous, whose waits have deadlines and whose errors name the
// missing rank.
class RendezvousStore final : public gloo::rendezvous::Store {
 public:
  RendezvousStore(Rendezvous& rendezvous, std::string prefix)
      : rendezvous_(rendezvous), prefix_(std::move(prefix)) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const absl::Status status = rendezvous_.Set(prefix_ + key, std::string(data.begin(), data.end()));
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
    exchanged_.emplace_back(data.begin(), data.end());
  }

  std::vector<char> get(const std::string& key) override {
    const absl::StatusOr<std::string> value =
        rendezvous_.Get(prefix_ + key, absl::StrCat("gloo's address '", key, "'"));
    if (!value.ok()) throw std::runtime_error(std::string(value.status().message()));
    exchanged_.push_back(*value);
    return {value->begin(), value->end()};
  }

  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) (void)get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

  // All values that this rank has set or got.
  std::vector<std::string> TakeExchanged() { return std::move(exchanged_); }

 private:
  Rendezvous& rendezvous_;
  const std::string prefix_;
  std::vector<std::string> exchanged_;
};

using ReduceFunction = gloo::AllreduceOptions::Func;

ReduceFunction FunctionOf(ReduceOp op, DType type) {
  if (type == DType::kFloat32) {
    using Loop = void (*)(void*, const void*, const void*, size_t);
    return op == ReduceOp::kMin   ? static_cast<Loop>(gloo::min<float>)
           : op == ReduceOp::kMax ? static_cast<Loop>(gloo::max<float>)
                                  : static_cast<Loop>(gloo::sum<float>);
  }
  // 16 bits: our function. Gloo's float16 gives the same result but adds one element at a time, and gloo has
  // no bfloat16.
  if (op == ReduceOp::kMean) op = ReduceOp::kSum;
  return [op, type](void* to, const void* a, const void* b, size_t count) {
    const void* sources[] = {a, b};
    cpu::Reduce(op, type, count, to, sources, 2);
  };
}

// The bytes that identify an address: family, port and host. Empty: not a TCP address.
std::string_view Significant(const sockaddr_storage& address) {
  const char* const bytes = reinterpret_cast<const char*>(&address);
  if (address.ss_family == AF_INET) return {bytes, offsetof(sockaddr_in, sin_addr) + sizeof(in_addr)};
  if (address.ss_family == AF_INET6) return {bytes, offsetof(sockaddr_in6, sin6_addr) + sizeof(in6_addr)};
  return {};
}

bool StandsIn(const std::vector<std::string>& published, const sockaddr_storage& address) {
  const std::string_view bytes = Significant(address);
  if (bytes.empty()) return false;
  for (const std::string& text : published) {
    if (text.find(bytes) != std::string::npos) return true;
  }
  return false;
}

bool IsOneOf(int fd, const std::vector<std::string>& published) {
  sockaddr_storage local = {}, peer = {};
  socklen_t local_length = sizeof(local), peer_length = sizeof(peer);
  return getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
         getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_length) == 0 &&
         (StandsIn(published, local) || StandsIn(published, peer));
}

// Shuts down every connected TCP socket of this process whose local or peer address is in `published`: the
// values that gloo's ranks exchanged, which contain their listening addresses in binary form. Returns the
// number of sockets. Gloo cannot cancel a waiting call and does not expose its sockets, but its own thread
// notices the end of a connection and wakes the waiting call.
int EndConnections(const std::vector<std::string>& published) {
  int ended = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end;
       entry.increment(error)) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry->path().filename().string(), &fd) || !IsOneOf(fd, published)) continue;
    if (shutdown(fd, SHUT_RDWR) == 0) ++ended;
  }
  return ended;
}

class GlooGroup final : public LibraryGroup {
 public:
  GlooGroup(GroupInfo info, std::shared_ptr<gloo::rendezvous::Context> context,
            std::vector<std::string> addresses, const GroupOptions& options)
      : LibraryGroup(std::move(info)),
        context_(std::move(context)),
        addresses_(std::move(addresses)),
        options_(options) {}

  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Make(Rendezvous& rendezvous,
                                                            const GroupOptions& options);

  absl::Status Barrier(Stream& stream) override {
    stream.Run([this, number = ++calls_] {
      return Execute("barrier", [&] {
        gloo::BarrierOptions options(context_);
        options.setTag(number);
        gloo::barrier(options);
      });
    });
    return absl::OkStatus();
  }

  void Abort(absl::Status why) override {
    {
      MutexLock lock(mutex_);
      if (!aborted_.ok()) return;
      aborted_ = why.ok() ? absl::CancelledError("aborted") : std::move(why);
    }
    // If gloo's address format changes, no connection matches, and a waiting call ends at its deadline.
    if (EndConnections(addresses_) < size() - 1) context_->closeConnections();
  }

 private:
  absl::Status Enqueue(const CollectiveCall& call, Stream& stream) override {
    if (call.collective == Collective::kReduceScatter) {
      return absl::UnimplementedError("gloo offers no reduce_scatter");
    }
    stream.Run([this, call, number = ++calls_] {
      const std::string what =
          absl::StrCat(Name(call.collective), " of ", call.in.count, " ", Name(call.in.type), " elements");
      PSRING_RETURN_IF_ERROR(Execute(what, [&] {
        if (call.in.type == DType::kFloat32) {
          Call<float>(call, number);
        } else {
          Call<uint16_t>(call, number);
        }
      }));
      FinishOnHost(call);
      return absl::OkStatus();
    });
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ProcessGroup>> MakePart(Rendezvous* part, int, int) override {
    if (part == nullptr) return nullptr;
    return Make(*part, options_);
  }

  template <typename Work>
  absl::Status Execute(const std::string& what, const Work& work) {
    PSRING_RETURN_IF_ERROR(Aborted());
    const absl::Status status = Caught(absl::StrCat("rank ", rank(), ": gloo ", info().algorithm, " ", what,
                                                    ", within ", absl::FormatDuration(options_.timeout)),
                                       work);
    if (status.ok()) return status;
    PSRING_RETURN_IF_ERROR(Aborted());  // the original error, if it caused this one
    Abort(status);                      // so that the peers do not wait for their deadlines
    return status;
  }

  absl::Status Aborted() const {
    MutexLock lock(mutex_);
    return aborted_;
  }

  // T has the size of the elements; the reduction function interprets them.
  template <typename T>
  void Call(const CollectiveCall& call, uint32_t number) {
    T* const in = static_cast<T*>(const_cast<void*>(call.in.data));
    T* const out = static_cast<T*>(call.out.data);
    if (call.out.count == 0) return;  // counts are equal
    switch (call.collective) {
      case Collective::kAllReduce: {
        gloo::AllreduceOptions options(context_);
        options.setAlgorithm(info().algorithm == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                         : gloo::AllreduceOptions::Algorithm::RING);
        if (in != out) options.setInput(in, call.in.count);
        options.setOutput(out, call.out.count);
        options.setReduceFunction(FunctionOf(call.op, call.in.type));
        options.setTag(number);
        gloo::allreduce(options);
        return;
      }
      case Collective::kAllGather: {
        gloo::AllgatherOptions options(context_);
        if (in != out + size_t(rank()) * call.in.count) options.setInput(in, call.in.count);
        options.setOutput(out, call.out.count);
        options.setTag(number);
        gloo::allgather(options);
        return;
      }
      case Collective::kBroadcast: {
        gloo::BroadcastOptions options(context_);
        options.setOutput(out, call.out.count);
        options.setRoot(call.root);
        options.setTag(number);
        gloo::broadcast(options);
        return;
      }
      case Collective::kAllToAll: {
        gloo::AlltoallOptions options(context_);
        options.setInput(in, call.in.count);
        options.setOutput(out, call.out.count);
        options.setTag(number);
        gloo::alltoall(options);
        return;
      }
      case Collective::kReduceScatter:
        return;  // rejected by Enqueue
    }
  }

  const std::shared_ptr<gloo::rendezvous::Context> context_;
  const std::vector<std::string> addresses_;
  const GroupOptions options_;
  uint32_t calls_ = 0;
  mutable Mutex mutex_;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<ProcessGroup>> GlooGroup::Make(Rendezvous& rendezvous,
                                                              const GroupOptions& options) {
  // Gloo writes to sockets without MSG_NOSIGNAL: if the peer has died, SIGPIPE would end this process
  // silently.
  struct sigaction pipe_action;
  if (sigaction(SIGPIPE, nullptr, &pipe_action) == 0 && pipe_action.sa_handler == SIG_DFL)
    signal(SIGPIPE, SIG_IGN);
  const int rank = rendezvous.options().rank;
  const int size = rendezvous.options().world_size;
  const std::string algorithm = options.algorithm.empty() ? "ring" : options.algorithm;
  // Fails with the names of missing ranks before gloo waits for them, and agrees on keys that no earlier
  // group of this store has used.
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> tokens,
                          rendezvous.Exchange("gloo group", RandomToken(8)));
  RendezvousStore store(rendezvous, absl::StrCat("gloo/", tokens[0], "/"));
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  PSRING_RETURN_IF_ERROR(
      Caught(absl::StrCat("rank ", rank, ": gloo's mesh of ", size, " ranks on ", options.bind_host,
                          ", within ", absl::FormatDuration(options.timeout)),
             [&] {
               gloo::transport::tcp::attr attributes;
               attributes.hostname = options.bind_host;
               auto device = gloo::transport::tcp::CreateDevice(attributes);
               context->setTimeout(std::chrono::milliseconds(absl::ToInt64Milliseconds(options.timeout)));
               context->connectFullMesh(store, device);
             }));
  return std::make_unique<GlooGroup>(GroupInfo{rank, size, "gloo", algorithm, "tcp", {kGlooWire}},
                                     std::move(context), store.TakeExchanged(), options);
}

std::vector<std::string> GlooAlgorithms(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return {"ring", "bcube"};
    case Collective::kAllGather:
      return {"ring"};
    case Collective::kBroadcast:
      return {"binomial-tree"};
    case Collective::kAllToAll:
      return {"direct"};
    case Collective::kReduceScatter:
      return {};
  }
  return {};
}

}  // namespace

BackendRow GlooBackend() {
  return {.name = "gloo",
          .summary = "Gloo over TCP",
          .algorithms = GlooAlgorithms,
          .transports = {"auto", "tcp"},
          .make = GlooGroup::Make};
}

}  // namespace psring
