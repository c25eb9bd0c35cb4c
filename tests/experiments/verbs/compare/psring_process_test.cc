// The real binary: what it refuses, and small runs from end to end.
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

using PsringTest = PsringInAFolder;

// A comparison on two machines.
std::string OnTwo(const std::string& flags) {
  return absl::StrCat(
      "compare --nnodes 2 --node_rank 0 --master_addr 127.0.0.1 --model mlp-small --data "
      "synthetic --no_eval --dry_run ",
      flags);
}

TEST_F(PsringTest, BadInputIsOneLineAndWritesNothing) {
  ASSERT_TRUE(std::ofstream(root_ / "file") << "x");
  fs::create_directory(root_ / "data");
  const std::string file = (root_ / "file").string(), data = (root_ / "data").string();
  const std::vector<BadInput> cases = {
      {"comprae", "compare"},
      {"compare --worker 2", "--workers"},
      {"compare --strategies rign", "did you mean 'ring'"},
      {"compare --strategies ring,", "name"},
      {"compare --strategies ddp", "psring calls it 'ring'"},
      {"compare --strategies ring,horovod", "which is given, too; omit 'horovod'"},
      {"predict --strategies ring,ddp --link 1gbit", "which is given, too; omit 'ddp'"},
      {"compare --model ./mine.csv", "use --workload ./mine.csv"},
      {"train --model vgg16", "use --workload vgg16"},
      {"compare --batch_size 8", "did you mean --batch?"},
      {"compare --bandwidth 1gbit", "did you mean --link?"},
      {"compare --gpus 2", "did you mean --workers?"},
      {"compare -n 2", "did you mean --workers?"},
      {"train -np 2", "did you mean --workers?"},
      {"bench -g 2", "psring bench: psring bench has one GPU per process, and no threads; give --workers"},
      {"predict --model resnet50", "did you mean --workload?"},
      {"report -o page.html", "did you mean --out?"},
      {"explain ring -n 4", "did you mean --workers?"},
      {"compare --link 1gbit,10gbit", "run the command once for each; psring report RUN RUN shows"},
      {"compare --link 2,5gbit", "write 2.5gbit"},
      {"predict --link 1gbit,10gbit", "run the command once for each"},
      {"compare --batch 32,64", "'32,64' is a list"},
      {"compare --samples 60,000", "write 60000"},
      {"compare --bucket_mb 25M", "--bucket_mb is in MiB; write 25"},
      {"compare --timeout 2m", "--timeout is in seconds; write 120"},
      {"compare --time_budget 2m,4m", "is a list"},
      {"compare --strategies ring,ps-sync,ring", "--strategies names ring twice"},
      {"compare --strategies ring,allreduce", "--strategies names ring twice"},
      {"predict --link 1gbit --strategies ps,ps-sync", "--strategies names ps-sync twice"},
      {"compare --workers 2,4,2", "--workers names 2 twice"},
      {"compare --workers 2 4", "--workers 2,4"},
      {"compare --link 10GB/s", "in bytes, but a rate is in bits; write 80gbit"},
      {"compare --model mpl", "did you mean 'mlp'"},
      {"compare --data syntetic", "synthetic"},
      {"compare --workers 0", "--workers"},
      {"compare --workers -1", "--workers"},
      {"compare --workers nan", "--workers"},
      {"compare --workers 1,two", "two"},
      {"compare --workers 65", "64"},
      {"compare --batch 0", "--batch"},
      {"compare --data synthetic --batch 1000000000", "--batch 1000000000"},
      {"compare --data synthetic --batch 50000 --workers 4", "--batch 50000 times 4 workers"},
      {"compare --lr -1", "--lr"},
      {"compare --lr 0.1,0.1", "twice"},
      {"compare --batch 64 --global_batch 256", "--batch"},
      {"compare --global_batch 0", "--global_batch"},
      {"compare --data synthetic --global_batch 100 --workers 3", "use 99 or 102"},
      {"train --data synthetic --strategy ring --workers 3 --global_batch 128",
       "does not divide into 3 equal batches"},
      {"compare --global_batch 64 --workload resnet50", "for its own batch"},
      {"compare --tune momentum", "write lr"},
      {"compare --tune lr:1,1", "twice"},
      {"compare --tune lr:1", "at least two rates"},
      {"compare --tune lr:1,x", "--tune"},
      {"compare --tune lr --lr 0.1,0.2", "one rate per strategy"},
      {"compare --tune lr --no_eval", "omit --no_eval"},
      {"compare --tune lr --workload resnet50", "omit --workload"},
      {"compare --data synthetic --link none --time_budget 1s", "use --time_budget"},
      {"compare --resume /no/such/run", "there is no such folder"},
      {"compare --straggler 4:2", "no worker 4"},
      {"compare --straggler 1:2 --workers 1", "there is only worker 0"},
      {"compare --strategies ring --workers 2 --straggler 2:2", "no worker 2"},
      {"compare --straggler 1:0.5", "slow the other workers down instead"},
      {"compare --jitter_ms often", "--jitter_ms"},
      {"compare --compute_ms 6", "--clock virtual"},
      {"compare --like /no/such/run", "--clock virtual"},
      {"compare --clock virtual --like /no/such/run", "/no/such/run"},
      {"compare --clock virtual --strategies gloo --workers 2", "not gloo"},
      {"compare --clock virtual --workers 257", "256"},
      {"train --strategy single --straggler 0:2", "undisturbed reference"},
      {"compare --strategies ps-ssp:x", "ps-ssp:K needs a whole number"},
      {"compare --strategies ps-backup:9 --workers 4", "at most 3 can be spare"},
      {"compare --servers 0", "the least is 1"},
      {"compare --warmup_steps 0", "the least is 1"},
      {"compare --staleness_lr often", "none, inverse"},
      {"compare --on_worker_loss panic", "stop, continue"},
      {"train --strategy ring --ps_schedule serial", "parameter-server strategies"},
      {"train --strategy ring --on_worker_loss continue", "parameter-server strategies"},
      {"train --strategy ring --server_wire stream --transport tcp", "parameter-server strategies"},
      {"train --strategy ps-sync --server_wire stream", "add --transport tcp"},
      {"train --strategy ps-sync --server_wire stream --transport shm", "shared memory carries all payload"},
      {"compare --server_wire stream --clock virtual", "--server_wire with --clock virtual"},
      {"compare --server_wire grpc,streams", "grpc, stream"},
      {"bench --server_wire stream", "name it, or omit the flag"},
      {"bench --collective ps_push_pull --server_wire stream --transport shm", "is for --transport tcp"},
      {"train --strategy ps-sync --clock virtual --transport shm", "--network_ms"},
      {"replay /no/such/run", "not a run folder"},
      {"compare --debug.score validation", "--validation"},
      {"compare --epochs 0", "--epochs"},
      {"compare --samples 9 --epochs 1", "--samples and --epochs"},
      {"compare --repeats many", "--repeats"},
      {"compare --time_budget soon", "--time_budget"},
      {"compare --link 1000", "no unit"},
      {"compare --link fast", "1gbit"},
      {"compare --link 1gbit --shaping none", "--shaping none"},
      {"compare --link none --shaping netns", "--link 1gbit"},
      {"compare --latency 1", "0.5ms"},
      {"compare --scale 10", "add --link"},
      {"compare --scale 10 --link 10gbit", "add --workload"},
      {"compare --scale 0.5 --link 10gbit --workload resnet50", "--scale"},
      {"compare --scale 10 --link 10gbit --workload resnet50 --jitter_ms 5", "--jitter_ms"},
      {"train --strategy ring --link 1gbit --transport shm", "share no memory"},
      {"compare --predict --link none", "--link 1gbit"},
      {"compare --predict --clock virtual", "--clock virtual"},
      {"compare --reference_workers 2", "--reference_workers"},
      {"compare --strategies ring --reference_workers 2", "--reference_workers"},
      {"compare --data_dir " + data, data},
      {"compare --data_dir /no/such/folder", "/no/such/folder"},
      {"compare --out " + file, file},
      {"compare --out /proc/psring", "/proc/psring"},
      {"train --strategy ring,star", "compare"},
      {"train --strategy ring --workers 1,2", "compare"},
      {"train --strategy single --workers 2", "one process"},
      {"train --strategy ring --reference_workers 2", "--reference_workers"},
      {"train --steps 5 --epochs 1", "--steps and --epochs"},
      {"train --transport pigeon", "--transport"},
      {"compare --workload resnet5", "resnet50"},
      {"compare --workload ./none.csv", "none.csv"},
      {"compare --workload resnet50 --model cnn", "--model"},
      {"compare --compute_speedup 2", "--workload"},
      {"train --strategy mpi --workers 2 --data synthetic --link 1gbit", "--link none"},
      {"compare --backend golo", "gloo"},
      {"predict --link 25", "has no unit"},
      {"predict --link 1gbit --workload resnet", "resnet50"},
      {"predict --link 1gbit --strategies rign", "did you mean 'ring'"},
      {"predict --cluster p3dn --workers 12", "12 workers do not fill nodes of 8 GPUs"},
      {"train --data synthetic --strategy none --workers 2 --backend native", "no collectives"},
      {"train --data synthetic --strategy none --workers 2 --transport tcp", "no collectives"},
      {"train --strategy ring --workers 3 --ranks_per_process 2", "3 is not a multiple of 2"},
      {"compare --strategies ring --workers 2,5 --ranks_per_process 2", "5 is not a multiple of 2"},
      {"train --strategy single --ranks_per_process 2", "omit --workers and --ranks_per_process"},
      {"train --strategy mpi --ranks_per_process 2 --data synthetic", "MPI"},
      {"train --strategy ring --ranks_per_process 2 --data synthetic --link 1gbit --shaping userspace",
       "this needs network namespaces"},
      {"train --data synthetic --steps 1 --bind 0.0.0.0", "names no machine"},
      {"train --data synthetic --bind :: --nnodes 2 --master_addr 127.0.0.1", "names no machine"},
      {OnTwo("--strategies ring --workers 3"), "ring x 3 on 2 machines of 1: use at most 2 --workers"},
      {OnTwo("--link 1gbit"), "--nnodes needs real machines"},
      {OnTwo("--shaping none"), "--shaping none is for a virtual cluster"},
      {OnTwo("--strategies ps-sync --servers 2 --server_placement dedicated"), "leaves none to train"},
      {OnTwo("--strategies ring,ps-sync --servers 1"),
       "--servers on several machines needs --server_placement"},
      {"compare --strategies parallax", "psring calls it 'hybrid'"},
      {"train --data synthetic --strategy hybrid --workers 2",
       "--strategy hybrid needs a model with tables of rows, such as dlrm-small; use ring for mlp"},
      {"compare --workload resnet50 --strategies ring,hybrid",
       "--strategy hybrid needs a model with tables of rows, such as dlrm-small; use ring"},
      {"compare --model dlrm-small --data zipf:300:1 --strategies hybrid,data-parallel",
       "--strategy data-parallel does not support the tables of dlrm-small; use one of "},
      {"predict --link 1gbit --strategies hybrid", "a workload has no tables of rows"},
      {"compare --clock virtual --strategies hybrid --workers 2",
       "--clock virtual has no model of the rows of tables; omit hybrid"},
  };
  ExpectOneLineOfEach(cases, "psring");
}

TEST_F(PsringTest, CudaIsRejectedWithoutAGpu) {
  if (fs::exists("/dev/nvidia0")) GTEST_SKIP() << "this machine has a GPU";
  const Outcome outcome = Run({"compare", "--device", "cuda"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, IsOneLine());
  EXPECT_TRUE(fs::is_empty(root_ / "work"));
}

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
  ASSERT_EQ(Run(Words("predict --workload alexnet --strategies ring --workers 2 --link 1gbit")).exit_code, 0);
  fs::remove(Path("runs/latest/report.html"));
  const Outcome latest = Run({"report"});
  EXPECT_EQ(latest.exit_code, 0) << latest.err;
  EXPECT_EQ(latest.out, "runs/latest/report.html\n");
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
    EXPECT_THAT(outcome.err, OneLineWith(says));
    for (const char* listed : {"hierarchical", "ps-ssp:K", "staleness", "words"}) {
      EXPECT_THAT(outcome.err, Has(listed));
    }
  }
}

TEST_F(PsringTest, ADryRunPrintsThePlanAndWritesNothing) {
  const Outcome outcome = Succeed("compare --data synthetic --dry_run");
  EXPECT_THAT(outcome.out, Has("ps-async x 4", "expected:"));
  EXPECT_TRUE(fs::is_empty(root_ / "work"));
}

TEST_F(PsringTest, DoctorReportsThisMachine) {
  const Outcome outcome = Run({"doctor"});
  EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 1) << outcome.err;
  for (const char* what :
       {"cores", "memory", "packages", "Fashion-MNIST", "GPUs", "NCCL", "namespaces", "tc", "/dev/shm"}) {
    EXPECT_THAT(outcome.out, Has(what)) << what << "\n" << outcome.out;
  }
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
  EXPECT_THAT(printed, Has("Nothing is simulated.")) << outcome.out;
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

  const Outcome again = Run({"replay", "live"});
  EXPECT_EQ(again.exit_code, 0) << again.out << again.err;
  EXPECT_THAT(again.out, Has("180 updates repeated", "bit for bit"));

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
  const Outcome differs = Run({"replay", "live"});
  EXPECT_EQ(differs.exit_code, 1) << differs.out;
  EXPECT_THAT(differs.err, Has("1 of 1 runs differ"));
}

TEST_F(PsringTest, RatesArePickedOnHeldOutSamples) {
  Succeed(
      "compare --data synthetic --model mlp-small --strategies ps-async --workers 4 --clock "
      "virtual --compute_ms 6 --samples 2560 --batch 32 --lr 0.001,0.05,1e12 --out run");
  const std::string rates = File("run/rates.csv");
  EXPECT_EQ(std::count(rates.begin(), rates.end(), '\n'), 1 + 2 * 3) << rates;
  EXPECT_THAT(rates, Has("ps-async,4,1e+12,,,false")) << "it diverged\n" << rates;
  for (const auto& row : JsonFile("run/summary.json")) {
    EXPECT_TRUE(row["figures"]["lr"] == 0.05 || row["figures"]["lr"] == 0.001) << row;
  }
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

// Where this machine makes no namespaces this is what it does; it can everywhere.
TEST_F(PsringTest, WithoutNamespacesTheTransportsLimitTheRate) {
  const Outcome outcome = SucceedOnLinks(
      "compare --data synthetic --strategies ring,ps-sync --workers 2 --repeats 1 --steps 2 --warmup_steps 1 "
      "--no_eval --batch 32 --link 100mbit --latency 2ms --shaping userspace");
  int compared = 0;
  for (const auto& row : JsonFile("runs/latest/summary.json")) {
    const auto& figures = row["figures"];
    EXPECT_EQ(figures["shaping"], "userspace");
    if (figures["strategy"] != "ring" && figures["strategy"] != "ps-sync") continue;
    ++compared;
    const double payload = figures["payload_tx_bytes_per_worker"];
    EXPECT_GT(figures["comm_busy_ms"].get<double>(), 0.9 * 1e3 * payload / 12.5e6) << figures;
    EXPECT_EQ(figures["transport"], figures["strategy"] == "ring" ? "tcp" : "grpc");
  }
  EXPECT_EQ(compared, 2);
}

TEST_F(PsringTest, AReplayedWorkloadSendsItsRecordedSizes) {
  ASSERT_TRUE(std::ofstream(Path("mine.csv")) << "# batch: 8\n# device: mine\n# forward_ms: 5\n"
                                                 "name,bytes,ready_ms\nlast,4000,1\nfirst,1000000,9\n");
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
  ASSERT_TRUE(std::ofstream(Path("mine.csv")) << "# batch: 8\n# device: mine\n# forward_ms: 5\n"
                                                 "name,bytes,ready_ms\nlast,1200000,1\nfirst,1000000,9\n");
  const Outcome outcome = SucceedOnLinks(
      "compare --workload ./mine.csv --strategies ring --workers 2 --repeats 1 "
      "--warmup_steps 1 --steps 3 --link 1gbit --scale 10 --out run --verbose");
  EXPECT_THAT(outcome.out, Has("1 Gbit/s links", "at 1/10 of the speed", "Times are simulated (--scale 10)"));
  EXPECT_THAT(outcome.out, Lacks("Nothing is simulated"));
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
  const Outcome like =
      Run(Words("train --strategy ring --workers 2 --clock virtual --data synthetic --like run --steps 4"));
  EXPECT_EQ(like.exit_code, 2);
  EXPECT_THAT(like.err, Has("without --scale"));
}

TEST_F(PsringTest, PredictionsAreComparedWithMeasurementsAndResidualsAddUp) {
  ASSERT_TRUE(std::ofstream(Path("mine.csv")) << "# batch: 8\n# device: mine\n# forward_ms: 5\n"
                                                 "name,bytes,ready_ms\nlast,1200000,1\nfirst,1000000,9\n");
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
  }
  EXPECT_EQ(predicted, 2);

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
