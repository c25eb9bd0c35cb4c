#include "experiments/run_folder/tensorboard.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "common/measure/record_names.h"
#include "common/measure/trace.h"
#include "proto/tensorboard.pb.h"

namespace psring {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, bits reversed

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? kPolynomial : 0);
    table[byte] = rest;
  }
  return table;
}

template <typename Number>
std::string LittleEndian(Number value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(Number); ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

// A TFRecord: length, checksum of the length, bytes, checksum of the bytes.
void AppendRecord(const proto::TensorBoardEvent& event, std::string& file) {
  const std::string bytes = event.SerializeAsString();
  const std::string length = LittleEndian<uint64_t>(bytes.size());
  file += length + LittleEndian(MaskedCrc32c(length)) + bytes + LittleEndian(MaskedCrc32c(bytes));
}

struct StepSums {
  int ranks = 0, stale_buckets = 0;
  double begin_ns = 0, loss = 0, step_ms = 0, compute_ms = 0, comm_ms = 0, exposed_ms = 0, samples_per_s = 0,
         stale = 0;
};

constexpr int64_t kFollowEveryNs = 2'000'000'000;

}  // namespace

uint32_t MaskedCrc32c(const std::string& bytes) {
  static constexpr std::array<uint32_t, 256> kTable = MakeTable();
  uint32_t crc = ~uint32_t{0};
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

std::vector<Scalar> ScalarsOf(const RunRecords& records, double zero_s) {
  std::map<int64_t, StepSums> steps;
  for (const auto& rank : records.steps) {
    for (const StepRecord& step : rank) {
      StepSums& sums = steps[step.step];
      ++sums.ranks;
      sums.begin_ns += step.begin_ns;
      sums.loss += step.loss;
      sums.step_ms += step.step_ms;
      sums.compute_ms += step.compute_ms;
      sums.comm_ms += step.comm_busy_ms;
      sums.exposed_ms += step.exposed_comm_ms;
      if (step.step_ms > 0) sums.samples_per_s += 1e3 * step.samples / step.step_ms;
      for (const BucketRecord& bucket : step.buckets) {
        if (bucket.staleness < 0) continue;
        sums.stale += bucket.staleness;
        ++sums.stale_buckets;
      }
    }
  }
  std::vector<Scalar> scalars;
  const auto add = [&](double wall_s, int64_t step, const char* tag, double value) {
    if (std::isfinite(value)) scalars.push_back({wall_s, step, tag, value});
  };
  for (const auto& [step, sums] : steps) {
    const double wall_s = zero_s + 1e-9 * sums.begin_ns / sums.ranks;
    add(wall_s, step, "train/loss", sums.loss / sums.ranks);
    add(wall_s, step, "time/step_ms", sums.step_ms / sums.ranks);
    add(wall_s, step, "time/compute_ms", sums.compute_ms / sums.ranks);
    add(wall_s, step, "time/communication_ms", sums.comm_ms / sums.ranks);
    add(wall_s, step, "time/exposed_communication_ms", sums.exposed_ms / sums.ranks);
    add(wall_s, step, "throughput/samples_per_s", sums.samples_per_s);
    if (sums.stale_buckets > 0) add(wall_s, step, "staleness/mean", sums.stale / sums.stale_buckets);
  }
  const double begin_s =
      steps.empty() ? zero_s : zero_s + 1e-9 * steps.begin()->second.begin_ns / steps.begin()->second.ranks;
  for (const RankResult& rank : records.ranks) {
    for (const CurvePoint& point : rank.curve) {
      add(begin_s + point.wall_s, point.updates, "test/accuracy", point.test_accuracy);
      add(begin_s + point.wall_s, point.updates, "test/loss", point.test_loss);
    }
  }
  return scalars;
}

std::string TensorBoardFile(const std::vector<Scalar>& scalars, double begin_s) {
  std::string file;
  proto::TensorBoardEvent event;
  event.set_wall_time(begin_s);
  event.set_file_version("brain.Event:2");
  AppendRecord(event, file);
  return file + TensorBoardEvents(scalars);
}

std::string TensorBoardEvents(const std::vector<Scalar>& scalars) {
  std::string events;
  proto::TensorBoardEvent event;
  for (size_t i = 0; i < scalars.size();) {
    event.Clear();
    event.set_wall_time(scalars[i].wall_s);
    event.set_step(scalars[i].step);
    for (const int64_t step = scalars[i].step; i < scalars.size() && scalars[i].step == step; ++i) {
      proto::TensorBoardSummary::Value& value = *event.mutable_summary()->add_value();
      value.set_tag(scalars[i].tag);
      value.set_simple_value(static_cast<float>(scalars[i].value));
    }
    AppendRecord(event, events);
  }
  return events;
}

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
    const auto end =
        std::ranges::find_if(ahead.steps, [common](const StepRecord& step) { return step.step > common; });
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
