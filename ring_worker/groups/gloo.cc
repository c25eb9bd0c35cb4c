// Gloo's collectives over TCP: the newer ones, which are functions of a context. They do not include
// reduce-scatter, so it is not offered (the older class supports neither deadlines nor unequal counts).
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/measure/wires.h"
#include "common/net/random_token.h"
#include "ring_worker/groups/gloo_connections.h"
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

class GlooGroup final : public ProcessGroup {
 public:
  GlooGroup(GroupInfo info, std::shared_ptr<gloo::rendezvous::Context> context,
            std::vector<std::string> addresses, const GroupOptions& options)
      : ProcessGroup(std::move(info)),
        context_(std::move(context)),
        addresses_(std::move(addresses)),
        options_(options),
        timeout_(options.timeout) {}

  void Abort(absl::Status why) override {
    {
      MutexLock lock(mutex_);
      if (!aborted_.ok()) return;
      aborted_ = why.ok() ? absl::CancelledError("aborted") : std::move(why);
    }
    // If gloo's address format changes, no connection matches, and a waiting call ends at its deadline.
    if (EndConnections(addresses_) < size() - 1) context_->closeConnections();
  }

  Traffic traffic() const override {
    MutexLock lock(mutex_);
    return traffic_;
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
      if (call.collective == Collective::kAllReduce && call.op == ReduceOp::kMean) {
        cpu::Scale(call.out.type, call.out.count, call.out.data, 1.0f / float(size()));
      }
      MutexLock lock(mutex_);
      traffic_ = traffic_ + DerivedTraffic(call, size());
      return absl::OkStatus();
    });
    return absl::OkStatus();
  }

  absl::Status EnqueueBarrier(Stream& stream) override {
    stream.Run([this, number = ++calls_] {
      return Execute("barrier", [&] {
        gloo::BarrierOptions options(context_);
        options.setTag(number);
        gloo::barrier(options);
      });
    });
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ProcessGroup>> MakePart(Rendezvous* part, int, int) override {
    if (part == nullptr) return nullptr;
    return MakeGlooGroup(*part, options_);
  }

  template <typename Work>
  absl::Status Execute(const std::string& what, const Work& work) {
    PSRING_RETURN_IF_ERROR(Aborted());
    const absl::Status status = Caught(absl::StrCat("rank ", rank(), ": gloo ", info().algorithm, " ", what,
                                                    ", within ", absl::FormatDuration(timeout_)),
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
      case Collective::kReduceScatter:
        return;  // rejected by Enqueue
    }
  }

  const std::shared_ptr<gloo::rendezvous::Context> context_;
  const std::vector<std::string> addresses_;
  const GroupOptions options_;
  const absl::Duration timeout_;
  uint32_t calls_ = 0;
  mutable Mutex mutex_;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  Traffic traffic_ ABSL_GUARDED_BY(mutex_);
};

std::vector<std::string> GlooAlgorithms(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return {"ring", "bcube"};
    case Collective::kAllGather:
      return {"ring"};
    case Collective::kBroadcast:
      return {"binomial-tree"};
    case Collective::kReduceScatter:
      return {};
  }
  return {};
}

}  // namespace

BackendRow GlooBackend() {
  return {.name = "gloo",
          .summary = "Gloo over TCP",
          .available = true,
          .missing = "",
          .algorithms = GlooAlgorithms,
          .transports = {"auto", "tcp"}};
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeGlooGroup(Rendezvous& rendezvous,
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

}  // namespace psring
