// With which step a worker of several servers begins, and begins again where one of them was dead
// (common_step.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "ps_server/client/sharded_client.h"
#include "ps_server/consistency/consistency.h"

namespace psring {

// All servers have let this worker in. Where they come from checkpoints of different steps they go back to
// the earliest.
absl::Status ShardedClient::AgreeOnStart(Span weights, absl::Time deadline) {
  for (const auto& server : servers_) start_step_ = std::max(start_step_, server->start_step());
  PSRING_ASSIGN_OR_RETURN(const WaitingRule rule, ParseWaitingRule(job_.consistency, job_.workers));
  Call call;
  {
    MutexLock lock(mutex_);
    // The word of a server comes to Start and here on two ways.
    while (!common_.knows_all() && failure_.ok()) changed_.Wait(mutex_);
    PSRING_RETURN_IF_ERROR(failure_);
    started_ = true;
    if (rule.each_alone()) return absl::OkStatus();  // each shard goes on from where it was
    // A server that died meanwhile has sent its client back, though all may agree by now: Fetch ends that.
    goes_back_ = goes_back_ || !common_.agreed();
    if (!goes_back_) return absl::OkStatus();
    call = CallBackLocked();
  }
  TellToGoBack(call);
  PSRING_RETURN_IF_ERROR(Fetch(weights, deadline));
  MutexLock lock(mutex_);
  start_step_ = common_.step();
  return absl::OkStatus();
}

void ShardedClient::OnBegin(int server, const ChunkHeader& word) {
  HeldParts held;
  Joints given_up;
  Call call;
  {
    MutexLock lock(mutex_);
    goes_back_ = true;
    common_.OnBegin(server, word.version, word.step);
    norms_.clear();
    total_.reset();
    held = TakeHeldLocked();
    call = CallBackLocked();
    if (common_.agreed()) given_up.swap(given_up_);
    changed_.NotifyAll();
  }
  TellToGoBack(call);
  for (int other = 0; other < count(); ++other) {
    for (const Part& part : held[other]) Arrived(other, part, ExchangeResult{.went_back = true});
  }
  for (const std::shared_ptr<Joint>& joint : given_up) GoBack(joint);
}

ShardedClient::Call ShardedClient::CallBackLocked() const {
  return {common_.ServersToRewind(),
          {.kind = MessageKind::kRewind, .step = common_.step(), .version = common_.epoch_to_send()}};
}

// Whoever is lost at the moment says, when it is there again, where it begins, or hears it then.
void ShardedClient::TellToGoBack(const Call& call) {
  for (const int server : call.servers) servers_[server]->Tell(call.word);
}

void ShardedClient::GoBack(const std::shared_ptr<Joint>& joint) {
  absl::StatusOr<ExchangeResult> outcome = ExchangeResult{.went_back = true};
  {
    MutexLock lock(mutex_);
    if (failure_.ok() && !common_.agreed()) {
      given_up_.push_back(joint);
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
