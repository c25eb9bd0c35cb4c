#include "experiments/runs/event_file.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "common/measure/record_names.h"
#include "common/measure/trace.h"

namespace psring {
namespace {

constexpr int64_t kFollowEveryNs = 2'000'000'000;

}  // namespace

absl::StatusOr<EventFile> EventFile::Begin(const std::string& folder, double now_s, const std::string& host,
                                           double zero_s) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  std::filesystem::create_directories(folder, error);
  const std::string path = absl::StrFormat("%s/events.out.tfevents.%.0f.%s", folder, now_s, host);
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
  if (!file.valid()) return FileError("write", path);
  EventFile events(std::move(file), path, zero_s);
  PSRING_RETURN_IF_ERROR(events.Append(TensorBoardFile({}, now_s)));
  return events;
}

absl::Status EventFile::Append(const std::string& bytes) const {
  return WriteToFile(file_.get(), bytes.data(), bytes.size(), path_);
}

void EventFile::ReadNewSteps(const std::string& path, Ahead& ahead) const {
  std::error_code none;
  const auto size = std::filesystem::file_size(path, none);
  if (none) return;
  // The job was restarted, with a new file.
  if (static_cast<int64_t>(size) < ahead.read_bytes) ahead.read_bytes = 0;
  std::ifstream file(path, std::ios::binary);
  file.seekg(ahead.read_bytes);
  // The last line may be incomplete.
  for (std::string line; std::getline(file, line) && !file.eof();) {
    ahead.read_bytes += static_cast<int64_t>(line.size()) + 1;
    absl::StatusOr<StepRecord> step = StepRecordFromJson(line);
    if (!step.ok()) continue;  // the launch's end reports it
    const int64_t last = ahead.steps.empty() ? last_step_ : ahead.steps.back().step;
    if (step->step > last) ahead.steps.push_back(*std::move(step));
  }
}

absl::Status EventFile::Follow(const std::string& records, int ranks) {
  const int64_t now_ns = MonotonicNanos();
  if (now_ns < next_ns_) return absl::OkStatus();
  next_ns_ = now_ns + kFollowEveryNs;
  ranks_.resize(static_cast<size_t>(ranks));
  int64_t common = INT64_MAX;  // the last step of the slowest rank
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    Ahead& ahead = ranks_[rank];
    ReadNewSteps(absl::StrCat(records, "/", kSteps, rank, ".jsonl"), ahead);
    common = std::min(common, ahead.steps.empty() ? last_step_ : ahead.steps.back().step);
  }
  RunRecords reached;
  for (Ahead& ahead : ranks_) {
    const auto end = std::find_if(ahead.steps.begin(), ahead.steps.end(),
                                  [common](const StepRecord& step) { return step.step > common; });
    reached.steps.emplace_back(std::make_move_iterator(ahead.steps.begin()), std::make_move_iterator(end));
    ahead.steps.erase(ahead.steps.begin(), end);
  }
  last_step_ = std::max(last_step_, common);
  return Append(TensorBoardEvents(ScalarsOf(reached, zero_s_)));
}

absl::Status EventFile::Finish(const RunRecords& records) {
  std::vector<Scalar> scalars = ScalarsOf(records, zero_s_);
  std::erase_if(scalars, [this](const Scalar& scalar) {
    return scalar.step <= last_step_ && !absl::StartsWith(scalar.tag, "test/");
  });
  return Append(TensorBoardEvents(scalars));
}

}  // namespace psring
