// What one server decides for all: each worker relays it to the others.
#include <utility>

#include "ps_server/client/sharded_client.h"

namespace psring {

void ShardedClient::OnMessage(int server, const message::ToWorker& message) {
  const Relaying relaying(*this);
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
      if (common_.knows(server) && welcome.went_back) goes_back_ = true;
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

}  // namespace psring
