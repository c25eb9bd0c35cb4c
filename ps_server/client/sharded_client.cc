// The client of several servers: cuts exchanges into slices, and puts the answers together.
#include "ps_server/client/sharded_client.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/check.h"

namespace psring {

ShardedClient::Speaking::Speaking(ShardedClient& client) : client_(client) {
  MutexLock lock(client_.mutex_);
  ++client_.speaking_;
}

ShardedClient::Speaking::~Speaking() {
  MutexLock lock(client_.mutex_);
  --client_.speaking_;
  client_.changed_.NotifyAll();
}

// The clients end one after the other: before the first does, none may have anything to say to it any more.
ShardedClient::~ShardedClient() {
  Fail(absl::CancelledError("its client was destroyed before it left"));
  MutexLock lock(mutex_);
  while (speaking_ > 0) changed_.Wait(mutex_);
}

std::string ShardedClient::payload() const {
  const std::string first = servers_.front()->payload();
  const bool same = std::all_of(servers_.begin(), servers_.end(),
                                [&](const auto& server) { return server->payload() == first; });
  return same ? first : "mixed";
}

// All of it to each: a slice stands there at an offset of its own.
void ShardedClient::ShareMemory(const SharedSpan& gradients, const SharedSpan& weights) {
  // Of servers that reach the GPU and others that do not, each would want the weights of its slice elsewhere.
  const SharedSpan host_gradients{gradients.span, gradients.fd}, host_weights{weights.span, weights.fd};
  for (const auto& server : servers_) server->ShareMemory(host_gradients, host_weights);
}

void ShardedClient::BeginWith(std::vector<ConstSpan> slots) { slots_ = std::move(slots); }

absl::Status ShardedClient::Start(int worker, const ServerJob& job, Span weights, absl::Time deadline) {
  PSRING_RETURN_IF_ERROR(ValidateServerJob(job));
  job_ = job;
  worker_ = worker;
  carries_verdicts_ = absl::StartsWith(job.consistency, "backup");
  slices_ = CutBuckets(job.buckets, count());
  {
    MutexLock lock(mutex_);
    held_.resize(servers_.size());
  }
  for (int server = 0; server < count(); ++server) {
    servers_[server]->OnWord([this, server](const ChunkHeader& word) { OnWordOf(server, word); });
  }
  PSRING_RETURN_IF_ERROR(OnEach([&](int server) -> absl::Status {
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
    // Worker 0's are its own, unless the job had begun before.
    Scatter(server, shard, part, weights);
    return absl::OkStatus();
  }));
  return AgreeOnStart(weights, deadline);
}

void ShardedClient::PushPull(const Exchange& exchange, Done done) {
  auto joint = std::make_shared<Joint>(std::move(done), servers_.size());
  for (int i = 0; i < count(); ++i) {
    // Each worker begins with another server, so that they do not all send to the same one first. With spare
    // workers the first one last: with its last bucket it may decide at once, and then all is held for the
    // others.
    const int server = carries_verdicts_ ? count() - 1 - i : (worker_ + i) % count();
    const BucketSlice slice = slices_[server][exchange.bucket];
    Part part{.exchange = exchange, .joint = joint};
    part.exchange.gradient = exchange.gradient.Slice(slice.first, slice.count);
    part.exchange.weights = exchange.weights.Slice(slice.first, slice.count);
    bool given_up = false;
    {
      MutexLock lock(mutex_);
      given_up = failure_.ok() && goes_back_;
      // Once it has failed nothing is decided any more.
      if (failure_.ok() && !goes_back_ && server > 0 && carries_verdicts_) {
        held_[server].push_back(std::move(part));
        continue;
      }
    }
    if (given_up) {
      Arrived(server, part, ExchangeResult{.went_back = true});
    } else {
      Send(server, part);
    }
  }
}

// Of all: any may come back from its death meanwhile.
absl::StatusOr<std::optional<int64_t>> ShardedClient::Barrier(int number, absl::Time deadline) {
  std::atomic<bool> back = false;
  PSRING_RETURN_IF_ERROR(OnEach([&](int server) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const std::optional<int64_t> step, servers_[server]->Barrier(number, deadline));
    if (step.has_value()) back = true;
    return absl::OkStatus();
  }));
  MutexLock lock(mutex_);
  while (back && !goes_back_ && failure_.ok()) changed_.Wait(mutex_);  // the word of it is on its way
  if (!goes_back_) return std::nullopt;
  PSRING_RETURN_IF_ERROR(AwaitAgreement(deadline));
  return common_.step();
}

absl::Status ShardedClient::Fetch(Span weights, absl::Time deadline) {
  {
    MutexLock lock(mutex_);
    if (goes_back_) PSRING_RETURN_IF_ERROR(AwaitAgreement(deadline));
    goes_back_ = false;
  }
  return FetchParts(weights, [&](int server, Span part) { return servers_[server]->Fetch(part, deadline); });
}

absl::StatusOr<bool> ShardedClient::FetchState(int slot, Span values, absl::Time deadline) {
  std::atomic<bool> all = true;
  PSRING_RETURN_IF_ERROR(FetchParts(values, [&](int server, Span part) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const bool fetched, servers_[server]->FetchState(slot, part, deadline));
    if (!fetched) all = false;
    return absl::OkStatus();
  }));
  MutexLock lock(mutex_);
  return all && !goes_back_;
}

absl::Status ShardedClient::FetchParts(Span whole, const FetchPart& fetch) {
  return OnEach([&](int server) -> absl::Status {
    const ServerJob shard = ShardOf(job_, slices_[server], server, count());
    std::vector<float> part(static_cast<size_t>(shard.parameters));
    PSRING_RETURN_IF_ERROR(fetch(server, {part.data(), part.size()}));
    Scatter(server, shard, part, whole);
    return absl::OkStatus();
  });
}

absl::Status ShardedClient::Leave(absl::Time deadline) {
  // The first one's answer may say that a step is complete without this worker; the others hear of it before
  // it leaves them.
  if (carries_verdicts_) {
    PSRING_RETURN_IF_ERROR(Named(0, servers_.front()->Leave(deadline)));
  }
  return OnEach([&](int server) {
    return server == 0 && carries_verdicts_ ? absl::OkStatus() : servers_[server]->Leave(deadline);
  });
}

Traffic ShardedClient::traffic() const {
  Traffic all;
  for (const auto& server : servers_) all = all + server->traffic();
  return all;
}

void ShardedClient::Tell(const ChunkHeader& word) {
  for (const auto& server : servers_) server->Tell(word);
}

absl::Status ShardedClient::Named(int server, const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("server ", server, " of ", count(), ": ", status.message()));
}

absl::Status ShardedClient::failure() {
  MutexLock lock(mutex_);
  return failure_;
}

void ShardedClient::Gather(int server, const ServerJob& shard, ConstSpan whole,
                           std::vector<float>& part) const {
  ForEachSlice(server, shard, part, [&](float* in_part, size_t first, size_t length) {
    std::copy_n(whole.floats() + first, length, in_part);
  });
}

void ShardedClient::Scatter(int server, const ServerJob& shard, std::vector<float>& part,
                            Span weights) const {
  ForEachSlice(server, shard, part, [&](const float* in_part, size_t first, size_t length) {
    std::copy_n(in_part, length, weights.floats() + first);
  });
}

void ShardedClient::Send(int server, const Part& part) {
  servers_[server]->PushPull(part.exchange, [this, server, part](absl::StatusOr<ExchangeResult> result) {
    Arrived(server, part, std::move(result));
  });
}

void ShardedClient::Arrived(int server, const Part& part, absl::StatusOr<ExchangeResult> result) {
  const Speaking speaking(*this);
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
  if (outcome.ok() && outcome->went_back) return GoBack(part.joint);
  joint.done(std::move(outcome));
}

ShardedClient::HeldParts ShardedClient::TakeHeldLocked() {
  return std::exchange(held_, HeldParts(servers_.size()));
}

void ShardedClient::Fail(const absl::Status& why) {
  HeldParts held;
  Joints given_up;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
    held = TakeHeldLocked();
    given_up.swap(given_up_);
    changed_.NotifyAll();
  }
  for (const auto& server : servers_) server->Abort(why);
  for (int server = 1; server < count(); ++server) {
    for (const Part& part : held[server]) Send(server, part);  // comes back with the failure
  }
  for (const std::shared_ptr<Joint>& joint : given_up) GoBack(joint);
}

std::unique_ptr<PsClient> MakeShardedPsClient(std::vector<std::unique_ptr<PsClient>> servers) {
  PSRING_CHECK(!servers.empty());
  if (servers.size() == 1) return std::move(servers.front());
  return std::make_unique<ShardedClient>(std::move(servers));
}

}  // namespace psring
