// Work that is put on a stream once and then repeated as a whole: a GPU is told of it by one call instead of
// one a kernel (a CUDA graph). CMake compiles the implementation where CUDA was found, and
// recorded_work_absent.cc otherwise.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device.h"

namespace psring {

class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  // Puts all of it on the stream that it was recorded from, which must still be there. It reads and writes
  // the memory that was named then.
  virtual void Replay() = 0;
};

// From here on what this thread puts on `stream`, a GPU's compute stream, is noted instead of done. That may
// be copies and zeroes within device and pinned memory, and ops in shapes that they have computed before,
// which need no memory any more. Host work, stamps, events and waits fail, and End says so.
absl::Status BeginRecording(Stream& stream);
// Null where there was nothing.
absl::StatusOr<std::unique_ptr<RecordedWork>> EndRecording(Stream& stream);

}  // namespace psring
