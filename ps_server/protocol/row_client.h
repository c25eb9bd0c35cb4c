// A worker's interface to the tables on its parameter servers: it pulls the rows that its next batch looks
// up, and pushes their gradient. The job has no row of a table anywhere else.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/deadline.h"

namespace psring {

// `rows`: ascending and distinct. [rows][width]. `slot`: 0 are the values, from 1 a slot of the optimizer.
struct RowPull {
  int table = 0;
  absl::Span<const int32_t> rows;
  float* values = nullptr;
  int slot = 0;
};
struct RowPush {
  int table = 0;
  absl::Span<const int32_t> rows;
  const float* gradient = nullptr;
};
struct RowPut {
  int table = 0;
  absl::Span<const int32_t> rows;
  const float* values = nullptr;
  int slot = 0;
};

// The same threads and errors as PsClient. After PsClient::Start.
class RowClient {
 public:
  // Synchronous servers answer with the rows after the updates of all steps before `step`; others with the
  // current ones. Waits for the answer.
  virtual absl::Status Pull(int64_t step, absl::Span<const RowPull> pulls, MonotonicTime deadline) = 0;

  // The gradient of step `step`, a sum over `samples` samples, at most once per table. Copies the rows and
  // returns; a failure is returned by a later call. Synchronous: every worker calls it once in every step.
  virtual void Push(int64_t step, int64_t samples, absl::Span<const RowPush> pushes) = 0;

  // Worker 0, before the first step of a job with `row_arrays`: the next rows of a table and slot, in order
  // and without gaps. Waits until the servers have them. All pulls wait for the last row.
  virtual absl::Status Put(const RowPut& put, MonotonicTime deadline) = 0;

 protected:
  ~RowClient() = default;
};

}  // namespace psring
