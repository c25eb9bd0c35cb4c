#include "common/cuda/recorded_work.h"

namespace psring {

absl::Status BeginRecording(Stream&) {
  return absl::UnimplementedError("only a GPU's compute stream can be recorded");
}

absl::StatusOr<std::unique_ptr<RecordedWork>> EndRecording(Stream& stream) { return BeginRecording(stream); }

}  // namespace psring
