#include "experiments/run_folder/measured_run.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "experiments/launch/temporary_folder.h"
#include "tests/experiments/test_catalog.h"

namespace psring {
namespace {

class MeasuredRunTest : public testing::Test {
 protected:
  MeasuredRunTest() : folder_(*TemporaryFolder::Create()) {}

  // One measured step of each worker, which computes for `compute_ms`.
  void AddLaunch(const LaunchNote& note, double compute_ms) {
    const std::string folder = absl::StrCat(folder_.path(), "/records/", note.strategy, note.servers, "/0");
    std::filesystem::create_directories(folder);
    ASSERT_TRUE(WriteFile(folder + "/launch.json", ToJson(note)).ok());
    for (int rank = 0; rank < note.workers; ++rank) {
      const RankResult result{.rank = rank, .world_size = note.workers, .strategy = note.strategy};
      ASSERT_TRUE(WriteFile(absl::StrCat(folder, "/result-rank", rank, ".json"), ToJson(result)).ok());
      const StepRecord step{
          .rank = rank,
          .step_ms = 30,
          .compute_ms = compute_ms,
          .buckets = {
              {.ready_ns = 20'000'000, .begin_ns = 20'000'000, .end_ns = 25'000'000, .staleness = 0}}};
      ASSERT_TRUE(WriteFile(absl::StrCat(folder, "/steps-rank", rank, ".jsonl"), ToJson(step) + "\n").ok());
    }
  }

  const TemporaryFolder folder_;
};

TEST_F(MeasuredRunTest, LaunchesWithOtherServerCountsAreSeparate) {
  AddLaunch({.strategy = "ps-sync", .workers = 2, .servers = 1}, 10);
  AddLaunch({.strategy = "ps-sync", .workers = 2, .servers = 2}, 20);
  const auto run = MeasuredRun::Open(folder_.path()).value();
  for (const int servers : {1, 2}) {
    Configuration configuration = TestConfiguration("ps-sync", 2);
    configuration.training.servers = servers;
    std::string which;
    const auto times = run.TimesFor(configuration, /*any_kind=*/false, which).value();
    EXPECT_EQ(times.workers[0].compute_ms, std::vector<double>{10.0 * servers});
    EXPECT_EQ(which, configuration.name());
  }
}

TEST_F(MeasuredRunTest, LaunchesOverOtherWiresAreSeparate) {
  AddLaunch({.strategy = "ps-sync", .workers = 2, .servers = 1}, 10);
  AddLaunch({.strategy = "ps-sync", .workers = 2, .servers = 2, .trainer_flags = {"--server_wire=stream"}},
            20);
  const auto run = MeasuredRun::Open(folder_.path());
  ASSERT_TRUE(run.ok()) << run.status();
  Configuration configuration = TestConfiguration("ps-sync", 2);
  configuration.training.servers = 2;
  configuration.training.server_wire = "stream";
  std::string which;
  const auto times = run->TimesFor(configuration, /*any_kind=*/false, which);
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(which, "ps-sync x 2 on 2 servers (stream)");
  EXPECT_EQ(which, configuration.name());
}

}  // namespace
}  // namespace psring
