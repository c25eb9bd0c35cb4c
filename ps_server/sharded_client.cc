// The client of several servers: cuts exchanges into slices, and carries word from server to server.

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/mutex.h"
#include "ps_server/ps_client.h"
#include "ps_server/sharding.h"

namespace psring {
namespace {

class ShardedClient : public PsClient {
 public:
  explicit ShardedClient(std::vector<std::unique_ptr<PsClient>> servers) : servers_(std::move(servers)) {}

  std::string payload() const override {
    const std::string first = servers_.front()->payload();
    const bool same = std::all_of(servers_.begin(), servers_.end(),
                                  [&](const auto& server) { return server->payload() == first; });
    return same ? first : "mixed";
  }

  // All of it to each: a slice stands there at an offset of its own.
  void ShareMemory(const SharedSpan& gradients, const SharedSpan& weights) override {
    for (const auto& server : servers_) server->ShareMemory(gradients, weights);
  }

  void BeginWith(std::vector<ConstSpan> slots) override { slots_ = std::move(slots); }

  absl::Status Start(int worker, const ServerJob& job, Span weights, absl::Time deadline) override {
    PSRING_RETURN_IF_ERROR(ValidateServerJob(job));
    job_ = job;
    worker_ = worker;
    carries_verdicts_ = absl::StartsWith(job.consistency, "backup");
    slices_ = CutBuckets(job.buckets, count());
    held_.resize(servers_.size());
    for (int server = 0; server < count(); ++server) {
      servers_[server]->OnWord([this, server](const ChunkHeader& word) { OnWordOf(server, word); });
    }
    return OnEach([&](int server) {
      const ServerJob shard = ShardOf(job, slices_[server], server, count());
      std::vector<float> part(static_cast<size_t>(shard.parameters));
      std::vector<std::vector<float>> slots(worker == 0 ? slots_.size() : 0, part);
      std::vector<ConstSpan> spans;
      for (size_t i = 0; i < slots.size(); ++i) {
        Gather(server, shard, slots_[i], slots[i]);
        spans.emplace_back(slots[i].data(), slots[i].size());
      }
      if (worker == 0) Gather(server, shard, weights, part);
      servers_[server]->BeginWith(spans);
      PSRING_RETURN_IF_ERROR(servers_[server]->Start(worker, shard, {part.data(), part.size()}, deadline));
      if (worker != 0) Scatter(server, shard, part, weights);
      return absl::OkStatus();
    });
  }

  void PushPull(const Exchange& exchange, Done done) override {
    auto joint = std::make_shared<Joint>(std::move(done), servers_.size());
    for (int i = 0; i < count(); ++i) {
      // Each worker begins with another server, so that they do not all send to the same one first. With
      // spare workers the first one last: with its last bucket it may decide at once, and then all is held
      // for the others.
      const int server = carries_verdicts_ ? count() - 1 - i : (worker_ + i) % count();
      const BucketSlice slice = slices_[server][exchange.bucket];
      Part part{.exchange = exchange, .joint = joint};
      part.exchange.gradient = exchange.gradient.Slice(slice.first, slice.count);
      part.exchange.weights = exchange.weights.Slice(slice.first, slice.count);
      if (server > 0 && carries_verdicts_) {
        MutexLock lock(mutex_);
        if (failure_.ok()) {  // once it has failed nothing is decided any more
          held_[server].push_back(std::move(part));
          continue;
        }
      }
      Send(server, part);
    }
  }

  // Workers do not come back to several servers, nor do these go back: all begin at 0. Were one of them ever
  // to say otherwise, the earliest step is the one that all of them can go on from.
  int64_t start_step() const override {
    int64_t first = servers_.front()->start_step();
    for (const auto& server : servers_) first = std::min(first, server->start_step());
    return first;
  }

  // The first server's: who has got there has had the answers of all.
  absl::StatusOr<std::optional<int64_t>> Barrier(int number, absl::Time deadline) override {
    absl::StatusOr<std::optional<int64_t>> back = servers_.front()->Barrier(number, deadline);
    if (back.ok()) return back;
    Fail(Named(0, back.status()));
    MutexLock lock(mutex_);
    return failure_;
  }

  absl::Status Fetch(Span weights, absl::Time deadline) override {
    return FetchParts(weights,
                      [&](int server, Span part) { return servers_[server]->Fetch(part, deadline); });
  }

  absl::StatusOr<bool> FetchState(int slot, Span values, absl::Time deadline) override {
    PSRING_RETURN_IF_ERROR(FetchParts(values, [&](int server, Span part) {
      return servers_[server]->FetchState(slot, part, deadline).status();
    }));
    return true;  // several servers do not go back
  }

  absl::Status Leave(absl::Time deadline) override {
    // The first one's answer may say that a step is complete without this worker; the others hear of it
    // before it leaves them.
    if (carries_verdicts_) {
      PSRING_RETURN_IF_ERROR(Named(0, servers_.front()->Leave(deadline)));
    }
    return OnEach([&](int server) {
      return server == 0 && carries_verdicts_ ? absl::OkStatus() : servers_[server]->Leave(deadline);
    });
  }

  void Abort(absl::Status why) override { Fail(why); }

  Traffic traffic() const override {
    Traffic all;
    for (const auto& server : servers_) all = all + server->traffic();
    return all;
  }

  void OnWord(std::function<void(const ChunkHeader&)>) override {}  // nobody stands above
  void Tell(const ChunkHeader& word) override {
    for (const auto& server : servers_) server->Tell(word);
  }

 private:
  // An exchange of all servers, until the last has answered.
  struct Joint {
    Joint(Done its_done, size_t servers) : done(std::move(its_done)), left(servers) {
      result.server_staleness.resize(servers);
    }
    const Done done;
    Mutex mutex;
    size_t left ABSL_GUARDED_BY(mutex);
    bool any ABSL_GUARDED_BY(mutex) = false;
    ExchangeResult result ABSL_GUARDED_BY(mutex);
    absl::Status failure ABSL_GUARDED_BY(mutex);
  };
  struct NormParts {
    std::vector<double> parts;  // by server
    size_t arrived = 0;
  };
  struct Part {
    Exchange exchange;
    std::shared_ptr<Joint> joint;
  };

  int count() const { return static_cast<int>(servers_.size()); }

  absl::Status Named(int server, const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat("server ", server, " of ", count(), ": ", status.message()));
  }

  // Calls `call(server)` for all at once; the first error in time ends the others.
  template <typename Call>
  absl::Status OnEach(const Call& call) {
    std::vector<std::thread> threads;
    for (int server = 0; server < count(); ++server) {
      threads.emplace_back([this, &call, server] {
        if (absl::Status status = Named(server, call(server)); !status.ok()) Fail(status);
      });
    }
    for (std::thread& thread : threads) thread.join();
    MutexLock lock(mutex_);
    return failure_;
  }

  absl::Status FetchParts(Span whole, const std::function<absl::Status(int server, Span part)>& fetch) {
    return OnEach([&](int server) {
      const ServerJob shard = ShardOf(job_, slices_[server], server, count());
      std::vector<float> part(static_cast<size_t>(shard.parameters));
      PSRING_RETURN_IF_ERROR(fetch(server, {part.data(), part.size()}));
      Scatter(server, shard, part, whole);
      return absl::OkStatus();
    });
  }

  // The server's slices: `visit(where in `part`, where in the whole, how many)`.
  template <typename Visit>
  void ForEachSlice(int server, const ServerJob& shard, std::vector<float>& part, const Visit& visit) const {
    for (size_t bucket = 0; bucket < shard.buckets.size(); ++bucket) {
      const BucketSlice& slice = slices_[server][bucket];
      visit(part.data() + shard.buckets[bucket].first, job_.buckets[bucket].first + slice.first, slice.count);
    }
  }
  void Gather(int server, const ServerJob& shard, ConstSpan whole, std::vector<float>& part) const {
    ForEachSlice(server, shard, part, [&](float* in_part, size_t first, size_t length) {
      std::copy_n(whole.floats() + first, length, in_part);
    });
  }
  void Scatter(int server, const ServerJob& shard, std::vector<float>& part, Span weights) const {
    ForEachSlice(server, shard, part, [&](const float* in_part, size_t first, size_t length) {
      std::copy_n(in_part, length, weights.floats() + first);
    });
  }

  void Send(int server, const Part& part) {
    servers_[server]->PushPull(part.exchange, [this, server, part](absl::StatusOr<ExchangeResult> result) {
      Arrived(server, part, std::move(result));
    });
  }

  // On a thread of the server's client.
  void Arrived(int server, const Part& part, absl::StatusOr<ExchangeResult> result) {
    if (!result.ok()) Fail(Named(server, result.status()));
    if (server == 0 && carries_verdicts_ && result.ok() && result->dropped) {
      Carry({.kind = MessageKind::kAnnounce,
             .step = part.exchange.step,
             .version = result->version,
             .dropped = true});
    }
    Joint& joint = *part.joint;
    absl::StatusOr<ExchangeResult> outcome;
    {
      MutexLock lock(joint.mutex);
      if (!result.ok()) {
        if (joint.failure.ok()) joint.failure = Named(server, result.status());
      } else {
        ExchangeResult& all = joint.result;
        all.dropped = result->dropped;
        all.went_back = all.went_back || result->went_back;
        // What is dropped goes on with what the first server says: the others' weights may be newer.
        if (result->dropped ? server == 0 : !joint.any || result->version < all.version) {
          all.version = result->version;
        }
        all.staleness = std::max(all.staleness, result->staleness);
        all.server_staleness[static_cast<size_t>(server)] = result->staleness;
        joint.any = true;
      }
      if (--joint.left > 0) return;
      if (joint.failure.ok()) {
        outcome = joint.result;
      } else {
        outcome = joint.failure;
      }
    }
    joint.done(std::move(outcome));
  }

  // On the thread of the server's client.
  void OnWordOf(int server, const ChunkHeader& word) {
    if (word.kind == MessageKind::kNorm) return OnPartOfNorm(server, word);
    if (!carries_verdicts_ || server > 0) return;
    if (word.kind == MessageKind::kAnnounce) {
      Carry({.kind = MessageKind::kAnnounce, .step = word.step, .complete = word.complete});
    } else if (word.kind == MessageKind::kLeave && word.complete > 0) {
      for (int server = 1; server < count(); ++server) {
        servers_[server]->Tell(
            {.kind = MessageKind::kAnnounce, .step = -1, .version = word.version, .complete = word.complete});
      }
    }
  }

  // Adds up the servers' parts, in their order, and tells each the total. Where another worker was faster, a
  // part may come after the step's weights, and even among those of the next step.
  void OnPartOfNorm(int server, const ChunkHeader& word) {
    double total = 0;
    {
      MutexLock lock(mutex_);
      NormParts& of_step = norms_[word.step];
      of_step.parts.resize(servers_.size());
      of_step.parts[static_cast<size_t>(server)] = word.sum_of_squares;
      if (++of_step.arrived < servers_.size()) return;
      for (const double part : of_step.parts) total += part;
      norms_.erase(word.step);
    }
    Tell({.kind = MessageKind::kNorm, .step = word.step, .sum_of_squares = total});
  }

  // Tells the other servers the first one's verdict on a step, once, and then sends them what was held for
  // it.
  void Carry(const ChunkHeader& verdict) {
    for (int server = 1; server < count(); ++server) {
      std::vector<Part> parts;
      {
        MutexLock lock(mutex_);
        parts.swap(held_[server]);
      }
      if (parts.empty()) continue;
      // What is dropped is answered as soon as it is told; what is admitted is sent when it may be.
      if (!verdict.dropped) servers_[server]->Tell(verdict);
      for (Part& part : parts) {
        part.exchange.dropped = verdict.dropped;
        Send(server, part);
      }
      if (verdict.dropped) servers_[server]->Tell(verdict);
    }
  }

  // The first failure counts. Ends the conversation with every server, and what was held for a verdict.
  void Fail(const absl::Status& why) {
    std::vector<std::vector<Part>> held(servers_.size());
    {
      MutexLock lock(mutex_);
      if (!failure_.ok()) return;
      failure_ = why;
      held.swap(held_);
      held_.resize(servers_.size());
    }
    for (const auto& server : servers_) server->Abort(why);
    for (int server = 1; server < count(); ++server) {
      for (const Part& part : held[server]) Send(server, part);  // comes back with the failure
    }
  }

  int worker_ = 0;
  ServerJob job_;
  std::vector<ConstSpan> slots_;                  // worker 0's, until Start has returned
  std::vector<std::vector<BucketSlice>> slices_;  // by server, by bucket
  bool carries_verdicts_ = false;                 // backup workers

  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, NormParts> norms_ ABSL_GUARDED_BY(mutex_);   // by step
  std::vector<std::vector<Part>> held_ ABSL_GUARDED_BY(mutex_);  // by server: until the first has decided

  const std::vector<std::unique_ptr<PsClient>> servers_;  // last: their threads use the above
};

}  // namespace

std::unique_ptr<PsClient> MakeShardedPsClient(std::vector<std::unique_ptr<PsClient>> servers) {
  PSRING_CHECK(!servers.empty());
  if (servers.size() == 1) return std::move(servers.front());
  return std::make_unique<ShardedClient>(std::move(servers));
}

}  // namespace psring
