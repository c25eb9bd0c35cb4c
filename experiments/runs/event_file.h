// A launch's TensorBoard event file, which can be followed while the launch runs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"
#include "common/measure/records.h"
#include "experiments/runs/tensorboard.h"

namespace psring {

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
