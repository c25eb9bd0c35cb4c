// Writes a rank's files in the record folder; see common/measure/records.h.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"

namespace psring {

// One thread at a time.
class RecordWriter {
 public:
  // Creates `folder` if necessary and removes an earlier result of this rank. While this object exists, no
  // other process can open the same rank's records. Errors name the path.
  static absl::StatusOr<std::unique_ptr<RecordWriter>> Open(const std::string& folder, int rank);

  // Writes whenever some kilobytes or two seconds of steps have been added, so that a full disk is noticed
  // during training and readers can follow it. After an error, every call returns it.
  absl::Status Add(const StepRecord& record);
  // Writes the trace, then the result, which marks the record as complete.
  absl::Status Finish(const Trace& trace, const RankResult& result);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  RecordWriter(std::string folder, int rank) : folder_(std::move(folder)), rank_(rank) {}
  std::string Path(const std::string& stem, const std::string& extension) const;

  const std::string folder_;
  const int rank_;
  std::unique_ptr<std::FILE, Close> steps_;
  absl::Status written_;    // the first error
  int64_t flushed_ns_ = 0;  // the begin of the last step before which everything was written
};

}  // namespace psring
