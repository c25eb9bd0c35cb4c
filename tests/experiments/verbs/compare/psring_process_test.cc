// The real binary: what it prints, and small runs from end to end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/experiments/chrome_trace.h"
#include "tests/experiments/psring_in_a_folder.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

class PsringTest : public PsringInAFolder {
 protected:
  // mine.csv: two tensors, of which the last one has `bytes`.
  void WriteWorkload(int64_t bytes) {
    ASSERT_TRUE(std::ofstream(Path("mine.csv"))
                << "# batch: 8\n# device: mine\n# forward_ms: 5\n"
                << "name,bytes,ready_ms\nlast," << bytes << ",1\nfirst,1000000,9\n");
  }

  // Workers and a server on links of 100 Mbit/s: at least the link's time, and at least the payload on the
  // wire, which is counted in namespaces. The server has a machine of its own.
  static void ExpectItsOwnLinks(const nlohmann::json& figures) {
    SCOPED_TRACE(figures.dump());
    EXPECT_EQ(figures["link_mbps"], 100);
    const double payload = figures["payload_tx_bytes_per_worker"], least_ms = 0.9 * 1e3 * payload / 12.5e6;
    EXPECT_GT(figures["comm_busy_ms"].get<double>(), least_ms);
    EXPECT_GT(figures["predicted_comm_ms"].get<double>(), least_ms);
    if (figures["shaping"] == "netns") {
      EXPECT_NEAR(figures["wire_tx_bytes_per_worker"].get<double>() / payload, 1.035, 0.035);
    }
    const bool ring = figures["strategy"] == "ring";
    EXPECT_EQ(figures["wire"], ring ? "TCP" : "gRPC over TCP");
    EXPECT_EQ(figures["placement"], ring ? nlohmann::json() : nlohmann::json("dedicated"));
  }
};

TEST_F(PsringTest, HelpAndVersionGoToStdout) {
  for (const char* arguments : {"--version", "--help", "compare --help", "train --help", "predict --help",
                                "replay --help", "doctor --help", "results --help"}) {
    const Outcome outcome = Call(Words(arguments));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.out, "");
    EXPECT_EQ(outcome.err, "");
  }
}

// A console that is a full disk.
TEST_F(PsringTest, OutputThatCannotBeWrittenIsAnErrorOfOneLine) {
  const fs::path programs = fs::path(PSRING_BINARY).parent_path(), errors = root_ / "err";
  for (const char* command :
       {"psring --help", "psring explain ring --workers 4", "psring compare --data synthetic --dry_run",
        "trainer --describe", "trainer --version",
        "trainer --model mlp-small --data synthetic --steps 1 --no_eval", "ring_worker --help",
        "ps_worker --help", "ps_server --help"}) {
    const int status = std::system(absl::StrCat("cd ", (root_ / "work").string(), " && ", programs.string(),
                                                "/", command, " >/dev/full 2>", errors.string())
                                       .c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << command;
    const std::string program(command, std::strchr(command, ' '));
    EXPECT_EQ(Slurp(errors),
              absl::StrCat(program, ": cannot write to the standard output: No space left on device\n"))
        << command;
  }
}

TEST_F(PsringTest, ARunThatIsNotNamedIsTheLatest) {
  for (const char* verb : {"report", "replay"}) {
    const Outcome none = Call({verb});
    EXPECT_EQ(none.exit_code, 2);
    EXPECT_EQ(none.err, absl::StrCat("psring ", verb,
                                     ": name a run's folder; there is no runs/latest in this folder\n"));
  }
  Succeed("predict --workload alexnet --strategies ring --workers 2 --link 1gbit");
  fs::remove(Path("runs/latest/report.html"));
  EXPECT_EQ(Succeed("report").out, "runs/latest/report.html\n");
  EXPECT_TRUE(fs::exists(Path("runs/latest/report.html")));
  EXPECT_THAT(Run({"replay"}).err, Has("'runs/latest'"));
}

TEST_F(PsringTest, ExplainKnowsTermsAndListsItsTopics) {
  for (const char* term : {"staleness", "Staleness", "push", "pull", "bucket", "reduce_scatter"}) {
    const Outcome outcome = Call({"explain", term});
    EXPECT_EQ(outcome.exit_code, 0) << term << outcome.err;
    EXPECT_FALSE(outcome.out.empty()) << term;
  }
  EXPECT_THAT(Call({"explain", "staleness"}).out, Has("the number of updates applied between"));
  const struct {
    const char *topic, *says;
  } cases[] = {{"stalenes", "unknown topic 'stalenes'; did you mean 'staleness'? Use one of none, single, "},
               {"rign", "did you mean 'ring'?"},
               {"ps-snc", "did you mean 'ps-sync'?"},
               {"horovod", "psring calls it 'ring'"},
               {"quantum", "unknown topic 'quantum'; use one of none, single, "},
               {"", "name one of none, single, "}};
  for (const auto& [topic, says] : cases) {
    const Outcome outcome = *topic == 0 ? Call({"explain"}) : Call({"explain", topic});
    EXPECT_EQ(outcome.exit_code, 2) << topic;
    EXPECT_THAT(outcome.err, OneLineWith(says, "hierarchical", "ps-ssp:K", "staleness", "words"));
  }
}

TEST_F(PsringTest, ADryRunPrintsThePlanAndWritesNothing) {
  const Outcome outcome = Succeed("compare --data synthetic --dry_run");
  EXPECT_THAT(outcome.out, Has("ps-async x 4", "expected:"));
  EXPECT_TRUE(fs::is_empty(root_ / "work"));
}

// Of which README shows the result.
TEST_F(PsringTest, AComparisonThatNamesNoModelTrainsTheCnn) {
  Succeed(
      "compare --data synthetic --strategies single --workers 1 --link none --no_eval --repeats 1 "
      "--warmup_steps 1 --steps 2 --out run");
  const auto figures = JsonFile("run/summary.json")[0]["figures"];
  EXPECT_EQ(figures["model"], "cnn");
  EXPECT_EQ(figures["batch_per_worker"], 48);
  EXPECT_THAT(File("run/config.toml"), Has("model = \"cnn\"", "batch = 48"));
  Succeed(
      "compare --clock virtual --compute_ms 1 --batch 8 --data synthetic --strategies ring --workers 2 "
      "--samples 32 --out virtual");
  EXPECT_EQ(JsonFile("virtual/summary.json")[0]["figures"]["model"], "mlp");
}

TEST_F(PsringTest, DoctorReportsThisMachine) {
  const Outcome outcome = Run({"doctor"});
  EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 1) << outcome.err;
  EXPECT_THAT(outcome.out, Has("cores", "memory", "packages", "Fashion-MNIST", "GPUs", "NCCL", "namespaces",
                               "tc", "/dev/shm"));
}

TEST_F(PsringTest, AComparisonWritesACompleteRunFolder) {
  const Outcome outcome = Succeed(
      "compare --data synthetic --model mlp-small --strategies ring,ps-sync,ps-async --workers 2 --repeats 2 "
      "--steps 4 --samples 1280 --batch 32 --target_accuracy 0.99 --eval_every 20 --link none");
  EXPECT_THAT(outcome.out, Has("findings: runs/"));
  EXPECT_THAT(outcome.out, Lacks("All payload went over TCP.")) << "only with --verbose";
  const std::string printed = absl::StrReplaceAll(outcome.out, {{"\n", " "}});
  EXPECT_THAT(outcome.out, Lacks("\033")) << "no colors in a file";
  const auto validity = JsonFile("runs/latest/table.json")["en"]["validity"];
  const std::string listed = Succeed("results").out,
                    verdict = JsonFile("runs/latest/table.json")["en"]["verdict"];
  EXPECT_THAT(printed, Has(verdict));
  EXPECT_THAT(listed, Has("  compare  mlp-small, ", absl::StrCat("\n    ", verdict, "\n")));
  EXPECT_THAT(listed, Lacks("latest")) << "a link to one of them";
  EXPECT_THAT(printed, Has(absl::StrCat(validity["title"].get<std::string>(), " ",
                                        validity["why"].get<std::string>())))
      << outcome.out;
  EXPECT_THAT(printed, Has("In this table nothing is simulated.")) << outcome.out;
  for (const char* name : {"manifest.json", "summary.csv", "summary.json", "runs.csv", "curves.csv",
                           "steps.jsonl", "ddp.jsonl", "trace.json"}) {
    EXPECT_TRUE(fs::exists(Path("runs/latest") / name)) << name;
  }
  const auto summary = JsonFile("runs/latest/summary.json");
  ASSERT_EQ(summary.size(), 5) << summary.dump(1);  // single; none, ring and two servers with 2 workers
  for (const auto& row : summary) {
    const auto& figures = row["figures"];
    EXPECT_GT(figures["samples_per_s"], 0) << figures;
    EXPECT_EQ(figures["repeats"], 2) << figures;
    EXPECT_EQ(figures["steps"], 4) << figures;
    if (figures["strategy"] == "none") continue;
    EXPECT_GT(figures["test_accuracy"], 0.05) << figures;
    EXPECT_THAT(figures["note"].get<std::string>(), Has("trainings reached an accuracy of 0.99")) << figures;
    if (figures["predicted_payload_bytes_per_worker"].is_null()) continue;
    EXPECT_NEAR(figures["payload_tx_bytes_per_worker"].get<double>() /
                    figures["predicted_payload_bytes_per_worker"].get<double>(),
                1, 1e-3)
        << figures;
  }
  const auto manifest = JsonFile("runs/latest/manifest.json");
  EXPECT_EQ(manifest["finished"], true);
  EXPECT_EQ(manifest["cost"]["rounds_done"], 2);
  // 5 launches in 2 rounds, 4 trainings with 2 seeds, and the heading.
  const std::string runs = File("runs/latest/runs.csv");
  EXPECT_EQ(std::count(runs.begin(), runs.end(), '\n'), 1 + 10 + 8);
  for (absl::string_view line : absl::StrSplit(File("runs/latest/steps.jsonl"), '\n', absl::SkipEmpty())) {
    ASSERT_TRUE(nlohmann::json::accept(line)) << line;
  }
  const auto trace = JsonFile("runs/latest/trace.json");
  EXPECT_GT(trace["traceEvents"].size(), 10);
  ChromeTraceCheck::Expect(trace);
}

// A live run with a straggler; its replay; then the same in simulated time.
TEST_F(PsringTest, AnAsynchronousRunIsReplayedAndSimulated) {
  const Outcome live = Succeed(
      "train --data synthetic --model mlp-small --strategy ps-async --workers 3 --straggler "
      "1:2 --steps 60 --batch 32 --target_accuracy 0.01 --out live");
  const auto row = JsonFile("live/summary.json")[0];
  ASSERT_EQ(row["workers"]["figures"].size(), 3);
  EXPECT_GT(row["workers"]["figures"][1]["delay_ms"], 0);
  EXPECT_EQ(row["workers"]["figures"][0]["delay_ms"], 0);
  EXPECT_THAT(row["figures"]["note"].get<std::string>(), Has("straggler 1:2"));
  EXPECT_GT(row["figures"]["time_to_target_s"], 0);
  EXPECT_FALSE(row["staleness_histogram"]["pushes"].empty());

  EXPECT_THAT(Succeed("replay live").out, Has("180 updates repeated", "bit for bit"));

  const Outcome like = Succeed(
      "train --data synthetic --model mlp-small --strategy ps-async --workers 3 --clock "
      "virtual --like live --steps 60 --batch 32 --out like");
  const auto simulated = JsonFile("like/summary.json")[0];
  EXPECT_EQ(simulated["figures"]["basis"], "simulated");
  EXPECT_EQ(simulated["basis"]["test_accuracy"], "measured");
  EXPECT_NEAR(
      simulated["figures"]["samples_per_s"].get<double>() / row["figures"]["samples_per_s"].get<double>(), 1,
      .5)
      << "the simulation repeats the computing times; other programs slow down only the live run";

  // One worker's pushes swapped with another's: other weights, and psring says so.
  const fs::path arrivals = Path("live/records/training-1/ps-async-3/arrivals-server0.bin");
  std::string bytes = Slurp(arrivals);
  const size_t body = bytes.find('\n') + 1;
  const size_t other = bytes.find_first_not_of(bytes[body], body);
  ASSERT_NE(other, std::string::npos);
  std::swap(bytes[body], bytes[other]);
  ASSERT_TRUE(std::ofstream(arrivals, std::ios::binary) << bytes);
  EXPECT_THAT(EndWith(1, "replay live").err, Has("1 of 1 runs differ"));
}

TEST_F(PsringTest, RatesArePickedOnHeldOutSamples) {
  Succeed(
      "compare --data synthetic --model mlp-small --strategies ps-async --workers 4 --clock "
      "virtual --compute_ms 6 --samples 2560 --batch 32 --lr 0.001,0.05,1e12 --out run");
  const std::string rates = File("run/rates.csv");
  EXPECT_EQ(std::count(rates.begin(), rates.end(), '\n'), 1 + 2 * 3) << rates;
  EXPECT_THAT(rates, Has("ps-async,4,1e+12,,,false")) << "it diverged\n" << rates;
  for (const auto& row : JsonFile("run/summary.json"))
    EXPECT_TRUE(row["figures"]["lr"] == 0.05 || row["figures"]["lr"] == 0.001) << row;
  const auto launch = JsonFile("run/records/training-1/ps-async-4/launch.json");
  const std::string flags = launch["trainer_flags"].dump();
  EXPECT_THAT(flags, Has("--validation=5000"));
  EXPECT_THAT(flags, Lacks("--debug.score")) << "the test set\n" << flags;
}

TEST_F(PsringTest, TunedRatesAreTriedWithEveryStrategyAndNumberOfWorkers) {
  const Outcome outcome = Succeed(
      "compare --data synthetic --model mlp-small --strategies ring,ps-async --workers 2,4 --clock virtual "
      "--compute_ms 6 --samples 1280 --global_batch 128 --tune lr:0.01,1 --out run --verbose");
  const std::string rates = File("run/rates.csv");
  EXPECT_EQ(std::count(rates.begin(), rates.end(), '\n'), 1 + 5 * 2) << rates;
  EXPECT_THAT(outcome.out, Has("best lr: of 2 learning rates", "Every row is compared at the best",
                               "Strong scaling (--global_batch)"));
  const auto summary = JsonFile("run/summary.json");
  EXPECT_EQ(summary.size(), 5);
  for (const auto& row : summary) {
    const auto& figures = row["figures"];
    EXPECT_EQ(figures["scaling"], "strong");
    EXPECT_EQ(figures["batch_per_worker"].get<int>() * figures["workers"].get<int>(), 128) << figures;
    const std::string tried = figures["lr_tried"];
    EXPECT_EQ(std::count(tried.begin(), tried.end(), ' '), 1) << tried;
    EXPECT_THAT(rates, Has(absl::StrCat(figures["strategy"].get<std::string>(), ",",
                                        figures["workers"].get<int>(), ",")));
  }
}

TEST_F(PsringTest, AReplayedWorkloadSendsItsRecordedSizes) {
  WriteWorkload(4000);
  Succeed(
      "compare --workload ./mine.csv --strategies ring,ps-sync --workers 3 --repeats 1 --steps "
      "5 --link none");
  int compared = 0;
  for (const auto& row : JsonFile("runs/latest/summary.json")) {
    const auto& figures = row["figures"];
    EXPECT_EQ(figures["parameters"], 251000);
    EXPECT_EQ(figures["batch_per_worker"], 8);
    EXPECT_GE(figures["compute_ms"], 14);
    const double sent = figures["strategy"] == "ring" ? 4.0 / 3 * 1004000 : 1004000;
    if (figures["strategy"] == "ring" || figures["strategy"] == "ps-sync") {
      EXPECT_NEAR(figures["payload_tx_bytes_per_worker"].get<double>(), sent, 8);
      EXPECT_EQ(figures["replicas_equal"], true);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 2);
}

// 1 Gbit/s, run at 1/10 of the speed.
TEST_F(PsringTest, ASlowedRunIsMarkedSimulatedAndItsTimesAreDivided) {
  WriteWorkload(1'200'000);
  const Outcome outcome = SucceedOnLinks(
      "compare --workload ./mine.csv --strategies ring --workers 2 --repeats 1 "
      "--warmup_steps 1 --steps 3 --link 1gbit --scale 10 --out run --verbose");
  EXPECT_THAT(outcome.out, Has("1 Gbit/s links", "at 1/10 of the speed", "Times are simulated (--scale 10)"));
  EXPECT_THAT(outcome.out, Lacks("nothing is simulated"));
  for (const auto& row : JsonFile("run/summary.json")) {
    const auto& figures = row["figures"];
    EXPECT_EQ(figures["basis"], "simulated");
    EXPECT_EQ(row["basis"]["step_ms"], "simulated");
    EXPECT_EQ(row["basis"]["samples_per_s"], "simulated");
    EXPECT_EQ(figures["time_scale"], 10);
    // Computing took 140 ms.
    EXPECT_GE(figures["compute_ms"], 14);
    EXPECT_LT(figures["compute_ms"], 100);
    EXPECT_NEAR(figures["samples_per_s"].get<double>() * figures["step_ms"].get<double>() / 1000,
                8 * figures["workers"].get<int>(), 8 * 0.3 * figures["workers"].get<int>());
    if (figures["strategy"] != "ring") continue;
    EXPECT_EQ(figures["link_mbps"], 1000);
    // 2.2 MB at 125 MB/s.
    EXPECT_GT(figures["comm_busy_ms"].get<double>(), 0.9 * 2.2e6 / 125e3);
    EXPECT_NEAR(figures["predicted_comm_ms"].get<double>(), 2.2e6 / 125e3, 0.25 * 2.2e6 / 125e3);
  }
  // The trace has the same times.
  double longest_us = 0;
  const auto trace = JsonFile("run/trace.json");
  for (const auto& event : trace["traceEvents"]) {
    if (event.value("cat", "") != "derived" && event.value("name", "") == "forward") {
      longest_us = std::max(longest_us, event.value("dur", 0.0));
    }
  }
  EXPECT_GE(longest_us, 5000);
  EXPECT_LT(longest_us, 45000);
  EXPECT_THAT(
      Refused("train --strategy ring --workers 2 --clock virtual --data synthetic --like run --steps 4"),
      Has("without --scale"));
}

TEST_F(PsringTest, PredictionsAreComparedWithMeasurementsAndResidualsAddUp) {
  WriteWorkload(1'200'000);
  const Outcome outcome = SucceedOnLinks(
      "compare --predict --workload ./mine.csv --strategies ring,ps-sync,ps-backup:1 "
      "--workers 2 --repeats 2 --warmup_steps 1 --steps 2 --link 100mbit --verbose");
  EXPECT_THAT(outcome.out, Has("Compared with the simulator (3 cases)", "Recording took at most"));

  int predicted = 0;
  for (const auto& row : JsonFile("runs/latest/summary.json")) {
    const std::string strategy = row["figures"]["strategy"];
    if (strategy != "ring" && strategy != "ps-sync") continue;
    ++predicted;
    // A ring of two moves all of it once, at 12.5 MB/s at most; a server of two receives and sends it twice,
    // partly at the same time.
    EXPECT_GT(row["prediction"]["step_ms"], 15 + 2.2e6 / 12.5e3 - 10) << row["prediction"];
    EXPECT_LT(row["prediction"]["step_ms"], 15 + 4 * 2.2e6 / 11.5e3 + 10) << row["prediction"];
    EXPECT_EQ(row["prediction"]["basis"], "simulated");
    ExpectItsOwnLinks(row["figures"]);
  }
  EXPECT_EQ(predicted, 2);
  EXPECT_THAT(File("runs/latest/findings.txt"), Has("All payload went over TCP."));
  EXPECT_EQ(JsonFile("runs/latest/manifest.json")["link"]["preflight"]["each_link_mbps"].size(), 3);

  const std::vector<std::string> lines =
      absl::StrSplit(File("runs/latest/residuals.csv"), '\n', absl::SkipEmpty());
  const std::vector<std::string> names = absl::StrSplit(lines.front(), ',');
  const auto column = [&](const std::string& name) {
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  int explained = 0;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> fields = absl::StrSplit(lines[i], ',');
    ASSERT_GE(fields.size(), names.size()) << lines[i];
    const auto ms = [&](const char* name) { return std::stod(fields[column(name)]); };
    if (fields[column("predicted_ms")].empty()) continue;
    ++explained;
    EXPECT_NEAR(ms("measured_ms") - ms("predicted_ms"), ms("residual_ms"), 1e-4) << lines[i];
    EXPECT_NEAR(ms("computing_ms") + ms("waiting_ms") + ms("update_ms") + ms("congestion_ms") +
                    ms("scheduling_ms") + ms("unexplained_ms"),
                ms("residual_ms"), 1e-4)
        << lines[i];
  }
  EXPECT_EQ(explained, 3 * 3);  // two rounds and their mean of each
}

}  // namespace
}  // namespace psring
