// What a worker relays between its servers: decisions of one for all, and the step at which all begin, also
// after one of them has restarted (common_step.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/errors.h"
#include "ps_server/client/sharded_client.h"

namespace psring {

void ShardedClient::OnMessage(int server, const message::ToWorker& message) {
  const auto relaying = Relaying();
  if (!failure().ok()) return;
  if (const auto* part = std::get_if<message::NormPart>(&message)) return OnNormPart(server, *part);
  if (const auto* welcome = std::get_if<message::Welcome>(&message)) return OnWelcome(server, *welcome);
  if (!relays_verdicts_ || server > 0) return;
  if (const auto* admitted = std::get_if<message::Admitted>(&message)) {
    Relay({.step = admitted->step, .complete = admitted->complete});
  } else if (const auto* left = std::get_if<message::Left>(&message); left != nullptr && left->complete > 0) {
    for (int other = 1; other < count(); ++other) {
      servers_[other]->Send(
          message::Announcement{.step = -1, .version = left->version, .complete = left->complete});
    }
  }
}

void ShardedClient::OnNormPart(int server, const message::NormPart& part) {
  message::NormTotal total{.step = part.step};
  {
    MutexLock lock(mutex_);
    if (goes_back_) return;
    NormParts& of_step = norms_[part.step];
    of_step.parts.resize(servers_.size());
    of_step.parts[static_cast<size_t>(server)] = part.sum_of_squares;
    if (++of_step.arrived < servers_.size()) return;
    for (const double one : of_step.parts) total.sum_of_squares += one;
    norms_.erase(part.step);
    total_ = total;
  }
  for (const auto& each : servers_) each->Send(total);
}

void ShardedClient::Relay(const message::Announcement& verdict) {
  for (int server = 1; server < count(); ++server) {
    std::vector<Part> parts;
    {
      MutexLock lock(mutex_);
      parts.swap(held_[server]);
    }
    if (parts.empty()) continue;
    // A dropped gradient is answered when the server has the verdict; an admitted one is sent after it.
    if (!verdict.dropped) servers_[server]->Send(verdict);
    for (Part& part : parts) {
      part.exchange.dropped = verdict.dropped;
      Send(server, part);
    }
    if (verdict.dropped) servers_[server]->Send(verdict);
  }
}

void ShardedClient::OnWelcome(int server, const message::Welcome& welcome) {
  RewindCall call;
  std::optional<message::NormTotal> total;
  {
    MutexLock lock(mutex_);
    if (!started_) {
      if (common_.knows(server) && welcome.went_back && !each_alone_) goes_back_ = true;
      common_.OnBegin(server, welcome.epoch, welcome.step);
      changed_.NotifyAll();
      return;
    }
    if (!welcome.went_back) {  // what was sent to it may have been lost with the stream
      if (goes_back_) call = RewindsLocked();
      if (!goes_back_) total = total_;
    }
  }
  if (welcome.went_back) return OnBegin(server, welcome);
  if (total.has_value()) servers_[server]->Send(*total);
  SendRewinds(call);
}

// This worker has joined all servers. If they begin at checkpoints of different steps, all go back to the
// earliest.
absl::Status ShardedClient::AgreeOnStart(Span weights, MonotonicTime deadline) {
  start_step_ = servers_.front()->status().start_step;
  for (const auto& server : servers_) {
    const int64_t step = server->status().start_step;
    // A server that is ahead ignores the pushes that it has.
    start_step_ = each_alone_ ? std::min(start_step_, step) : std::max(start_step_, step);
  }
  RewindCall call;
  {
    MutexLock lock(mutex_);
    // Start may return before the listener has seen the Welcome.
    while (!common_.knows_all() && failure_.ok()) changed_.Wait(mutex_);
    PSRING_RETURN_IF_ERROR(failure_);
    started_ = true;
    next_step_ = start_step_;
    if (each_alone_) return absl::OkStatus();
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
    next_step_ = std::min(next_step_, welcome.step);
    common_.OnBegin(server, welcome.epoch, welcome.step);
    norms_.clear();
    total_.reset();
    held = TakeHeldLocked();
    call = RewindsLocked();
    if (AgreedLocked()) abandoned.swap(abandoned_);
    changed_.NotifyAll();
  }
  SendRewinds(call);
  for (int other = 0; other < count(); ++other) {
    for (const Part& part : held[other]) Arrived(other, part, ExchangeResult{.went_back = true});
  }
  for (const std::shared_ptr<Joint>& joint : abandoned) GoBack(joint);
}

ShardedClient::RewindCall ShardedClient::RewindsLocked() const {
  if (each_alone_) {
    RewindCall call{.message = {.step = next_step_}};
    for (int server = 0; server < count(); ++server) call.servers.push_back(server);
    return call;
  }
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
    if (failure_.ok() && !AgreedLocked()) {
      abandoned_.push_back(joint);
      return;
    }
    outcome->version = StepLocked();
    if (!failure_.ok()) outcome = failure_;
  }
  joint->done(std::move(outcome));
}

absl::Status ShardedClient::AwaitAgreement(MonotonicTime deadline) {
  while (failure_.ok() && !AgreedLocked()) {
    if (MonotonicNow() >= deadline) {
      return DeadlineExceeded("waited for servers ", absl::StrJoin(common_.ServersToRewind(), ", "),
                              " to go back to step ", common_.step());
    }
    changed_.WaitUntil(mutex_, deadline);
  }
  return failure_;
}

}  // namespace psring
