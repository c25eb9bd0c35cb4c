#include "common/measure/records.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <thread>

#include "common/io/files.h"
#include "common/io/hash.h"
#include "nlohmann/json.hpp"
#include "tests/has.h"
#include "tests/test_folder.h"

namespace psring {
namespace {

using Json = nlohmann::json;

// The same with another value in each place; lists keep their lengths.
Json Changed(Json json) {
  for (Json& value : json) {
    if (value.is_structured()) {
      value = Changed(value);
    } else if (value.is_string()) {
      value = value.get<std::string>() + "a \"quoted\"\n\\name";
    } else if (value.is_boolean()) {
      value = !value.get<bool>();
    } else {
      value = value.get<int64_t>() + 1;
    }
  }
  return json;
}

// `some`: with an element in each list.
template <typename Record>
void ExpectRoundTrip(const Record& some, absl::StatusOr<Record> (*read)(const std::string&)) {
  const Json changed = Changed(Json::parse(ToJson(some)));
  const auto record = read(changed.dump()).value();
  EXPECT_EQ(ToJson(record).find('\n'), std::string::npos);
  EXPECT_EQ(Json::parse(ToJson(record)), changed) << "every field that is written is read";
}

StepRecord SomeStep() {
  return {.step = int64_t{1} << 40,
          .begin_ns = 123456789012345678,
          .step_ms = 0.1,
          .compute_ms = 1.0 / 3,
          .comm_busy_ms = 1e-300,
          .payload_tx_bytes = uint64_t{1} << 60,
          .loss = 2.302585,
          .buckets = {{0, 10, 11, 12, -1}, {1, 20, 21, 22, 3}}};
}

TEST(StepRecord, RoundTrips) {
  ExpectRoundTrip({.buckets = {{}}}, StepRecordFromJson);
  EXPECT_EQ(ToJson(StepRecordFromJson(ToJson(SomeStep())).value()), ToJson(SomeStep())) << "exactly";
  EXPECT_EQ(StepRecordFromJson(ToJson(SomeStep()))->buckets.at(1).staleness, 3);
}

TEST(StepRecord, ALossThatIsNotANumberIsNullAndReadAsNaN) {
  StepRecord record;
  record.loss = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(Json::parse(ToJson(record))["loss"].is_null());
  EXPECT_TRUE(std::isnan(StepRecordFromJson(ToJson(record)).value().loss));
}

TEST(StepRecord, ErrorsNameTheProblem) {
  EXPECT_EQ(StepRecordFromJson("{\"rank\":").status().message(),
            "step record: not a JSON object, or truncated");
  EXPECT_EQ(StepRecordFromJson("[]").status().message(), "step record: not a JSON object");
  EXPECT_EQ(StepRecordFromJson("{\"rank\":1}").status().message(), "step record: step: missing");
  EXPECT_EQ(StepRecordFromJson("{\"rank\":\"1\"}").status().message(),
            "step record: rank: expected a whole number from -2147483648 to 2147483647, found \"1\"");
  EXPECT_EQ(StepRecordFromJson("{\"rank\":4294967297}").status().message(),
            "step record: rank: expected a whole number from -2147483648 to 2147483647, found 4294967297");
  std::string line = ToJson(SomeStep());
  line.replace(line.find("\"bucket\":1,"), 11, "");
  EXPECT_EQ(StepRecordFromJson(line).status().message(), "step record: buckets[1].bucket: missing");
}

TEST(StepRecord, NumbersThatWouldOverflowAreErrors) {
  for (const auto& [field, value] : {std::pair("\"step_ms\":", "1e300"),
                                     {"\"begin_ns\":", "9223372036854775807"},
                                     {"\"samples\":", "18446744073709551615"},
                                     {"\"payload_tx_bytes\":", "-1"},
                                     {"\"step\":", "1.5"}}) {
    std::string line = ToJson(SomeStep());
    const size_t at = line.find(field) + std::string(field).size();
    line.replace(at, line.find(',', at) - at, value);
    EXPECT_THAT(StepRecordFromJson(line).status().message(), Has("expected a")) << line;
  }
  RankResult result;
  result.bucket_elements = {-4};
  EXPECT_FALSE(RankResultFromJson(ToJson(result)).ok());
}

TEST(StepRecord, FieldsOfLaterVersionsAreIgnored) {
  std::string line = ToJson(SomeStep());
  line.insert(1, "\"new\":{\"x\":1},");
  EXPECT_TRUE(StepRecordFromJson(line).ok());
}

TEST(RankResult, RoundTrips) {
  const RankResult some{.bucket_elements = {1, 2},
                        .ddp = {.bucket_bytes = {1}, .rebuilt_bucket_bytes = {2}, .ready_order = {"w"}},
                        .curve = {{}, {}},
                        .flags = {"--steps=100"},
                        .wires = {"TCP"}};
  ExpectRoundTrip(some, RankResultFromJson);
  EXPECT_EQ(Json::parse(ToJson(some)).size(), 41) << "every field is written";
}

TEST(RankResult, OfAnEarlierVersionHasDefaultsForNewFields) {
  RankResult result;
  result.computed_ms = result.probe_ms = 3;
  auto json = Json::parse(ToJson(result));
  for (const char* field :
       {"computed_ms", "update_ms", "run_delay_ms", "probe_ms", "ddp", "data_parallel", "wires", "host"}) {
    json.erase(field);
  }
  const auto back = RankResultFromJson(json.dump()).value();
  EXPECT_EQ(back.computed_ms, -1);
  EXPECT_EQ(back.data_parallel.replicas, 0);
  EXPECT_TRUE(back.wires.empty() && back.host.empty());
  json["data_parallel"] = {{"replicas", 2}};
  EXPECT_NE(RankResultFromJson(json.dump()).status().message().find("data_parallel.inputs_bytes: missing"),
            std::string::npos);
  json.erase("data_parallel");
  json["probe_ms"] = "often";
  EXPECT_EQ(RankResultFromJson(json.dump()).status().message(),
            "rank result: probe_ms: expected a number from -1e+11 to 1e+11, found \"often\"");
  json.erase("probe_ms");
  json.erase("steps");
  EXPECT_FALSE(RankResultFromJson(json.dump()).ok());
}

TEST(ServerResult, RoundTrips) {
  ExpectRoundTrip({.staleness_histogram = {1, 2, 3}, .lost_workers = {1}, .lost_at_step = {2}},
                  ServerResultFromJson);
}

TEST(RankResult, TextThatIsNotUtf8DoesNotThrow) {
  RankResult result;
  result.device = "caf\xe9";
  EXPECT_TRUE(RankResultFromJson(ToJson(result)).ok());
}

class FilesTest : public testing::Test {
 protected:
  ptrdiff_t Entries() const { return std::distance(std::filesystem::directory_iterator(folder_.path()), {}); }
  const TestFolder folder_;
};

TEST_F(FilesTest, ReadReturnsTheWrittenText) {
  const std::string path = folder_ / "file";
  const std::string text = std::string("a\0b", 3) + std::string(100000, 'x');
  ASSERT_TRUE(WriteFile(path, "before").ok());
  ASSERT_TRUE(WriteFile(path, text).ok());
  EXPECT_EQ(*ReadFile(path), text);
  ASSERT_TRUE(WriteFile(path, "").ok());
  EXPECT_EQ(*ReadFile(path), "");
  EXPECT_EQ(Entries(), 1) << "nothing is left behind";
}

TEST_F(FilesTest, AReaderNeverSeesAPartialFile) {
  const std::string path = folder_ / "file";
  ASSERT_TRUE(WriteFile(path, std::string(1 << 20, 'a')).ok());
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(WriteFile(path, std::string(1 << 20, 'a' + i % 2)).ok());
    done = true;
  });
  while (!done) {
    const auto text = ReadFile(path).value();
    ASSERT_EQ(text.size(), 1 << 20);
    ASSERT_EQ(text.front(), text.back());
  }
  writer.join();
}

TEST_F(FilesTest, ErrorsNameThePathAndTheReason) {
  EXPECT_EQ(ReadFile((folder_ / "none")).status().message(),
            "cannot read " + (folder_ / "none: No such file or directory"));
  EXPECT_EQ(ReadFile(folder_.path()).status().message(),
            "cannot read " + folder_.path() + ": it is a folder, not a regular file");
  EXPECT_EQ(WriteFile((folder_ / "none/file"), "x").message(),
            "cannot write " + (folder_ / "none/file: No such file or directory"));
  ASSERT_TRUE(std::filesystem::create_directory((folder_ / "folder")));
  EXPECT_EQ(WriteFile((folder_ / "folder"), "x").message(),
            "cannot write " + (folder_ / "folder: Is a directory"));
  EXPECT_EQ(Entries(), 1) << "nothing is left behind";
}

TEST(PeakMemory, IncludesAllocatedMemory) {
  std::vector<char> held(64 << 20, 'x');
  EXPECT_GE(PeakMemoryMb(), 64);
  EXPECT_LT(PeakMemoryMb(), 100000);
  EXPECT_EQ(held.back(), 'x');
}

TEST(HashBytes, IsStableOverTimeAndMachines) {
  // Fixed, because it compares runs of different builds.
  EXPECT_EQ(HashBytes("", 0), HashBytes(nullptr, 0));
  EXPECT_EQ(HashBytes("psring", 6).size(), 16);
  EXPECT_EQ(HashBytes("psring", 6), "2f8f3cbdaf6ac45c");
}

TEST(HashBytes, ChangesWithEveryBitAndTheLength) {
  for (const size_t bytes : {1, 7, 8, 63, 64, 65, 200}) {
    std::string data(bytes, '\0');
    const std::string before = HashBytes(data.data(), data.size());
    for (size_t bit = 0; bit < 8 * bytes; ++bit) {
      data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << bit % 8));
      EXPECT_NE(HashBytes(data.data(), data.size()), before) << bytes << " bytes, bit " << bit;
      data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << bit % 8));
    }
    EXPECT_NE(HashBytes(data.data(), data.size() - 1), before) << "zeros at the end count";
  }
}

TEST(HashBytes, ChangesWhenWordsSwap) {
  std::vector<uint64_t> words(64);
  for (size_t i = 0; i < words.size(); ++i) words[i] = i;
  const std::string before = HashBytes(words.data(), words.size() * 8);
  for (size_t i = 0; i < words.size(); ++i) {
    for (size_t j = i + 1; j < words.size(); ++j) {
      std::swap(words[i], words[j]);
      EXPECT_NE(HashBytes(words.data(), words.size() * 8), before) << i << " " << j;
      std::swap(words[i], words[j]);
    }
  }
}

TEST(HashBytes, DoesNotDependOnAlignment) {
  std::string data(1000, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7);
  for (size_t shift = 0; shift < 8; ++shift) {
    const std::string shifted = std::string(shift, 'x') + data;
    EXPECT_EQ(HashBytes(shifted.data() + shift, data.size()), HashBytes(data.data(), data.size()));
  }
}

}  // namespace
}  // namespace psring
