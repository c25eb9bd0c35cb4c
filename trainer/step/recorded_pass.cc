#include "trainer/step/recorded_pass.h"

#include <utility>

#include "absl/status/statusor.h"

namespace psring {

absl::Status RecordedPass::Run(Stream& stream, const Enqueue& enqueue, const Cut& ready) {
  switch (runs_++) {
    case 0:
      return enqueue(ready);
    case 1:
      return Record(stream, enqueue, ready);
    default:
      for (const Piece& piece : pieces_) {
        if (piece.work != nullptr) piece.work->Replay();
        if (piece.unit.has_value()) ready(*piece.unit);
      }
      return absl::OkStatus();
  }
}

absl::Status RecordedPass::Record(Stream& stream, const Enqueue& enqueue, const Cut& ready) {
  absl::Status status = BeginRecording(stream);
  // Ends a piece and executes it.
  const auto end = [&](std::optional<int> unit) {
    if (!status.ok()) return;
    absl::StatusOr<std::unique_ptr<RecordedWork>> work = EndRecording(stream);
    status = work.status();
    if (!status.ok()) return;
    pieces_.push_back({*std::move(work), unit});
    if (pieces_.back().work != nullptr) pieces_.back().work->Replay();
  };
  const absl::Status enqueued = enqueue([&](int unit) {
    end(unit);
    ready(unit);
    if (status.ok()) status = BeginRecording(stream);
  });
  end(std::nullopt);
  return enqueued.ok() ? status : enqueued;
}

}  // namespace psring
