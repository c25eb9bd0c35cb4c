#pragma once

#include <memory>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace psring {

// Counts the borrowers of the caller's memory: slices that gRPC holds. Only when there are none left may
// `done` say that the gradient is free.
class Borrowers {
 public:
  // One more, until the last copy of what is returned is gone. `this` outlives it.
  std::shared_ptr<const void> Add() {
    MutexLock lock(mutex_);
    ++count_;
    return std::shared_ptr<const void>(this, [](const void* borrowers) {
      Borrowers& self = *const_cast<Borrowers*>(static_cast<const Borrowers*>(borrowers));
      MutexLock lock(self.mutex_);
      if (--self.count_ == 0) self.none_.NotifyAll();
    });
  }
  // False where there still are some at `deadline`.
  bool AwaitNone(absl::Time deadline) {
    MutexLock lock(mutex_);
    while (count_ > 0) {
      if (absl::Now() >= deadline) return false;
      none_.WaitUntil(mutex_, deadline);
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar none_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace psring
