// Writes a launch's scalars as a TensorBoard event file. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/summary/summarise.h"

namespace psring {

struct Scalar {
  double wall_s = 0;  // since 1970
  int64_t step = 0;
  std::string tag;
  double value = 0;
};

// For each step, means over its ranks: train/loss, time/step_ms, time/compute_ms, time/communication_ms,
// time/exposed_communication_ms, staleness/mean; and the sum over its ranks:
// throughput/samples_per_s. For each evaluation, at its number of updates: test/accuracy, test/loss.
// `zero_s`: the Unix time, in s, when the records' clock was 0. Values that are not finite are omitted.
std::vector<Scalar> ScalarsOf(const RunRecords& records, double zero_s);

// An event file: TFRecords of Event messages, first the file version at Unix time `begin_s`. Consecutive
// scalars of one step share an event.
std::string TensorBoardFile(const std::vector<Scalar>& scalars, double begin_s);
// The same without the version, to append to a file.
std::string TensorBoardEvents(const std::vector<Scalar>& scalars);

// CRC-32C (Castagnoli) of `bytes`, as TFRecord masks it.
uint32_t MaskedCrc32c(const std::string& bytes);

}  // namespace psring
