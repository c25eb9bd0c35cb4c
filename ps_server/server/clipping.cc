#include "ps_server/server/clipping.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"

namespace psring {

void Clipping::Hold(int bucket, Update update) {
  MutexLock lock(mutex_);
  held_[static_cast<size_t>(bucket)] = std::move(update);
  ++count_;
}

bool Clipping::AddReaders(int bucket, const std::vector<int>& readers) {
  MutexLock lock(mutex_);
  std::optional<Update>& held = held_[static_cast<size_t>(bucket)];
  if (!held.has_value()) return false;
  std::ranges::copy(readers, std::back_inserter(held->may_read));
  return true;
}

bool Clipping::Holds(int bucket) const {
  MutexLock lock(mutex_);
  return held_[static_cast<size_t>(bucket)].has_value();
}

std::optional<Clipping::Step> Clipping::TakeComplete() {
  MutexLock lock(mutex_);
  if (count_ == 0 || count_ < held_.size()) return std::nullopt;
  count_ = 0;
  Step complete;
  for (const std::optional<Update>& held : held_) complete.sum_of_squares += held->sum_of_squares;
  complete.step = held_.back()->step;
  complete.workers = held_.back()->workers;
  return complete;
}

Clipping::Update Clipping::Take(int bucket) {
  MutexLock lock(mutex_);
  std::optional<Update>& held = held_[static_cast<size_t>(bucket)];
  PSRING_CHECK(held.has_value());
  return *std::exchange(held, std::nullopt);
}

void Clipping::AwaitTotal(int64_t step) {
  MutexLock lock(mutex_);
  awaited_ = step;
}

bool Clipping::TakeTotal(int64_t step) {
  MutexLock lock(mutex_);
  if (step < 0 || step != awaited_) return false;
  awaited_ = -1;
  return true;
}

}  // namespace psring
