// A rank that saves and restores tables on servers has only pieces of them in memory.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/trainer/main/trainer_process.h"

namespace psring {
namespace {

class TableMemory : public TrainerProcess {
 protected:
  // Peak memory of rank 0 in MiB.
  double PeakMb(int rows, const std::string& flags) {
    RunJob(1, 1,
           absl::StrCat("--strategy ps-sync --model dlrm-small --data zipf:", rows,
                        ":1 --optimizer adagrad --batch 16 --steps 4 --no_eval", flags));
    return Result(0).peak_memory_mb;
  }
};

TEST_F(TableMemory, ACheckpointDoesNotNeedThatOfTheTables) {
  constexpr int kRows = 30'000;  // 8 tables of width 64 and their sums: 117 MiB
  const std::string folder = (dir_ / "checkpoints").string();
  const double none = PeakMb(kRows, "");
  const double saves = PeakMb(kRows, absl::StrCat(" --checkpoint_every 2 --checkpoint_dir ", folder));
  const double resumes = PeakMb(kRows, absl::StrCat(" --resume ", folder, "/step2"));
  EXPECT_LT(saves, none + 40) << "MiB";
  EXPECT_LT(resumes, none + 40) << "MiB";
}

}  // namespace
}  // namespace psring
