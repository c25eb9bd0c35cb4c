// Names that psring accepts for a strategy, errors in Chinese, and pages of `trainer --record`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/io/files.h"
#include "tests/experiments/psring_in_a_folder.h"
#include "tests/experiments/start_psring.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using NamesTest = PsringInAFolder;

TEST_F(NamesTest, AnAliasIsShownAsTheStrategysName) {
  const Outcome trained = Succeed(
      "train --data synthetic --model mlp-small --strategy allreduce --workers 2 --steps 3 --out run");
  const auto row = JsonFile("run/summary.json")[0];
  EXPECT_EQ(row["figures"]["strategy"], "ring");
  EXPECT_TRUE(fs::exists(Path("run/records/training-1/ring-2/result-rank0.json")));
  EXPECT_THAT(trained.out, Lacks("allreduce x"));

  const Outcome planned = Succeed("compare --data synthetic --strategies all-reduce,ps --dry_run");
  EXPECT_THAT(planned.out, Has("ring x 4", "ps-sync x 4"));

  const Outcome predicted =
      Succeed("predict --link 1gbit --workers 2 --strategies allreduce,ps --out predicted");
  const auto rows = JsonFile("predicted/summary.json");
  EXPECT_EQ(rows[0]["figures"]["strategy"], "ring");
  EXPECT_EQ(rows[1]["figures"]["strategy"], "ps-sync");

  EXPECT_EQ(Call({"explain", "all-reduce"}).out, Call({"explain", "ring"}).out);
  EXPECT_EQ(Call({"explain", "ps"}).out, Call({"explain", "ps-sync"}).out);
  const std::string pairs = Call({"explain", "hierarchical:2", "--workers", "4"}).out;
  EXPECT_EQ(Call({"explain", "hierarchical"}).out, pairs);
  EXPECT_THAT(pairs, Has("hierarchical:2 all_reduce, 4 workers: within nodes", "round 4 of 4"));
}

TEST_F(NamesTest, BadInputIsExplainedInChinese) {
  constexpr char kBad[] =
      "compare --worker 2; compare --strategies rign; compare --strategies ring,ps-sync,ring; compare "
      "--workers 2 4; compare --workers -1; compare --workers 1,two; compare --model mpl; compare --batch 0; "
      "compare --lr -1; compare --data synthetic --batch 50000 --workers 4; compare --global_batch 64 "
      "--workload resnet50; compare --workload resnet5; train --strategy ring --workers 1,2; train "
      "--strategy single --workers 2; train --steps 5 --epochs 1; train --transport pigeon; train --strategy "
      "hybrid --data synthetic --workers 2; predict --link 1gbit --strategies hybrid; predict --link 25; "
      "predict --link 1gbit --strategies rign; predict --cluster p3dn --workers 12; bench --stepfactor 1; "
      "explain; explain rign; report nowhere; report .";
  for (const absl::string_view bad : absl::StrSplit(kBad, "; ")) {
    const std::string what = absl::StrCat(bad, " --lang zh");
    const Outcome outcome = Call(Words(what));
    EXPECT_EQ(outcome.exit_code, 2) << what << "\n" << outcome.out << outcome.err;
    EXPECT_THAT(outcome.err, IsOneLine()) << what;
    const size_t label = outcome.err.find("错误：");
    ASSERT_NE(label, std::string::npos) << what << "\n" << outcome.err;
    const std::string message = outcome.err.substr(label + std::string("错误：").size());
    EXPECT_TRUE(std::any_of(message.begin(), message.end(),
                            [](char c) { return static_cast<unsigned char>(c) >= 0xe4; }))
        << what << ": not translated: " << message;
  }
}

// Two ranks of the trainer, in one process, without psring.
class LaunchRecords : public PsringInAFolder {
 protected:
  void SetUp() override {
    PsringInAFolder::SetUp();
    Succeeded(StartTrainer(
        absl::StrCat("--strategy ring --ranks_per_process 2 --data synthetic --model mlp-small --steps 6 "
                     "--batch 32 --record ",
                     Record("").string())));
  }
  fs::path Record(const std::string& name) const { return Path("rec") / name; }
  // The error of report, without "psring report: "; "" if there is none.
  std::string Error() {
    const Outcome outcome = Run({"report", "rec"});
    EXPECT_EQ(outcome.exit_code, outcome.err.empty() ? 0 : 2) << outcome.err;
    EXPECT_LE(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    return absl::StrReplaceAll(outcome.err, {{"psring report: ", ""}, {"\n", ""}});
  }
};

TEST_F(LaunchRecords, BecomeAPageThatSaysWhatIsMissing) {
  EXPECT_EQ(Error(), "");
  const std::string page = Slurp(Record("report.html"));
  for (const char* part : {"This page shows one launch of ring x 2 from the records",
                           "\"model\":\"mlp-small\"", "\"one_launch\":true", "\"optimizer\":\"momentum\""}) {
    EXPECT_THAT(page, Has(part)) << part;
  }
  EXPECT_FALSE(fs::exists(Record("summary.json"))) << "only the page is written";
}

TEST_F(LaunchRecords, OfAnUnfinishedOrOlderLaunchAreRefusedInOneLine) {
  const std::string result = Slurp(Record("result-rank0.json"));
  fs::rename(Record("result-rank1.json"), Record("other.json"));
  EXPECT_EQ(
      Error(),
      "rec has no result of rank 1, of 2 ranks; copy the files that all ranks recorded into one folder");
  fs::rename(Record("other.json"), Record("result-rank1.json"));

  auto json = nlohmann::json::parse(result);
  json.erase("flags");
  ASSERT_TRUE(std::ofstream(Record("result-rank0.json")) << json);
  EXPECT_EQ(Error(),
            "rec/result-rank0.json does not say what was trained; record the run again with this version "
            "of trainer");
  for (const char* text : {"", "[1]", "{\"rank\":0}", "\xff"}) {
    ASSERT_TRUE(std::ofstream(Record("result-rank0.json")) << text);
    EXPECT_NE(Error(), "") << text;
  }
  fs::remove(Record("result-rank0.json"));
  EXPECT_EQ(Error(),
            "rec/result-rank0.json is missing: rank 0 has not finished; wait for it, or train again");
}

TEST_F(LaunchRecords, OfMachinesWithOtherClocksAreRefused) {
  // Rank 1 began an hour later.
  std::string moved;
  std::ifstream steps(Record("steps-rank1.jsonl"));
  for (std::string line; std::getline(steps, line);) {
    auto step = nlohmann::json::parse(line);
    step["begin_ns"] = step["begin_ns"].get<int64_t>() + int64_t{3600} * 1'000'000'000;
    absl::StrAppend(&moved, step.dump(), "\n");
  }
  steps.close();
  ASSERT_TRUE(std::ofstream(Record("steps-rank1.jsonl")) << moved);
  EXPECT_THAT(Error(), Has("several machines or launches, whose clocks differ"));
}

// TensorBoard event files of real runs, during them and after them.

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
