// The client of several servers: divides exchanges into slices and combines the answers.
#include "ps_server/client/sharded_client.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {

// The clients are destroyed one after the other; before that, no thread of one may use another.
ShardedClient::~ShardedClient() {
  Fail(Cancelled("its client was destroyed before it left"));
  MutexLock lock(mutex_);
  while (relaying_ > 0) changed_.Wait(mutex_);
}

absl::Status ShardedClient::Start(int worker, const ServerJob& job, const WorkerBuffers& memory,
                                  MonotonicTime deadline) {
  PSRING_RETURN_IF_ERROR(ValidateServerJob(job));
  job_ = job;
  worker_ = worker;
  const WaitingRule rule = RuleOf(job);
  relays_verdicts_ = rule.kind == WaitingRule::Kind::kBackup;
  each_alone_ = rule.each_alone();
  slices_ = CutBuckets(job.buckets, count());
  for (int server = 0; server < count(); ++server) {
    servers_[server]->SetListener(
        [this, server](const message::ToWorker& message) { OnMessage(server, message); });
  }
  // Not the GPU's: servers with and without access to it would write weights to different places.
  const SharedSpan gradients{memory.shared_gradients.span, memory.shared_gradients.fd};
  const SharedSpan weights{memory.shared_weights.span, memory.shared_weights.fd};
  PSRING_RETURN_IF_ERROR(OnEach([&](int server) -> absl::Status {
    const ServerJob shard = ShardOf(job, slices_[server], server, count());
    std::vector<float> part(static_cast<size_t>(shard.parameters));
    std::vector<std::vector<float>> slots(worker == 0 ? memory.slots.size() : 0, part);
    if (worker == 0) Gather(server, shard, memory.weights, part);
    // Each server gets all of the shared memory; each slice has its own offset in it.
    WorkerBuffers of_server{
        .weights = {part.data(), part.size()}, .shared_gradients = gradients, .shared_weights = weights};
    for (size_t i = 0; i < slots.size(); ++i) {
      Gather(server, shard, memory.slots[i], slots[i]);
      of_server.slots.emplace_back(slots[i].data(), slots[i].size());
    }
    PSRING_RETURN_IF_ERROR(servers_[server]->Start(worker, shard, of_server, deadline));
    // On worker 0 these are its own weights, unless the job had begun before.
    Scatter(server, shard, part, memory.weights);
    return absl::OkStatus();
  }));
  return AgreeOnStart(memory.weights, deadline);
}

void ShardedClient::PushPull(const Exchange& exchange, Done done) {
  auto joint = std::make_shared<Joint>(std::move(done), servers_.size());
  for (int i = 0; i < count(); ++i) {
    // Each worker begins with another server, so that they do not all send to the same one first. With backup
    // workers the first server comes last, because it may decide at once, after its last bucket; by then
    // everything is held for the others.
    const int server = relays_verdicts_ ? count() - 1 - i : (worker_ + i) % count();
    const BucketSlice slice = slices_[server][exchange.bucket];
    Part part{.exchange = exchange, .joint = joint};
    part.exchange.gradient = exchange.gradient.Slice(slice.first, slice.count);
    part.exchange.weights = exchange.weights.Slice(slice.first, slice.count);
    bool abandoned = false;
    {
      MutexLock lock(mutex_);
      abandoned = failure_.ok() && goes_back_;
      if (!goes_back_) next_step_ = exchange.step;
      if (failure_.ok() && !goes_back_ && server > 0 && relays_verdicts_) {
        held_[server].push_back(std::move(part));
        continue;
      }
    }
    if (abandoned) {
      Arrived(server, part, ExchangeResult{.went_back = true});
    } else {
      Send(server, part);
    }
  }
  RewindCall call;
  {
    MutexLock lock(mutex_);
    if (each_alone_ && goes_back_) call = RewindsLocked();  // what was sent meanwhile must not wait
  }
  SendRewinds(call);
}

absl::StatusOr<std::optional<int64_t>> ShardedClient::Barrier(int number, MonotonicTime deadline) {
  std::atomic<bool> back = false;
  {
    MutexLock lock(mutex_);
    if (each_alone_ && goes_back_ && failure_.ok()) return StepLocked();
  }
  PSRING_RETURN_IF_ERROR(OnEach([&](int server) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const std::optional<int64_t> step, servers_[server]->Barrier(number, deadline));
    if (step.has_value()) back = true;
    return absl::OkStatus();
  }));
  MutexLock lock(mutex_);
  while (back && !goes_back_ && failure_.ok()) changed_.Wait(mutex_);  // for the listener's Welcome
  if (!goes_back_) return std::nullopt;
  PSRING_RETURN_IF_ERROR(AwaitAgreement(deadline));
  return StepLocked();
}

absl::StatusOr<bool> ShardedClient::Read(const ReadRequest& request, MonotonicTime deadline) {
  if (request.resumes) {
    MutexLock lock(mutex_);
    if (goes_back_) PSRING_RETURN_IF_ERROR(AwaitAgreement(deadline));
    goes_back_ = false;
  }
  std::atomic<bool> all = true;
  PSRING_RETURN_IF_ERROR(OnEach([&](int server) -> absl::Status {
    const ServerJob shard = ShardOf(job_, slices_[server], server, count());
    std::vector<float> part(static_cast<size_t>(shard.parameters));
    ReadRequest of_server = request;
    of_server.values = {part.data(), part.size()};
    PSRING_ASSIGN_OR_RETURN(const bool current, servers_[server]->Read(of_server, deadline));
    if (!current) all = false;
    Scatter(server, shard, part, request.values);
    return absl::OkStatus();
  }));
  MutexLock lock(mutex_);
  return all && !goes_back_;
}

absl::Status ShardedClient::Leave(MonotonicTime deadline) {
  // The first server's answer may say that a step is complete without this worker; relay it before leaving
  // the others.
  if (relays_verdicts_) PSRING_RETURN_IF_ERROR(Named(0, servers_.front()->Leave(deadline)));
  return OnEach([&](int server) {
    return server == 0 && relays_verdicts_ ? absl::OkStatus() : servers_[server]->Leave(deadline);
  });
}

ClientStatus ShardedClient::status() const {
  ClientStatus all = servers_.front()->status();
  for (size_t server = 1; server < servers_.size(); ++server) {
    const ClientStatus one = servers_[server]->status();
    if (one.payload != all.payload) all.payload = "mixed";
    for (const std::string_view wire : one.wires) {
      if (std::ranges::find(all.wires, wire) == all.wires.end()) all.wires.push_back(wire);
    }
    all.traffic = all.traffic + one.traffic;
  }
  all.start_step = start_step_;
  return all;
}

absl::Status ShardedClient::Named(int server, const absl::Status& status) const {
  return Prefixed(status, "server ", server, " of ", count(), ": ");
}

absl::Status ShardedClient::failure() {
  MutexLock lock(mutex_);
  return failure_;
}

void ShardedClient::Gather(int server, const ServerJob& shard, ConstSpan whole,
                           std::vector<float>& part) const {
  for (size_t i = 0; i < shard.buckets.size(); ++i) {
    const BucketSlice& slice = slices_[server][i];
    std::copy_n(whole.floats() + job_.buckets[i].first + slice.first, slice.count,
                part.data() + shard.buckets[i].first);
  }
}

void ShardedClient::Scatter(int server, const ServerJob& shard, const std::vector<float>& part,
                            Span whole) const {
  for (size_t i = 0; i < shard.buckets.size(); ++i) {
    const BucketSlice& slice = slices_[server][i];
    std::copy_n(part.data() + shard.buckets[i].first, slice.count,
                whole.floats() + job_.buckets[i].first + slice.first);
  }
}

void ShardedClient::Send(int server, const Part& part) {
  servers_[server]->PushPull(part.exchange, [this, server, part](absl::StatusOr<ExchangeResult> result) {
    Arrived(server, part, std::move(result));
  });
}

void ShardedClient::Arrived(int server, const Part& part, absl::StatusOr<ExchangeResult> result) {
  const auto relaying = Relaying();
  if (!result.ok()) Fail(Named(server, result.status()));
  if (server == 0 && relays_verdicts_ && result.ok() && result->dropped) {
    Relay({.step = part.exchange.step, .dropped = true, .version = result->version});
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
      // Each push has one version of the first server, by which asynchronous workers count their steps and a
      // dropped one continues; the others' weights may be newer.
      if (server == 0) all.version = result->version;
      all.staleness = std::max(all.staleness, result->staleness);
      all.server_staleness[static_cast<size_t>(server)] = result->staleness;
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
  Joints abandoned;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
    held = TakeHeldLocked();
    abandoned.swap(abandoned_);
    changed_.NotifyAll();
  }
  for (const auto& server : servers_) server->Abort(why);
  for (int server = 1; server < count(); ++server) {
    for (const Part& part : held[server]) Send(server, part);  // its `done` gets the failure
  }
  for (const std::shared_ptr<Joint>& joint : abandoned) GoBack(joint);
}

std::unique_ptr<PsClient> MakeShardedPsClient(std::vector<std::unique_ptr<OneServerClient>> servers) {
  PSRING_CHECK(!servers.empty());
  if (servers.size() == 1) return std::move(servers.front());
  return std::make_unique<ShardedClient>(std::move(servers));
}

}  // namespace psring
