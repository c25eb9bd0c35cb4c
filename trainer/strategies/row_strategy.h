// How the gradients of the rows that all ranks touch become updated rows of tables. It is composed with a
// SyncStrategy, which synchronizes the model's other parameters.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/parameters.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "common/tables/row_range.h"
#include "trainer/strategies/sync_strategy.h"
#include "trainer/tables/touched_rows.h"

namespace psring {

// The initial tables: of a checkpoint, else from the seed.
struct RowStart {
  uint64_t seed = 1;
  // How many arrays (RowRange) the checkpoint has: 1 are the values; more, all. 0: no checkpoint. Equal on
  // all ranks.
  int arrays = 0;
  ReadRows rows = {};   // reads them. Used: rank 0's; without communication each rank's own
  int64_t step = 0;     // the first step
  int64_t samples = 0;  // in the updates before it
};

struct RowReport {
  Traffic traffic;
  RowFigures bytes;                  // of this step
  int64_t begin_ns = 0, end_ns = 0;  // of the exchange; equal: none
  int64_t exposed_ns = 0;            // Pull and Finish waited this long for communication
};

// Called by the training thread. Per step: Pull, SyncStrategy::BeginStep, forward and backward, Push,
// SyncStrategy::FinishStep, Finish. If the strategy drops gradients, FinishStep says whether this one is
// dropped; then there is no Push, else it follows.
class RowStrategy {
 public:
  virtual ~RowStrategy() = default;

  // After SyncStrategy::Start. On return every rank may pull.
  virtual absl::Status Start(const RowStart& start) = 0;

  // Sets the values of `rows`, which are valid until the next Push; `step`: of their lookups, or the number
  // of steps for an evaluation after the last.
  virtual absl::Status Pull(int64_t step, TouchedRows& rows) = 0;

  // The gradient of `rows`, which stay as they are until Finish, is complete. Returns at once.
  virtual absl::Status Push(const StepInfo& info, TouchedRows& rows) = 0;

  // Waits for what Push started. On return the rows are updated, or will be before the next Pull.
  virtual absl::StatusOr<RowReport> Finish() = 0;

  // Between two steps: the tables of this rank, one after the other; empty: it stores none.
  virtual ConstSpan Local() const = 0;

  // For a checkpoint, on rank 0 between two steps: a range after the updates of all steps before `step`.
  virtual absl::Status Read(int64_t step, const RowRange& range, float* to) = 0;

  // From any thread: all waiting and later calls return `why`.
  virtual void Abort(absl::Status why) = 0;
};

// Capabilities of some row strategies; callers ask by dynamic_cast.

// Servers wait for this rank until it leaves.
class ServerMembership {
 public:
  // After the last step and its evaluation. From then on, other ranks do not wait for this one.
  virtual absl::Status Leave() = 0;

 protected:
  ~ServerMembership() = default;
};

// Updates may be pending when a step has ended.
class PendingUpdates {
 public:
  // Before rank 0 reads while this rank pauses: waits until what this rank has pushed is in the tables.
  virtual absl::Status Settle() = 0;

 protected:
  ~PendingUpdates() = default;
};

}  // namespace psring
