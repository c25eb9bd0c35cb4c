// With which step a worker of several servers begins, and begins again where one of them was dead
// (common_step.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "ps_server/sharded_client.h"

namespace psring {

// All servers have let this worker in. Where they come from checkpoints of different steps they go back to
// the earliest; where they run, and it comes back to them, it begins with the latest.
absl::Status ShardedClient::AgreeOnStart(Span weights, absl::Time deadline) {
  for (const auto& server : servers_) start_step_ = std::max(start_step_, server->start_step());
  Call call;
  bool runs = false;
  {
    MutexLock lock(mutex_);
    // The word of a server comes to Start and here on two ways.
    while (!common_.has_heard_of_all() && failure_.ok()) changed_.Wait(mutex_);
    PSRING_RETURN_IF_ERROR(failure_);
    started_ = true;
    runs = !restored_ && common_.in_one_epoch();
    for (int server = 0; runs && server < count(); ++server) {
      common_.OnBegin(server, common_.newest_epoch(), start_step_);
    }
    goes_back_ = !common_.agreed();
    call = CallBackLocked();
  }
  if (runs) return CatchUp(weights, deadline);
  if (call.servers.empty()) return absl::OkStatus();
  TellToGoBack(call);
  PSRING_RETURN_IF_ERROR(Fetch(weights, deadline));
  MutexLock lock(mutex_);
  start_step_ = common_.step();
  return absl::OkStatus();
}

// A server that lets this worker in at an earlier step than another waits for it there: it gets pushes of no
// samples, which change nothing, up to the step with which this worker begins.
absl::Status ShardedClient::CatchUp(Span weights, absl::Time deadline) {
  const bool all_there = std::all_of(servers_.begin(), servers_.end(), [this](const auto& server) {
    return server->start_step() == start_step_;
  });
  if (all_there) return absl::OkStatus();
  const std::vector<float> nothing(static_cast<size_t>(job_.parameters));
  return OnEach([&](int server) -> absl::Status {
    for (int64_t step = servers_[server]->start_step(); step < start_step_; ++step) {
      PSRING_RETURN_IF_ERROR(PushNothing(server, step, nothing, weights, deadline));
    }
    return absl::OkStatus();
  });
}

absl::Status ShardedClient::PushNothing(int server, int64_t step, const std::vector<float>& nothing,
                                        Span weights, absl::Time deadline) {
  struct Answers {
    Mutex mutex;
    CondVar changed;
    size_t missing ABSL_GUARDED_BY(mutex) = 0;
    absl::Status status ABSL_GUARDED_BY(mutex);
  };
  Answers answers;  // a client ends every exchange before it is gone, and OnEach's failure ends this one's
  answers.missing = job_.buckets.size();
  for (const Bucket& bucket : job_.buckets) {
    const BucketSlice& slice = slices_[server][bucket.index];
    servers_[server]->PushPull({.bucket = bucket.index,
                                .step = step,
                                .gradient = {nothing.data(), slice.count, job_.wire},
                                .weights = weights.Slice(bucket.first + slice.first, slice.count)},
                               [&answers](const absl::StatusOr<ExchangeResult>& result) {
                                 MutexLock lock(answers.mutex);
                                 --answers.missing;
                                 answers.status.Update(result.status());
                                 answers.changed.NotifyAll();
                               });
  }
  bool in_time = true;
  MutexLock lock(answers.mutex);
  while (answers.missing > 0) {
    if (in_time) {
      in_time = absl::Now() < deadline;
      answers.changed.WaitUntil(answers.mutex, deadline);
      continue;
    }
    servers_[server]->Abort(
        absl::DeadlineExceededError(absl::StrCat("waited for an answer to the push of step ", step)));
    answers.changed.Wait(answers.mutex);
  }
  return answers.status;
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
  return {common_.ServersToTell(),
          {.kind = MessageKind::kRewind, .step = common_.step(), .version = common_.epoch_to_tell()}};
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
                                                      absl::StrJoin(common_.ServersToTell(), ", "),
                                                      " to go back to step ", common_.step()));
    }
    changed_.WaitUntil(mutex_, deadline);
  }
  return failure_;
}

}  // namespace psring
