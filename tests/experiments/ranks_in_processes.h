// Starts trainers with one or several ranks per process, with torchrun's variables.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "tests/experiments/started.h"

namespace psring {

inline constexpr char kShort[] =
    "--model mlp-small --data synthetic --steps 4 --batch 8 --no_eval --timeout 20";

class OneProcessTest : public LaunchTest {
 protected:
  // Starts `processes` trainers that meet in a file; a single one as by hand.
  StartedOnes Start(int processes, const std::string& flags) {
    StartedOnes ones;
    for (int process = 0; process < processes; ++process) {
      const std::string meet = processes == 1 ? "" : absl::StrCat(" --rendezvous file://", Folder("meet"));
      ones.push_back(StartTrainer(
          absl::StrCat(flags, meet),
          processes == 1
              ? std::vector<std::string>()
              : std::vector<std::string>{absl::StrCat("RANK=", process), absl::StrCat("LOCAL_RANK=", process),
                                         absl::StrCat("LOCAL_WORLD_SIZE=", processes),
                                         absl::StrCat("WORLD_SIZE=", processes)}));
    }
    return ones;
  }

  // Trains, and returns the final weights' hash of each rank.
  std::vector<std::string> Trained(int processes, int each, const std::string& flags) {
    const std::string records = Folder("records");
    std::filesystem::remove_all(records);
    StartedOnes ones =
        Start(processes, absl::StrCat(flags, " --record ", records,
                                      each > 1 ? absl::StrCat(" --ranks_per_process ", each) : ""));
    const bool ended = WaitForAll(ones);
    for (const auto& one : ones) EXPECT_TRUE(ended && one->Succeeded()) << flags << ": " << one->Story();
    std::vector<std::string> weights;
    for (int rank = 0;; ++rank) {
      const auto text = ReadFile(absl::StrCat(records, "/result-rank", rank, ".json"));
      if (!text.ok()) break;
      const auto result = RankResultFromJson(*text);
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) break;
      EXPECT_EQ(result->rank, rank);
      EXPECT_TRUE(std::filesystem::exists(absl::StrCat(records, "/trace-rank", rank, ".json")));
      weights.push_back(result->weights_hash);
    }
    return weights;
  }
};

}  // namespace psring
