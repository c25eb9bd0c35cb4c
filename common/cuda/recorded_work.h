// Work that is enqueued once and then repeated as a whole: one call launches it instead of one per kernel (a
// CUDA graph). CMake compiles the implementation if it finds CUDA, otherwise cuda_absent.cc.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/device/device.h"

namespace psring {

class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  // Enqueues all of it on the stream on which it was recorded, which must still exist. It reads and writes
  // the memory that was used then.
  virtual void Replay() = 0;
};

// From now on, work that this thread enqueues on `stream`, a GPU's compute stream, is recorded instead of
// run. Allowed are copies and zeroing within device and pinned memory, ops with shapes that they have
// computed before (so that they allocate nothing), and collectives of a group that is recordable. Another
// compute stream takes part once it waits for an event recorded here; `stream` must then wait for an event at
// the end of that stream's work. Both events belong to the recording. A stamp is taken at each replay; its
// variable must outlive the replays. Host work, and waits by the host or for unrecorded work, fail;
// EndRecording returns the error.
absl::Status BeginRecording(Stream& stream);
// Null if nothing was recorded.
absl::StatusOr<std::unique_ptr<RecordedWork>> EndRecording(Stream& stream);

}  // namespace psring
