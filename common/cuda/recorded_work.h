// Work that is put on a stream once and then repeated as a whole: a GPU is told of it by one call instead of
// one a kernel (a CUDA graph). CMake compiles the implementation where CUDA was found, and
// recorded_work_absent.cc otherwise.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  // Puts all of it on the stream that it was recorded from, which must still be there. It reads and writes
  // the memory that was named then.
  virtual void Replay() = 0;
};

// From here on what this thread puts on `stream`, a GPU's compute stream, is noted instead of done. That may
// be copies and zeroes within device and pinned memory, ops in shapes that they have computed before, which
// need no memory any more, and collectives of a group that says so. Another compute stream takes part from
// where it waits for an event recorded here, and `stream` must wait for an event of its end; such events are
// the recording's own. A stamp tells the moment at each replay, and its place must last as long as they do.
// Host work, and waits of the host or for what is not recorded, fail, and End says so.
absl::Status BeginRecording(Stream& stream);
// Null where there was nothing.
absl::StatusOr<std::unique_ptr<RecordedWork>> EndRecording(Stream& stream);

}  // namespace psring
