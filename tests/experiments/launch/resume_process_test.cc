// Kills or interrupts a real psring and resumes from its checkpoints.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/experiments/launch/restarts.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

class Killed : public RestartTest, public testing::WithParamInterface<const char*> {
 protected:
  const char* Records() const {
    const absl::string_view what = GetParam();
    return what == kSingle         ? "single-1"
           : what == kRingIn16Bits ? "ring-3"
           : what == kThreads      ? "ring-2"
                                   : "ps-sync-2";
  }
  // The undisturbed reference takes no delays.
  std::string Slowly() const { return GetParam() == std::string(kSingle) ? "" : absl::StrCat(kSlow, " "); }
  // Strategies that end with the same bits.
  std::string Reference() const { return GetParam() == std::string(kThreads) ? kRing : GetParam(); }
};

// Killed; resumed from the folder of checkpoints and stopped; resumed from that run.
TEST_P(Killed, AfterSigkillAndSigtermAResumedRunEndsWithTheSameWeights) {
  const auto undisturbed = Undisturbed(Reference());
  Start(GetParam(), Out("killed"), absl::StrCat(Slowly(), "--checkpoint_dir ", Folder(), " --resume latest"));
  AwaitCheckpoint(Folder(), SomeStep());
  Kill(psring_->pid(), SIGKILL);
  EXPECT_EQ(Wait(), 128 + SIGKILL);

  Start(GetParam(), Out("stopped"), absl::StrCat(Slowly(), "--resume ", Folder()));
  const fs::path folder = fs::path(Out("stopped")) / "records" / "training-1" / Records() / "checkpoints";
  AwaitCheckpoint(folder, SomeStep());
  Kill(psring_->pid(), SIGTERM);
  EXPECT_EQ(Wait(), 128 + SIGTERM) << output();
  EXPECT_TRUE(AllEnd());
  const std::string newest = ListCheckpoints(folder.string()).front().path;
  EXPECT_THAT(output(), Has(absl::StrCat("--resume ", newest)));

  Start(GetParam(), Out("resumed"), absl::StrCat("--resume ", Out("stopped")));
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_THAT(output(), Has("resumed after step "));
  EXPECT_EQ(Hash(Out("resumed")), undisturbed["weights_hash"]);
}

std::string NameOf(const testing::TestParamInfo<const char*>& info) {
  const std::vector<std::string> names = {"Single", "RingIn16Bits", "ServerIn16Bits", "Threads"};
  return names[info.index];
}

// What a ring and a server keep in float32 is a part of what they keep in 16 bits.
INSTANTIATE_TEST_SUITE_P(Strategies, Killed,
                         testing::Values(kSingle, kRingIn16Bits, kServerIn16Bits, kThreads), NameOf);

TEST_F(RestartTest, LatestIsThePreviousRunOfAnyStrategyAndDroppedStateIsReported) {
  Start(kRing, "");
  EXPECT_EQ(Wait(), 0) << output();
  EXPECT_THAT(output(), Has(absl::StrCat("/step", steps_)));
  Start("--strategy ps-async --workers 2", "", "--resume latest");
  EXPECT_EQ(Wait(), 0) << "finished: " << output();
  EXPECT_THAT(output(), Has("this training is finished; nothing is left to train",
                            absl::StrCat("all workers continue with step ", steps_, ": asynchronous"),
                            "the optimizer is sgd and was momentum"));
}

TEST_F(RestartTest, InvalidResumeFailsWithOneLineBeforeAnythingStarts) {
  fs::create_directories("empty");
  fs::create_directories("broken/step3");
  std::ofstream(absl::StrCat("broken/step3/", kPositionFile)) << "{";
  std::ofstream("broken.safetensors") << "x";
  for (const auto& [flags, says] : {std::pair{"--resume nowhere", "nowhere does not exist"},
                                    {"--resume empty", "there is no checkpoint"},
                                    {"--resume broken", "step3"},
                                    {"--resume broken.safetensors", "it ends early"},
                                    {"--resume latest", "runs/latest"},
                                    {"--checkpoint_keep 0", "--checkpoint_keep"}}) {
    Start(kRing, Out("bad"), flags);
    EXPECT_EQ(Wait(), 2) << flags << ": " << output();
    EXPECT_THAT(output(), OneLineWith(says));
    EXPECT_FALSE(fs::exists(Out("bad")));
  }
}

}  // namespace
}  // namespace psring
