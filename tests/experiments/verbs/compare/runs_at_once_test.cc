// Several psring processes at the same time: each run has a folder of its own.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "experiments/machine/machine.h"
#include "tests/experiments/slurp.h"
#include "tests/experiments/start_psring.h"
#include "tests/experiments/training_processes.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr char kTrain[] =
    "train --strategy ring --workers 2 --model mlp-small --data synthetic --steps 4 --batch 8 --no_eval "
    "--link none";
constexpr char kTrainForLong[] =
    "train --strategy ps-sync --workers 2 --model mlp-small --data synthetic --steps 1000000 --batch 8 "
    "--no_eval --link none";
constexpr char kBench[] =
    "bench --backend native --algorithm ring --transport tcp --workers 2 -b 4K -e 4K -n 1";
constexpr char kPredict[] = "predict --workload alexnet --strategies ring --workers 2 --link 1gbit";

// The processes run in the test's folder.
class RunsAtOnceTest : public LaunchTest {
 protected:
  RunsAtOnceTest() { fs::current_path(folder_); }
  ~RunsAtOnceTest() override { fs::current_path("/"); }

  static StartedOnes StartAtOnce(int count, const std::string& arguments) {
    StartedOnes ones;
    for (int i = 0; i < count; ++i) ones.push_back(StartPsring(arguments));
    return ones;
  }

  // Whether `out`'s training has recorded steps, within a minute.
  static bool Trains(Started& psring, const std::string& out, uintmax_t bytes = 1) {
    const fs::path steps = fs::path(out) / "records/training-1/ps-sync-2/steps-rank0.jsonl";
    return WaitUntil(psring, [&] {
      std::error_code missing;
      const uintmax_t size = fs::file_size(steps, missing);
      return !missing && size >= bytes;
    });
  }
};

class EveryVerb : public RunsAtOnceTest, public testing::WithParamInterface<const char*> {};

TEST_P(EveryVerb, RunsStartedInTheSameSecondGetSeparateFolders) {
  constexpr int kRuns = 3;
  ExpectSuccess(StartAtOnce(kRuns, GetParam()));
  std::set<std::string> runs;
  for (const auto& entry : fs::directory_iterator("runs")) {
    const std::string name = entry.path().filename();
    if (name == "latest") continue;
    runs.insert(name);
    const auto manifest =
        nlohmann::json::parse(Slurp(entry.path() / "manifest.json"), nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(manifest.is_object()) << name;
    EXPECT_EQ(manifest["run_id"], name);
    EXPECT_TRUE(fs::exists(entry.path() / "report.html")) << name;
  }
  EXPECT_EQ(runs.size(), kRuns);
  EXPECT_TRUE(runs.contains(fs::read_symlink("runs/latest").string()));
}

INSTANTIATE_TEST_SUITE_P(
    Verbs, EveryVerb,
    testing::Values(kTrain, kBench, kPredict,
                    "compare --strategies none,ring --workers 2 --repeats 1 --model mlp-small --data "
                    "synthetic --steps 4 --batch 8 --no_eval --link none"),
    [](const auto& info) { return std::string(info.param).substr(0, std::string(info.param).find(' ')); });

TEST_F(RunsAtOnceTest, ASecondRunIntoTheSameFolderIsRejectedBeforeItStarts) {
  fs::create_directory("empty");
  for (const char* verb : {kTrain, kPredict, kBench}) {
    for (const std::string out : {"new", "empty", "of/several/parts/"}) {
      if (verb != kTrain && out != "new") continue;  // all verbs claim folders with the same code
      SCOPED_TRACE(absl::StrCat(verb, " --out ", out));
      StartedOnes ones = StartAtOnce(2, absl::StrCat(verb, " --out ", out));
      ASSERT_TRUE(WaitForAll(ones));
      ASSERT_NE(ones[0]->Succeeded(), ones[1]->Succeeded()) << ones[0]->Story() << ones[1]->Story();
      const Started& refused = *ones[ones[0]->Succeeded() ? 1 : 0];
      EXPECT_TRUE(absl::StartsWith(refused.Story(), "ended with exit code 2")) << refused.Story();
      EXPECT_THAT(refused.errors(), OneLineWith("it is not empty, another run"));
      EXPECT_EQ(refused.output(), "");
      EXPECT_TRUE(fs::exists(fs::path(out) / "report.html"));
      fs::remove_all("new");
      fs::remove_all("of");
      fs::remove_all("empty");
      fs::create_directory("empty");
    }
  }
}

TEST_F(RunsAtOnceTest, TheFolderOfAKilledRunIsRejected) {
  {
    Started killed(Command(PSRING_BINARY, absl::StrCat(kTrainForLong, " --out run")), {});
    ASSERT_TRUE(Trains(killed, "run")) << killed.Story();
  }
  EXPECT_EQ(Ended(StartPsring(absl::StrCat(kTrainForLong, " --out run")))->errors(),
            "psring train: cannot write to run: it is not empty, another run may use it or have written its "
            "results there; choose another folder\n");
}

TEST_F(RunsAtOnceTest, ARunRejectedAfterTheProbeLeavesNothing) {
  for (const std::string out : {"", " --out new/folder"}) {
    const auto refused = Ended(StartPsring(absl::StrCat(kTrainForLong, " --time_budget 1s", out)));
    EXPECT_THAT(refused->errors(), Has("--time_budget")) << refused->Story();
    EXPECT_TRUE(fs::is_empty(folder_));
  }
}

TEST_F(RunsAtOnceTest, ATrainingIgnoresSignalsThatItsParentIgnored) {
  Started psring(
      {"/bin/sh", "-c",
       absl::StrCat("trap '' HUP INT; exec ", PSRING_BINARY, " ", kTrainForLong, " --out ", Folder("run"))},
      {});
  ASSERT_TRUE(Trains(psring, Folder("run"))) << psring.Story();
  std::vector<pid_t> processes = {psring.pid()};
  for (const auto& [name, pid] : TrainingProcesses(Folder("run"))) processes.push_back(pid);
  EXPECT_EQ(processes.size(), 4);
  for (const pid_t pid : processes) {
    for (const int signal : {SIGHUP, SIGINT}) kill(pid, signal);
  }
  const uintmax_t so_far = fs::file_size(Folder("run") + "/records/training-1/ps-sync-2/steps-rank0.jsonl");
  EXPECT_TRUE(Trains(psring, Folder("run"), so_far + (64 << 10))) << psring.Story();
  psring.Signal(SIGTERM);
  EXPECT_TRUE(Eventually([&] { return !psring.Look(); }));
  EXPECT_TRUE(absl::StartsWith(psring.Story(), "ended with exit code 143")) << psring.Story();
  EXPECT_EQ(psring.errors(),
            absl::StrCat("psring train: interrupted (SIGTERM); there are no results; the logs are in ",
                         Folder("run"), "\n"));
}

TEST_F(RunsAtOnceTest, AnotherRunMakesTheTimesInvalid) {
  const std::string compare =
      "compare --strategies ring --workers 2 --repeats 1 --model mlp-small --data synthetic --steps 4 "
      "--batch 8 --no_eval --link none --out ";
  const std::string warning =
      absl::StrCat("another psring (process ", getpid(), ") is running; times will not be valid");
  {
    const MeasuringNow other;  // this test
    const std::string output = Succeeded(StartPsring(compare + "beside"))->output();
    const size_t at = output.find(warning);
    EXPECT_NE(at, std::string::npos) << output;
    EXPECT_EQ(output.find(warning, at + 1), std::string::npos) << "once";
    const auto table = nlohmann::json::parse(Slurp("beside/table.json"));
    EXPECT_EQ(table["en"]["validity"]["state"], "invalid") << table["en"]["validity"];
    EXPECT_THAT(table["en"]["validity"]["why"].get<std::string>(),
                Has(absl::StrCat("Another psring (process ", getpid(), ") was running")))
        << table["en"]["validity"];
    EXPECT_THAT(Ended(StartPsring(absl::StrCat(kBench, " --out bench")))->output(),
                Has(absl::StrCat("# note: ", warning)));
  }
  EXPECT_THAT(Ended(StartPsring(compare + "alone"))->output(), Lacks(warning));
}

bool HasOpen(pid_t process, const std::string& name) {
  std::error_code gone;
  fs::directory_iterator file(absl::StrCat("/proc/", process, "/fd"), gone);
  for (; !gone && file != fs::directory_iterator(); file.increment(gone)) {
    std::error_code closed;
    if (fs::read_symlink(file->path(), closed).filename() == name) return true;
  }
  return false;
}

TEST_F(RunsAtOnceTest, ASignalEndsAReport) {
  Succeeded(StartPsring(absl::StrCat(kTrain, " --out run")));
  fs::resize_file("run/trace.json", 250 << 20);  // reading it takes a while
  for (int tries = 1;; ++tries) {
    Started report(Command(PSRING_BINARY, "report run --kineto traces"), {});
    const bool reads = WaitUntil(report, [&] { return HasOpen(report.pid(), "trace.json"); });
    if (!reads && tries < 5) continue;  // it ended before this test saw it read
    ASSERT_TRUE(reads) << report.Story();
    report.Signal(SIGTERM);
    EXPECT_TRUE(Eventually([&] { return !report.Look(); }));
    EXPECT_TRUE(absl::StartsWith(report.Story(), "was killed by SIGTERM")) << report.Story();
    return;
  }
}

}  // namespace
}  // namespace psring
