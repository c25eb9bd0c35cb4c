#include "trainer/main/rank_threads.h"

#include <pthread.h>

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"

namespace psring {
namespace {

// How often is_stopping is checked.
constexpr absl::Duration kCheckEvery = absl::Milliseconds(200);

}  // namespace

std::optional<RankFailure> RankThreads::Run(const std::function<absl::Status(int rank)>& body) {
  if (options_.count == 1) {
    const absl::Status status = body(options_.first_rank);
    if (!status.ok()) Failed(options_.first_rank, status);
    MutexLock lock(mutex_);
    return first_;
  }
  std::vector<std::thread> threads;
  for (int rank = options_.first_rank; rank < options_.first_rank + options_.count; ++rank) {
    threads.emplace_back([this, rank, &body] {
      pthread_setname_np(pthread_self(), absl::StrCat("rank ", rank).c_str());
      const absl::Status status = body(rank);
      if (!status.ok()) Failed(rank, status);
      MutexLock lock(mutex_);
      ++returned_;
      changed_.NotifyAll();
    });
  }
  std::optional<RankFailure> failure = WaitForRanks();
  for (std::thread& thread : threads) thread.join();
  return failure;
}

std::optional<RankFailure> RankThreads::WaitForRanks() {
  mutex_.Lock();
  while (returned_ < options_.count) {
    if (!asked_.empty()) {
      Asked* const asked = asked_.front();
      asked_.pop_front();
      mutex_.Unlock();
      const absl::Status status = (*asked->work)();
      mutex_.Lock();
      asked->done = status;
      changed_.NotifyAll();
      continue;
    }
    const MonotonicTime now = MonotonicNow();
    if (first_.has_value() && !options_.is_stopping() && now >= give_up_at_) {
      options_.give_up(*first_);
      PSRING_CHECK(false);  // it does not return
    }
    changed_.WaitUntil(mutex_, first_.has_value() ? std::max(give_up_at_, now + kCheckEvery)
                                                  : MonotonicTime::InfiniteFuture());
  }
  const std::optional<RankFailure> first = first_;
  mutex_.Unlock();
  return first;
}

void RankThreads::Failed(int rank, const absl::Status& status) {
  PSRING_CHECK(!status.ok());
  MutexLock lock(mutex_);
  if (first_.has_value()) return;
  first_ = {rank, status};
  give_up_at_ = MonotonicNow() + options_.patience;
  options_.abort_others(rank, Prefixed(status, "rank ", rank, ": "));
  changed_.NotifyAll();
}

absl::Status RankThreads::OnMainThread(const std::function<absl::Status()>& work) {
  if (options_.count == 1) return work();
  Asked asked{.work = &work, .done = std::nullopt};
  MutexLock lock(mutex_);
  asked_.push_back(&asked);
  changed_.NotifyAll();
  while (!asked.done.has_value()) changed_.Wait(mutex_);
  return *asked.done;
}

}  // namespace psring
