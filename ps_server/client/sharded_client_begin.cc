// The step with which a worker of several servers begins, and begins again after one of them has restarted
// (common_step.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "ps_server/client/sharded_client.h"
#include "ps_server/consistency/consistency.h"

namespace psring {

// This worker has joined all servers. If they begin at checkpoints of different steps, all go back to the
// earliest.
absl::Status ShardedClient::AgreeOnStart(Span weights, absl::Time deadline) {
  for (const auto& server : servers_) start_step_ = std::max(start_step_, server->status().start_step);
  PSRING_ASSIGN_OR_RETURN(const WaitingRule rule, ParseWaitingRule(job_.consistency, job_.workers));
  RewindCall call;
  {
    MutexLock lock(mutex_);
    // Start may return before the listener has seen the Welcome.
    while (!common_.knows_all() && failure_.ok()) changed_.Wait(mutex_);
    PSRING_RETURN_IF_ERROR(failure_);
    started_ = true;
    if (rule.each_alone()) return absl::OkStatus();  // each shard continues from its own step
    // A server that restarted meanwhile has sent its client back, even if all agree by now: Fetch ends that.
    goes_back_ = goes_back_ || !common_.agreed();
    if (!goes_back_) return absl::OkStatus();
    call = RewindsLocked();
  }
  SendRewinds(call);
  PSRING_RETURN_IF_ERROR(Fetch(weights, deadline));
  MutexLock lock(mutex_);
  start_step_ = common_.step();
  return absl::OkStatus();
}

void ShardedClient::OnBegin(int server, const message::Welcome& welcome) {
  HeldParts held;
  Joints abandoned;
  RewindCall call;
  {
    MutexLock lock(mutex_);
    goes_back_ = true;
    common_.OnBegin(server, welcome.epoch, welcome.step);
    norms_.clear();
    total_.reset();
    held = TakeHeldLocked();
    call = RewindsLocked();
    if (common_.agreed()) abandoned.swap(abandoned_);
    changed_.NotifyAll();
  }
  SendRewinds(call);
  for (int other = 0; other < count(); ++other) {
    for (const Part& part : held[other]) Arrived(other, part, ExchangeResult{.went_back = true});
  }
  for (const std::shared_ptr<Joint>& joint : abandoned) GoBack(joint);
}

ShardedClient::RewindCall ShardedClient::RewindsLocked() const {
  return {common_.ServersToRewind(), {.step = common_.step(), .epoch = common_.epoch_to_send()}};
}

// A server that is lost at the moment gets its Rewind, if it still needs one, after reconnecting.
void ShardedClient::SendRewinds(const RewindCall& call) {
  for (const int server : call.servers) servers_[server]->Send(call.message);
}

void ShardedClient::GoBack(const std::shared_ptr<Joint>& joint) {
  absl::StatusOr<ExchangeResult> outcome = ExchangeResult{.went_back = true};
  {
    MutexLock lock(mutex_);
    if (failure_.ok() && !common_.agreed()) {
      abandoned_.push_back(joint);
      return;
    }
    outcome->version = common_.step();
    if (!failure_.ok()) outcome = failure_;
  }
  joint->done(std::move(outcome));
}

absl::Status ShardedClient::AwaitAgreement(absl::Time deadline) {
  while (failure_.ok() && !common_.agreed()) {
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("waited for servers ",
                                                      absl::StrJoin(common_.ServersToRewind(), ", "),
                                                      " to go back to step ", common_.step()));
    }
    changed_.WaitUntil(mutex_, deadline);
  }
  return failure_;
}

}  // namespace psring
