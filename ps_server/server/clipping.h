// Clipping by global norm: the updates of a step's buckets wait until the norm of the whole gradient is
// known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/mutex.h"

namespace psring {

// Thread-safe. Steps follow one another: no worker pushes the next one before all buckets of this one are
// taken.
class Clipping {
 public:
  // A bucket's update that is decided and waits for the norm.
  struct Update {
    std::vector<int> workers;  // whose gradients are in it
    int64_t step = 0;
    int64_t samples = 0;
    double sum_of_squares = 0;
    std::vector<int> may_read;  // after the update
  };
  explicit Clipping(size_t buckets) : held_(buckets) {}

  void Hold(int bucket, Update update);
  // More workers that read the version after the held update. False: no update of the bucket is held.
  bool AddReaders(int bucket, const std::vector<int>& readers);
  bool Holds(int bucket) const;

  // The step for which the updates of all buckets are held; returned once. The sum is added in the order of
  // buckets, whatever the order of arrival.
  struct Step {
    int64_t step = 0;
    double sum_of_squares = 0;
    std::vector<int> workers;
  };
  std::optional<Step> TakeComplete();
  // The bucket's update, which is held.
  Update Take(int bucket);

  // Several servers: the total of all servers is awaited for `step`. Every worker sends the same; TakeTotal
  // is true for the first.
  void AwaitTotal(int64_t step);
  bool TakeTotal(int64_t step);

 private:
  mutable Mutex mutex_;
  std::vector<std::optional<Update>> held_ ABSL_GUARDED_BY(mutex_);  // by bucket
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;                         // held since the last TakeComplete
  int64_t awaited_ ABSL_GUARDED_BY(mutex_) = -1;
};

}  // namespace psring
