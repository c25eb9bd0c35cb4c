// TensorBoard event files of real runs, during them and after them.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "common/io/files.h"
#include "tests/experiments/start_psring.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

class EventFilesTest : public LaunchTest {
 protected:
  // The content of the only event file of a launch; empty: there is none.
  std::string Events(const std::string& launch) const {
    std::string bytes;
    int files = 0;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(Folder("run/tensorboard/" + launch), none)) {
      EXPECT_THAT(entry.path().filename().string(), testing::StartsWith("events.out.tfevents."));
      bytes = ReadFile(entry.path().string()).value_or("");
      ++files;
    }
    EXPECT_LE(files, 1);
    return bytes;
  }
};

TEST_F(EventFilesTest, ATrainingWritesStepsWhileItRuns) {
  const auto run = StartPsring(absl::StrCat(
      "train --strategy ring --workers 2 --data synthetic --steps 1000000 --no_eval --tensorboard --out ",
      Folder("run")));
  size_t bytes = 0;
  EXPECT_TRUE(WaitUntil(*run, [&] {
    const std::string events = Events("ring-2/training-1");
    if (bytes == 0 && absl::StrContains(events, "train/loss")) bytes = events.size();
    return bytes > 0 && events.size() > bytes;
  })) << run->Story();
  run->Signal(SIGINT);
  EXPECT_FALSE(WaitUntil(*run, [] { return false; }));
}

TEST_F(EventFilesTest, ATrainingLeavesStepsAndEvaluations) {
  const auto run = Succeeded(StartPsring(absl::StrCat(
      "train --strategy ring --workers 2 --data synthetic --steps 5 --tensorboard --out ", Folder("run"))));
  EXPECT_THAT(run->output(), Has("tensorboard --logdir"));
  const std::string bytes = Events("ring-2/training-1");
  for (const char* tag : {"brain.Event:2", "train/loss", "test/accuracy", "throughput/samples_per_s",
                          "time/communication_ms"}) {
    EXPECT_THAT(bytes, Has(tag));
  }
}

TEST_F(EventFilesTest, AComparisonWritesEachLaunchOfARound) {
  Succeeded(StartPsring(
      absl::StrCat("compare --strategies ring --workers 2 --link none --repeats 2 --model mlp-small --data "
                   "synthetic --no_eval --steps 5 --tensorboard --out ",
                   Folder("run"))));
  for (const char* launch : {"ring-2/cost-1", "ring-2/cost-2", "none-2/cost-2"})
    EXPECT_THAT(Events(launch), Has("train/loss")) << launch;
}

}  // namespace
}  // namespace psring
