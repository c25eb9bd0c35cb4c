#include "experiments/runs/tensorboard.h"

#include <array>
#include <cmath>
#include <map>

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
      sums.begin_ns += static_cast<double>(step.begin_ns);
      sums.loss += step.loss;
      sums.step_ms += step.step_ms;
      sums.compute_ms += step.compute_ms;
      sums.comm_ms += step.comm_busy_ms;
      sums.exposed_ms += step.exposed_comm_ms;
      if (step.step_ms > 0) sums.samples_per_s += 1e3 * static_cast<double>(step.samples) / step.step_ms;
      for (const BucketRecord& bucket : step.buckets) {
        if (bucket.staleness < 0) continue;
        sums.stale += static_cast<double>(bucket.staleness);
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

}  // namespace psring
