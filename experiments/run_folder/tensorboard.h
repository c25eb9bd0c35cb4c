// Writes a launch's scalars as a TensorBoard event file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"
#include "common/measure/records.h"
#include "experiments/analysis/summarise.h"

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

// Used by one thread.
class EventFile {
 public:
  // Begins the file in `folder`, which it creates, and removes earlier ones there. `now_s`: Unix time;
  // `host`: the machine's name; `zero_s`: see ScalarsOf. Errors name the path.
  static absl::StatusOr<EventFile> Begin(const std::string& folder, double now_s, const std::string& host,
                                         double zero_s);

  // Appends the steps that all `ranks` have recorded in the folder `records` since the last call. At most
  // every two seconds; other calls do nothing.
  absl::Status Follow(const std::string& records, int ranks);
  // Appends the other steps of the launch, which has ended, and its evaluations.
  absl::Status Finish(const RunRecords& records);

 private:
  // The steps that a rank has recorded and other ranks have not.
  struct Ahead {
    int64_t read_bytes = 0;  // of its file
    std::vector<StepRecord> steps;
  };

  EventFile(FileDescriptor file, std::string path, double zero_s)
      : file_(std::move(file)), path_(std::move(path)), zero_s_(zero_s) {}
  void ReadNewSteps(const std::string& path, Ahead& ahead) const;
  absl::Status Append(const std::string& bytes) const;

  FileDescriptor file_;
  std::string path_;
  double zero_s_;
  int64_t next_ns_ = 0;  // when Follow writes again
  int64_t last_step_ = -1;
  std::vector<Ahead> ranks_;
};

}  // namespace psring
