// A comparison of a model with tables, with every kind of strategy that supports them, and what it says.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/experiments/chrome_trace.h"
#include "tests/experiments/psring_in_a_folder.h"
#include "tests/has.h"

namespace psring {
namespace {

using Json = nlohmann::json;
using TablesCompared = PsringInAFolder;
namespace fs = std::filesystem;

TEST_F(TablesCompared, TheDefaultComparisonHasHybridAndSaysNothingAboutGradientsThatIsFalseForRows) {
  const Outcome outcome = Succeed(
      "compare --model dlrm-small --data zipf:3000:1.05 --workers 2 --repeats 1 --steps 6 --batch "
      "32 --samples 2560 --link none --out run");
  EXPECT_THAT(outcome.out, Has("with tables, of which a step exchanges only the rows"));
  const Json rows = JsonFile("run/summary.json");
  std::set<std::string> names;
  for (const Json& row : rows) {
    const Json& figures = row["figures"];
    names.insert(figures["strategy"]);
    EXPECT_EQ(row["has_tables"], true);
    if (figures["predicted_payload_bytes_per_worker"].is_null() || figures["workers"] == 1) continue;
    const double sent = figures["payload_tx_bytes_per_worker"];
    const double theory = figures["predicted_payload_bytes_per_worker"];
    if (figures["strategy"] == "ps-async") continue;  // workers share the steps unevenly
    EXPECT_NEAR(sent, theory, 1e-3 * theory) << figures["strategy"];
  }
  EXPECT_EQ(names, (std::set<std::string>{"single", "none", "ring", "ps-sync", "ps-async", "hybrid"}));
  const std::string findings = File("run/findings.txt");
  EXPECT_THAT(findings, Has("hybrid versus ps-sync with 2 workers", "ring versus hybrid with 2 workers"));
  EXPECT_THAT(findings, Lacks("hybrid versus hybrid", "for large gradients"));

  // The accuracy of hybrid is that of the other strategies with the same updates.
  for (const Json& row : rows) {
    if (row["figures"]["strategy"] != "hybrid") continue;
    EXPECT_EQ(row["figures"]["servers"], 1);
    EXPECT_EQ(row["figures"]["algorithm"], "ring");
    EXPECT_EQ(row["figures"]["transport"], "tcp");
    EXPECT_EQ(row["figures"]["wire"], "TCP, gRPC over TCP");
    EXPECT_GT(row["figures"]["server_payload_bytes"], 0);
    EXPECT_EQ(row["figures"]["replicas_equal"], true);
  }
  // In the trace, hybrid has the arrows of a ring and the servers' row.
  ChromeTraceCheck::Expect(JsonFile("run/trace.json"));
  EXPECT_THAT(File("run/report.html"), Has("\"has_tables\":true"));
}

TEST_F(TablesCompared, TrainHybrid) {
  Succeed("train --strategy hybrid --workers 3 --servers 2 --model skipgram --steps 4 --batch 16 --out run");
  const Json row = JsonFile("run/summary.json")[0];
  EXPECT_EQ(row["figures"]["strategy"], "hybrid");
  EXPECT_EQ(row["figures"]["servers"], 2);
  EXPECT_EQ(row["figures"]["parameters"], 0) << "outside of tables";
  EXPECT_EQ(row["figures"]["payload_tx_bytes_per_worker"],
            row["figures"]["predicted_payload_bytes_per_worker"]);
  EXPECT_GT(row["figures"]["server_payload_bytes"], 0);
}

// word2vec with servers that update when a push arrives.
TEST_F(TablesCompared, OnlyTablesTrainWithAnAsynchronousServer) {
  std::ofstream text(root_ / "words.txt");
  for (int word = 0; word < 3000; ++word) text << "abcdefgh"[word * word % 8] << "mnopq"[word / 7 % 5] << " ";
  text.close();
  Succeed(
      "train --strategy ps-async --workers 2 --model skipgram --text ../words.txt --steps 20 --batch 16 "
      "--out run");
  const Json row = JsonFile("run/summary.json")[0];
  EXPECT_EQ(row["figures"]["strategy"], "ps-async");
  EXPECT_EQ(row["figures"]["parameters"], 0) << "outside of tables";
  EXPECT_GT(row["figures"]["staleness_mean"], 0);
  const Outcome replayed = Run({"replay", "run"});
  EXPECT_NE(replayed.exit_code, 0);
  EXPECT_THAT(replayed.err, OneLineWith("a replay does not support the tables of skipgram"));
}

TEST_F(TablesCompared, ExplainHybrid) {
  EXPECT_THAT(Succeed("explain hybrid").out, Has("of all 4 workers row by row"));
  Succeed("explain hybrid --lang zh");
}

// The real binary with Gloo's and MPI's collectives: compared, interrupted, killed.

// A strategy that this build and machine can run; else why not.
std::string WhyNot(const Outcome& dry_run) { return dry_run.exit_code == 0 ? "" : dry_run.err; }

class OthersCollectives : public PsringInAFolder, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    PsringInAFolder::SetUp();
    const std::string why = WhyNot(Run(
        Words("train --data synthetic --model mlp-small --workers 2 --dry_run --strategy " + GetParam())));
    if (!why.empty()) {
      EXPECT_THAT(why, Has("install"));
      GTEST_SKIP() << why;
    }
  }
};

TEST_P(OthersCollectives, AreComparedWithOursOverTheSameTransport) {
  const Outcome outcome = Succeed(
      "compare --data synthetic --model mlp-small --workers 2 --repeats 1 --steps 4 --no_eval "
      "--batch 32 --verbose --strategies ring," +
      GetParam());
  EXPECT_THAT(outcome.out, Has("All payload went over TCP."));
  const auto summary = JsonFile("runs/latest/summary.json");
  int found = 0;
  for (const auto& row : summary) {
    const auto& figures = row["figures"];
    if (figures["strategy"] != GetParam()) continue;
    ++found;
    EXPECT_EQ(figures["backend"], GetParam());
    EXPECT_EQ(figures["transport"], "tcp");
    EXPECT_GT(figures["samples_per_s"], 0);
    EXPECT_EQ(row["basis"]["payload_tx_bytes_per_worker"], "derived") << row["basis"];
  }
  EXPECT_EQ(found, 1);
}

// Channels between stages, and with two replicas their sums.
TEST_P(OthersCollectives, TrainPipelinesWithTheWeightsOfWholeModels) {
  const std::string step =
      "train --data synthetic --model mlp-small --batch 8 --micro_batches 4 --steps 4 --no_eval --timeout "
      "40 ";
  const auto hash = [&](const std::string& out, const std::string& launch, int rank) {
    return JsonFile(
        absl::StrCat(out, "/records/training-1/", launch, "/result-rank", rank, ".json"))["weights_hash"];
  };
  Succeed(step + "--strategy single --out single");
  Succeed(step + "--strategy ring --workers 2 --out ring");
  int number = 0;
  for (const auto& [workers, flags, launch] : {std::tuple(2, "", "-2-pp2-1f1b-m4"),
                                               {2, " --copy_streams 1", "-2-pp2-1f1b-m4-copy-1"},
                                               {4, " --program gpipe", "-4-pp2-gpipe-m4"}}) {
    SCOPED_TRACE(absl::StrCat(workers, " workers", flags));
    const std::string out = absl::StrCat("run", number++);
    Succeed(absl::StrCat(step, "--strategy ", GetParam(), " --workers ", workers, " --pp 2", flags, " --out ",
                         out));
    for (int rank = 0; rank < workers; ++rank) {
      EXPECT_EQ(hash(out, GetParam() + launch, rank),
                workers == 2 ? hash("single", "single-1", 0) : hash("ring", "ring-2", rank % 2));
    }
  }
}

// Gloo's ranks are psring's own processes, as those of a ring (psring_ends_process_test.cc).
class UnderMpirun : public OthersCollectives {};

TEST_P(UnderMpirun, CtrlCLeavesNothingBehind) {
  const pid_t psring = StartLongTraining(GetParam());
  kill(psring, SIGINT);
  const Outcome outcome = FinishSoon(psring);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_EQ(outcome.err,
            absl::StrCat("psring train: interrupted (SIGINT); there are no results; the logs are in ", Out(),
                         "\n"));
  ExpectNoProcessWith(Out());
}

TEST_P(UnderMpirun, AKilledRankEndsTheRest) {
  const pid_t psring = StartLongTraining(GetParam());
  for (const std::string& process : Processes(LongRecords(GetParam()).string())) {
    const std::vector<std::string> variables =
        absl::StrSplit(Slurp(fs::path("/proc") / process / "environ"), '\0');
    for (const char* rank_1 : {"RANK=1", "OMPI_COMM_WORLD_RANK=1", "PMI_RANK=1"}) {
      if (std::find(variables.begin(), variables.end(), rank_1) != variables.end()) {
        kill(static_cast<pid_t>(std::stoi(process)), SIGKILL);
      }
    }
  }
  const Outcome outcome = FinishSoon(psring);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, Has("rank 1"));
  ExpectNoProcessWith(Out());
}

TEST_P(UnderMpirun, KillingPsringEndsItsRanks) {
  const pid_t psring = StartLongTraining(GetParam());
  kill(psring, SIGKILL);
  Finish(psring);
  ExpectNoProcessWith(Out());
}

INSTANTIATE_TEST_SUITE_P(All, OthersCollectives, testing::Values("gloo", "mpi"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(All, UnderMpirun, testing::Values("mpi"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace psring
