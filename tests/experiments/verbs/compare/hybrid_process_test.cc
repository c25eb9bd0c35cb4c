// A comparison of a model with tables, with every kind of strategy that supports them, and what it says.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/experiments/chrome_trace.h"
#include "tests/experiments/psring_in_a_folder.h"
#include "tests/has.h"

namespace psring {
namespace {

using Json = nlohmann::json;

using TablesCompared = PsringInAFolder;

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

}  // namespace
}  // namespace psring
