// Command lines derived from hand-written manifests.
#include "experiments/run_folder/recorded_run.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "experiments/launch/temporary_folder.h"
#include "experiments/run_folder/manifest.h"
#include "experiments/run_folder/measured_run.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::ElementsAre;
using Json = nlohmann::json;

Json ManifestOf(const std::vector<std::string>& command_line) {
  return {{"schema_version", 1},
          {"verb", command_line.at(1)},
          {"command_line", command_line},
          {"working_directory", "/home/ada"},
          {"machine", {{"host", "one"}, {"cores", 2}}},
          {"versions", {{"psring", "0.1.0"}, {"revision", "abc"}}},
          {"binaries", {{{"path", "psring"}, {"hash", "1"}}, {{"path", "trainer"}, {"hash", "2"}}}}};
}

RecordedRun Recorded(const Json& manifest) { return RecordedRunFromJson(manifest.dump()).value(); }

std::string Refused(const Json& manifest) {
  return std::string(RecordedRunFromJson(manifest.dump()).status().message());
}

TEST(RecordedRun, KeepsFlagsAsTyped) {
  const RecordedRun run =
      Recorded(ManifestOf({"psring", "compare", "--strategies", "ring,ps-sync", "--no-eval"}));
  EXPECT_THAT(MakeAgain(run, "/runs/x").arguments,
              ElementsAre("compare", "--strategies", "ring,ps-sync", "--no-eval", "--plan_of=/runs/x"));
}

TEST(RecordedRun, SuggestsTheCommandThatTheUserTyped) {
  unsetenv("PSRING_COMMAND");
  EXPECT_EQ(CommandName(), "psring");
  setenv("PSRING_COMMAND", "./run", 1);
  EXPECT_EQ(CommandName(), "./run");
  unsetenv("PSRING_COMMAND");
}

TEST(RecordedRun, MakesPathsAbsolute) {
  const RecordedRun run =
      Recorded(ManifestOf({"psring", "train", "--workload", "./mine.csv", "--data-dir=sets", "--like",
                           "../runs/a", "--compute_ms", "trace:runs/b"}));
  EXPECT_THAT(MakeAgain(run, "/r").arguments,
              ElementsAre("train", "--workload=/home/ada/mine.csv", "--data_dir=/home/ada/sets",
                          "--like=/home/runs/a", "--compute_ms=trace:/home/ada/runs/b", "--plan_of=/r"));
}

TEST(RecordedRun, KeepsBuiltInNames) {
  const RecordedRun run = Recorded(ManifestOf(
      {"psring", "predict", "--workload", "resnet50", "--cluster", "p3dn", "--profile", "/abs.json"}));
  EXPECT_THAT(MakeAgain(run, "/r").arguments,
              ElementsAre("predict", "--workload=resnet50", "--cluster=p3dn", "--profile=/abs.json"));
  const RecordedRun virtually = Recorded(ManifestOf({"psring", "train", "--compute_ms", "6"}));
  EXPECT_THAT(MakeAgain(virtually, "/r").arguments, ElementsAre("train", "--compute_ms=6", "--plan_of=/r"));
}

TEST(RecordedRun, OmitsAndListsOutputs) {
  const Again bench =
      MakeAgain(Recorded(ManifestOf({"psring", "bench", "-b", "8", "-J", "out.json", "--out", "x"})), "/r");
  EXPECT_THAT(bench.arguments, ElementsAre("bench", "-b", "8"));
  EXPECT_THAT(bench.left_out, ElementsAre("-J out.json"));
  const Again train =
      MakeAgain(Recorded(ManifestOf({"psring", "train", "--checkpoint_dir=keep", "--seed", "3"})), "/r");
  EXPECT_THAT(train.arguments, ElementsAre("train", "--seed", "3", "--plan_of=/r"));
  EXPECT_THAT(train.left_out, ElementsAre("--checkpoint_dir=keep"));
}

TEST(RecordedRun, AddsTheValuesThatPsringChose) {
  Json manifest =
      ManifestOf({"psring", "train", "--link", "auto", "--resume", "latest", "--plan_of", "runs/a"});
  manifest["settled"] = {"--link=1000000000bit", "--device=cpu", "--resume=/c/step40"};
  EXPECT_THAT(
      MakeAgain(Recorded(manifest), "/r").arguments,
      ElementsAre("train", "--link=1000000000bit", "--device=cpu", "--resume=/c/step40", "--plan_of=/r"));
}

// A manifest may be somebody else's.
TEST(RecordedRun, OmitsWhatReachesOutsideFromEveryPartOfTheManifest) {
  for (const char* flag : {"--checkpoint_dir=/victim", "--out=/victim", "--config=/victim.toml",
                           "--bind=0.0.0.0", "--master-addr=evil", "--tls=a,b,c"}) {
    Json typed = ManifestOf({"psring", "compare", flag}), settled = ManifestOf({"psring", "compare"});
    settled["settled"] = {flag};
    for (const Json& manifest : {typed, settled})
      EXPECT_THAT(MakeAgain(Recorded(manifest), "").arguments, ElementsAre("compare")) << flag;
  }
  EXPECT_THAT(MakeAgain(Recorded(ManifestOf({"psring", "train", "--tls", "auto"})), "").arguments,
              ElementsAre("train", "--tls", "auto"));
}

TEST(RecordedRun, ARunWithoutACheckpointStartsAtTheBeginningAgain) {
  const RecordedRun run = Recorded(ManifestOf({"psring", "train", "--resume", "latest", "--epochs", "1"}));
  EXPECT_THAT(MakeAgain(run, "/r").arguments, ElementsAre("train", "--epochs", "1", "--plan_of=/r"));
}

TEST(RecordedRun, RejectsOtherLayoutsAndVerbs) {
  EXPECT_THAT(Refused("text"), Has("not a JSON object"));
  EXPECT_THAT(Refused(Json::object()), Has("no schema_version"));
  Json later = ManifestOf({"psring", "compare"});
  later["schema_version"] = 2;
  EXPECT_THAT(Refused(later), Has("layout 2; this psring supports 1"));
  EXPECT_THAT(Refused(ManifestOf({"psring", "doctor"})), Has("no command line of compare"));
  Json other = ManifestOf({"psring", "compare"});
  other["verb"] = "train";
  EXPECT_THAT(Refused(other), Has("no command line"));
  Json wrong_types = ManifestOf({"psring", "compare"});
  wrong_types["command_line"] = {1, 2};
  EXPECT_THAT(Refused(wrong_types), Has("its manifest.json: command_line[0]: expected a text"));
  Json wrong_input = ManifestOf({"psring", "compare"});
  wrong_input["inputs"] = {{{"path", "mine.csv"}, {"hash", 5}}};
  EXPECT_THAT(Refused(wrong_input), Has("its manifest.json: inputs[0].hash: expected a text"));
}

TEST(RecordedRun, RejectionsQuoteTheCommandLine) {
  Json earlier = ManifestOf({"psring", "compare", "--model", "cnn"});
  earlier.erase("working_directory");
  EXPECT_THAT(Refused(earlier), Has("psring compare --model cnn"));
}

TEST(RecordedRun, NamesDifferences) {
  const RecordedRun run = Recorded(ManifestOf({"psring", "compare"}));
  Json now = ManifestOf({"psring", "compare"});
  EXPECT_THAT(Differences(run, now.dump()), testing::IsEmpty());
  now["machine"]["cores"] = 4;
  now["versions"]["revision"] = "def";
  now["binaries"][1]["hash"] = "3";
  EXPECT_THAT(Differences(run, now.dump()),
              ElementsAre("machine: cores 2 then, 4 now", "psring: revision abc then, def now",
                          "programs: trainer were built from other sources"));
}

TEST(RecordedRun, DistinguishesProcessorsOfOneName) {
  Machine machine;
  machine.processor = {
      .name = "AMD EPYC", .family = 25, .model = 1, .stepping = 1, .instruction_sets = "avx2"};
  const std::string then = ManifestJson({.machine = machine, .plan = {}});
  machine.processor.family = 26;
  machine.processor.instruction_sets = "avx2 avx512f";
  EXPECT_THAT(Differences({.json = then}, ManifestJson({.machine = machine, .plan = {}})),
              ElementsAre("machine: cpu_family 25 then, 26 now",
                          "machine: instruction_sets avx2 then, avx2 avx512f now"));
}

TEST(RecordedRun, QuotesForTheShell) {
  EXPECT_EQ(ShellText({"psring", "--out", "a b", "it's", ""}), "psring --out 'a b' 'it'\\''s' ''");
}

TEST(ConfigOf, HoldsTheFlagsOfMakeAgain) {
  const RecordedRun run{
      .verb = "train",
      .command_line = {"psring", "train", "--strategy", "ring", "--no-eval", "--straggler=1:3", "--lr", "0.1",
                       "--out", "x", "--checkpoint_dir=/c"},
      .provenance = {.working_directory = "/home", .settled = {"--device=cpu"}}};
  EXPECT_EQ(ConfigOf(run, "/r"),
            "# Repeats this run: psring train --config FILE\n# omitted: --checkpoint_dir=/c\n"
            "strategy = \"ring\"\nno_eval = true\nstraggler = \"1:3\"\nlr = 0.1\ndevice = \"cpu\"\n"
            "plan_of = \"/r\"\n");
}

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
