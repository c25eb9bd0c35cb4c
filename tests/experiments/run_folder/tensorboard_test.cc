// Event files, read by an independent parser of TFRecords and protobuf's wire format.
#include "experiments/run_folder/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/io/files.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::ElementsAre;

template <typename Number>
Number Take(const std::string& bytes, size_t at) {
  Number value;
  EXPECT_LE(at + sizeof(value), bytes.size());
  if (at + sizeof(value) > bytes.size()) return Number{};
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// CRC-32C by its definition, bit by bit.
uint32_t Crc32c(const std::string& bytes) {
  uint32_t crc = 0xffffffff;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
  }
  return ~crc;
}

uint32_t Unmasked(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8;
  return (rotated >> 17) | (rotated << 15);
}

// The payloads of a file; expects valid checksums.
std::vector<std::string> RecordsOf(const std::string& file) {
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    const uint64_t length = Take<uint64_t>(file, at);
    EXPECT_EQ(Unmasked(Take<uint32_t>(file, at + 8)), Crc32c(file.substr(at, 8)));
    if (at + 16 + length > file.size()) {
      ADD_FAILURE() << "a record extends beyond the file";
      break;
    }
    records.push_back(file.substr(at + 12, length));
    EXPECT_EQ(Unmasked(Take<uint32_t>(file, at + 12 + length)), Crc32c(records.back()));
    at += 16 + length;
  }
  return records;
}

uint64_t Varint(const std::string& bytes, size_t& at) {
  uint64_t value = 0;
  for (int shift = 0; at < bytes.size(); shift += 7) {
    const uint8_t byte = static_cast<uint8_t>(bytes[at++]);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) break;
  }
  return value;
}

// A message's fields by number: their bytes, or varints as text.
std::multimap<int, std::string> Fields(const std::string& message) {
  std::multimap<int, std::string> fields;
  for (size_t at = 0; at < message.size();) {
    const uint64_t key = Varint(message, at);
    const int number = static_cast<int>(key >> 3);
    size_t length = 0;
    switch (key & 7) {
      case 0: {
        fields.emplace(number, std::to_string(Varint(message, at)));
        continue;
      }
      case 1:
        length = 8;
        break;
      case 2:
        length = Varint(message, at);
        break;
      case 5:
        length = 4;
        break;
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return fields;
    }
    fields.emplace(number, message.substr(at, length));
    at += length;
  }
  return fields;
}

struct Read {
  double wall_s;
  int64_t step;
  std::string tag;
  float value;
};

std::vector<Read> ReadBack(const std::string& file) {
  std::vector<Read> values;
  const std::vector<std::string> records = RecordsOf(file);
  EXPECT_FALSE(records.empty());
  if (!records.empty()) {
    EXPECT_EQ(Fields(records.front()).find(3)->second, "brain.Event:2");
  }
  for (size_t i = 1; i < records.size(); ++i) {
    const auto event = Fields(records[i]);
    const int64_t step = event.contains(2) ? std::stoll(event.find(2)->second) : 0;
    const auto summary = Fields(event.find(5)->second);
    for (auto [at, end] = summary.equal_range(1); at != end; ++at) {
      const auto value = Fields(at->second);
      values.push_back({Take<double>(event.find(1)->second, 0), step, value.find(1)->second,
                        value.contains(2) ? Take<float>(value.find(2)->second, 0) : 0});
    }
  }
  return values;
}

TEST(TensorBoard, TheChecksumMatchesRfc3720) {
  // RFC 3720, B.4: 32 zero bytes.
  EXPECT_EQ(Unmasked(MaskedCrc32c(std::string(32, '\0'))), 0x8a9136aau);
  EXPECT_EQ(Unmasked(MaskedCrc32c("123456789")), 0xe3069283u);
}

TEST(TensorBoard, RoundTripsScalars) {
  std::vector<std::string> values;
  for (const Read& read : ReadBack(TensorBoardFile({{1000.5, 0, "train/loss", 2.25},
                                                    {1000.5, 0, "time/step_ms", 7},
                                                    {1001, 300, "train/loss", -0.5},
                                                    {1001, 300, "big", 1e30}},
                                                   1000)))
    values.push_back(absl::StrCat(read.wall_s, " ", read.step, " ", read.tag, " ", read.value));
  EXPECT_THAT(values, ElementsAre("1000.5 0 train/loss 2.25", "1000.5 0 time/step_ms 7",
                                  "1001 300 train/loss -0.5", "1001 300 big 1e+30"));
}

TEST(TensorBoard, AFileWithoutScalarsHasOnlyItsVersion) {
  EXPECT_EQ(RecordsOf(TensorBoardFile({}, 5)).size(), 1u);
}

StepRecord Step(int64_t step, double loss, double step_ms) {
  StepRecord record;
  record.step = step;
  record.samples = 10;
  record.begin_ns = 2'000'000'000 + step * 1'000'000'000;
  record.loss = loss;
  record.step_ms = step_ms;
  record.comm_busy_ms = 3;
  return record;
}

std::map<std::string, double> At(const std::vector<Scalar>& scalars, int64_t step) {
  std::map<std::string, double> values;
  for (const Scalar& scalar : scalars) {
    if (scalar.step == step) values[scalar.tag] = scalar.value;
  }
  return values;
}

TEST(TensorBoard, ScalarsAreMeansOverRanksAndRatesAreSums) {
  RunRecords records;
  records.steps = {{Step(0, 2, 10), Step(1, 1, 10)}, {Step(0, 4, 20)}};  // rank 1 has one step
  records.steps[0][0].buckets = {{.staleness = 1}, {.staleness = 2}};
  records.steps[1][0].buckets = {{.staleness = 6}, {.staleness = -1}};
  records.ranks.emplace_back();
  records.ranks[0].curve = {{.updates = 7, .wall_s = 4, .test_loss = 0.5, .test_accuracy = 0.8}};
  const std::vector<Scalar> scalars = ScalarsOf(records, 100);
  auto first = At(scalars, 0);
  EXPECT_EQ(first["train/loss"], 3);
  EXPECT_EQ(first["time/step_ms"], 15);
  EXPECT_EQ(first["time/communication_ms"], 3);
  EXPECT_EQ(first["throughput/samples_per_s"], 1500);
  EXPECT_EQ(first["staleness/mean"], 3);
  EXPECT_EQ(At(scalars, 1)["train/loss"], 1);
  EXPECT_FALSE(At(scalars, 1).contains("staleness/mean"));
  EXPECT_EQ(At(scalars, 7)["test/accuracy"], 0.8);
  EXPECT_EQ(scalars.front().wall_s, 102);
  EXPECT_EQ(scalars.back().wall_s, 106);
}

std::string Lines(int64_t first, int64_t count) {
  std::string lines;
  for (int64_t step = first; step < first + count; ++step) lines += ToJson(Step(step, 1, 10)) + "\n";
  return lines;
}

TEST(TensorBoard, ALaunchIsFollowedAndEveryStepIsWrittenOnce) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / absl::StrCat("psring-event-file-", getpid());
  fs::create_directories(folder / "records");
  const std::string unfinished = Lines(3, 1).substr(0, 20);
  ASSERT_TRUE(WriteFile(folder / "records" / "steps-rank0.jsonl", Lines(0, 3) + unfinished).ok());
  ASSERT_TRUE(WriteFile(folder / "records" / "steps-rank1.jsonl", Lines(0, 2)).ok());
  const auto losses = [&] {
    std::vector<int64_t> steps;
    for (const Read& read :
         ReadBack(ReadFile(folder / "events" / "events.out.tfevents.1000.here").value_or(""))) {
      if (read.tag == "train/loss") steps.push_back(read.step);
    }
    return steps;
  };
  auto events = EventFile::Begin(folder / "events", 1000, "here", 100);
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_EQ(events->Follow(folder / "records", 2), absl::OkStatus());
  EXPECT_THAT(losses(), ElementsAre(0, 1));
  RunRecords records;
  records.steps = {{}, {}};
  for (auto& rank : records.steps) {
    for (int64_t step = 0; step < 4; ++step) rank.push_back(Step(step, 1, 10));
  }
  records.ranks.emplace_back();
  records.ranks[0].curve = {{.updates = 1, .test_accuracy = 0.8}};
  EXPECT_EQ(events->Finish(records), absl::OkStatus());
  EXPECT_THAT(losses(), ElementsAre(0, 1, 2, 3));
  const std::string bytes = ReadFile(folder / "events" / "events.out.tfevents.1000.here").value_or("");
  EXPECT_THAT(bytes, Has("test/accuracy"));
  fs::remove_all(folder);
}

TEST(TensorBoard, OmitsAnUndefinedLoss) {
  RunRecords records;
  records.steps = {{Step(0, std::numeric_limits<double>::quiet_NaN(), 10)}};
  EXPECT_FALSE(At(ScalarsOf(records, 0), 0).contains("train/loss"));
  EXPECT_TRUE(At(ScalarsOf(records, 0), 0).contains("time/step_ms"));
}

}  // namespace
}  // namespace psring
