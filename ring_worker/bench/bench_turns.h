// The cases that are measured in turn for one size, and the check of their results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ring_worker/bench/bench_case.h"
#include "ring_worker/bench/bench_limits.h"
#include "ring_worker/bench/bench_setup.h"
#include "ring_worker/bench/bench_values.h"

namespace psring {

// A combination with one placement, or a limit of the host.
struct BenchCase {
  std::string description;  // for error messages
  bool is_limit = false;
  size_t combination = 0;
  Call call;                      // not for limits
  ProcessGroup* group = nullptr;  // not for limits
  LimitKind limit = LimitKind::kCopy;
  Collective collective = Collective::kAllReduce;
  uint64_t bytes = 0;
  int64_t calls = 1;  // in a turn
  std::vector<int64_t> turn_ns;
  Mismatch mismatch;  // of this rank
};

// `first_op`: `op` is the first of the options' reductions. Collectives without a reduction are measured only
// then.
std::vector<BenchCase> CasesOf(const BenchSetup& setup, DType type, ReduceOp op, bool first_op, size_t bytes);

// Adds the case's description to an error.
absl::Status Explain(const BenchCase& item, const absl::Status& status);

// Writes the input of the next call and overwrites the output buffer. Not for limits.
absl::Status PrepareInput(BenchSetup& setup, const BenchCase& item);
// Compares the output of a call after PrepareInput; records a mismatch in the case.
absl::Status CheckOutput(BenchSetup& setup, BenchCase& item);
// Collective. DataLoss names the first mismatch of the lowest rank that has one.
absl::Status RequireRight(BenchSetup& setup, const std::vector<BenchCase>& cases);

}  // namespace psring
