// What one server decides for all: a worker carries it to the others, who do not know each other.
#include <utility>

#include "ps_server/client/sharded_client.h"

namespace psring {

void ShardedClient::OnWordOf(int server, const ChunkHeader& word) {
  const Speaking speaking(*this);
  if (!failure().ok()) return;
  if (word.kind == MessageKind::kNorm) return OnPartOfNorm(server, word);
  if (word.kind == MessageKind::kJoin) return OnJoined(server, word);
  if (!carries_verdicts_ || server > 0) return;
  if (word.kind == MessageKind::kAnnounce) {
    Carry({.kind = MessageKind::kAnnounce, .step = word.step, .complete = word.complete});
  } else if (word.kind == MessageKind::kLeave && word.complete > 0) {
    for (int other = 1; other < count(); ++other) {
      servers_[other]->Tell(
          {.kind = MessageKind::kAnnounce, .step = -1, .version = word.version, .complete = word.complete});
    }
  }
}

void ShardedClient::OnPartOfNorm(int server, const ChunkHeader& word) {
  ChunkHeader told{.kind = MessageKind::kNorm, .step = word.step};
  {
    MutexLock lock(mutex_);
    if (goes_back_) return;
    NormParts& of_step = norms_[word.step];
    of_step.parts.resize(servers_.size());
    of_step.parts[static_cast<size_t>(server)] = word.sum_of_squares;
    if (++of_step.arrived < servers_.size()) return;
    for (const double part : of_step.parts) told.sum_of_squares += part;
    norms_.erase(word.step);
    total_ = told;
  }
  Tell(told);
}

void ShardedClient::Carry(const ChunkHeader& verdict) {
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

void ShardedClient::OnJoined(int server, const ChunkHeader& word) {
  Call call;
  std::optional<ChunkHeader> total;
  {
    MutexLock lock(mutex_);
    if (!started_) {
      if (common_.knows(server) && word.dropped) goes_back_ = true;
      common_.OnBegin(server, word.version, word.step);
      changed_.NotifyAll();
      return;
    }
    if (!word.dropped) {  // what it was told may have been lost with the stream
      if (goes_back_) call = CallBackLocked();
      if (!goes_back_) total = total_;
    }
  }
  if (word.dropped) return OnBegin(server, word);
  if (total.has_value()) servers_[server]->Tell(*total);
  TellToGoBack(call);
}

}  // namespace psring
