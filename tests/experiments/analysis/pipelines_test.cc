// Figures, table and verdict of pipelines, from records and rows written by hand.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "experiments/analysis/findings.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/analysis/table.h"
#include "experiments/analysis/verdict.h"
#include "experiments/run_folder/run_files.h"
#include "experiments/simulator/pipeline.h"
#include "tests/experiments/analysis/four_rows.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

constexpr int64_t kMs = 1'000'000;

Configuration InLayout(int dp, int pp, const std::string& program = "1f1b", int micro_batches = 8) {
  TrainingOptions training;
  training.pp = pp;
  training.program = program;
  training.micro_batches = micro_batches;
  Configuration configuration = *MakeConfiguration("ring", dp * pp, training, TestProbe(), /*cores=*/64);
  configuration.model.parameters = 1000 * pp;
  return configuration;
}

// Two measured steps of 10 ms after a warm-up step. By rank: bubble, computing, samples, bytes sent, and the
// times of messages that it receives.
struct Of {
  double bubble_ms, compute_ms;
  int64_t samples;
  uint64_t tx_bytes = 0;
  double activation_ms = 0, gradient_ms = 0;
};
RunRecords Records(const std::vector<Of>& ranks) {
  RunRecords records;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Of& of = ranks[rank];
    records.ranks.push_back({.rank = static_cast<int>(rank),
                             .world_size = static_cast<int>(ranks.size()),
                             .parameters = 1000,
                             .bucket_elements = {500},
                             .ddp = {.forward_ms = 3, .backward_ms = 5}});
    auto& steps = records.steps.emplace_back();
    for (int64_t step = 0; step < 3; ++step) {
      steps.push_back({.rank = static_cast<int>(rank),
                       .step = step,
                       .warmup = step == 0,
                       .samples = of.samples,
                       .begin_ns = 10 * step * kMs,
                       .step_ms = 10,
                       .compute_ms = of.compute_ms,
                       .payload_tx_bytes = of.tx_bytes,
                       .bubble_ms = step == 0 ? 9 : of.bubble_ms,
                       .activation_message_ms = of.activation_ms,
                       .gradient_message_ms = of.gradient_ms});
    }
  }
  return records;
}

SummaryRow RowOf(const Configuration& configuration, const RunRecords& records, double bits_per_s = 0) {
  ConfigurationRuns runs{.configuration = configuration, .sample = records.ranks.front()};
  runs.cost.push_back(FiguresOf(configuration, records).value());
  return Summarise("run", {runs}, std::nullopt, {.bits_per_s = bits_per_s}).front();
}

std::string CellText(const SummaryRow& row, const std::string& column) {
  for (const Cell& cell : Cells(row)) {
    if (cell.column != column) continue;
    if (const auto* number = std::get_if<double>(&cell.value)) return absl::StrFormat("%.4f", *number);
    if (const auto* whole = std::get_if<int64_t>(&cell.value)) return absl::StrCat(*whole);
    if (const auto* text = std::get_if<std::string>(&cell.value)) return *text;
    return "";
  }
  return "no such column";
}

TEST(Pipelines, TheirBubbleIsAPartOfTheStepAndStage0CountsTheSamples) {
  const SummaryRow row = RowOf(InLayout(1, 2), Records({{1, 8, 1024}, {2, 7, 0}}));
  EXPECT_EQ(CellText(row, "bubble_fraction"), "0.1500");
  EXPECT_EQ(row.mean.samples, 2048);
  EXPECT_DOUBLE_EQ(row.mean.samples_per_s, 2048 / 0.02);
  EXPECT_FALSE(row.mean.wait_ms.has_value());
  EXPECT_EQ(CellText(row, "layout"), "pp2");
  EXPECT_EQ(CellText(row, "program"), "1f1b");
  EXPECT_EQ(CellText(row, "micro_batches"), "8");
  EXPECT_EQ(CellText(row, "global_batch"), "1024");
}

TEST(Pipelines, DataParallelismHasNone) {
  const SummaryRow row = RowOf(TestConfiguration("ring", 2), Records({{0, 8, 512}, {0, 8, 512}}));
  for (const char* column : {"program", "bubble_fraction", "predicted_bubble_fraction"})
    EXPECT_EQ(CellText(row, column), "") << column;
  EXPECT_EQ(CellText(row, "layout"), "dp2");
  EXPECT_FALSE(row.mean.boundary_bytes.has_value());
}

TEST(Pipelines, TheFirstStageSendsItsActivationsAndTheSumsOfItsGradients) {
  // One replica: 8 messages; the last stage sends gradients of the same size.
  EXPECT_DOUBLE_EQ(
      *RowOf(InLayout(1, 2), Records({{1, 8, 1024, 8 * 640}, {1, 8, 0, 8 * 640}})).mean.boundary_bytes, 640);
  // Two replicas: a ring of two sends 4 bytes for each of 500 elements. By default ranks 0 and 1 are first.
  const Of first{1, 8, 512, 8 * 640 + 2000}, last{1, 8, 0, 99999};
  EXPECT_DOUBLE_EQ(*RowOf(InLayout(2, 2), Records({first, first, last, last})).mean.boundary_bytes, 640);
  Configuration other = InLayout(2, 2);
  other.training.rank_order = "pp,dp";
  EXPECT_DOUBLE_EQ(*RowOf(other, Records({first, last, first, last})).mean.boundary_bytes, 640);
  // Four updates, each with a ring.
  const Of updating{1, 8, 512, 8 * 640 + 4 * 2000};
  EXPECT_DOUBLE_EQ(
      *RowOf(InLayout(2, 2, "pipedream-2bw"), Records({updating, updating, last, last})).mean.boundary_bytes,
      640);
  // Two stages on each of two ranks: the first rank's second stage also sends gradients.
  EXPECT_DOUBLE_EQ(*RowOf(InLayout(1, 2, "interleaved:2"), Records({{1, 8, 9, 24 * 640}, {1, 8, 0, 0}}))
                        .mean.boundary_bytes,
                   640);
}

// The first stage has twice as many buckets as the second.
TEST(Pipelines, WithoutAFlushStalenessIsTheMeanOverStages) {
  RunRecords records = Records({{1, 8, 512}, {1, 8, 0}});
  records.ranks[0].pushes = 2 * 24;
  records.ranks[0].staleness_sum = 2 * 21;
  records.ranks[0].staleness_max = 1;
  records.ranks[1].pushes = 24;
  const SummaryRow row = RowOf(InLayout(1, 2, "pipedream"), records);
  EXPECT_EQ(CellText(row, "staleness_mean"), absl::StrFormat("%.4f", 21. / 24 / 2));
  EXPECT_EQ(CellText(row, "staleness_max"), "1");
  EXPECT_DOUBLE_EQ(*row.mean.workers[0].staleness_mean, 21. / 24);
  EXPECT_DOUBLE_EQ(*row.mean.workers[1].staleness_mean, 0);
  EXPECT_THAT(absl::StrJoin(Findings({row}, std::nullopt, 8), "\n"),
              Has("gradients without a flush was ring x 2 (pp2 pipedream) 0.44 (at most 1), in updates"));
}

TEST(Pipelines, RanksThatDivideMatricesSendTheirSumsAndPartsOfTheGradient) {
  TrainingOptions training;
  training.tp = 2;
  training.micro_batches = 8;
  const auto divided = [&](int workers) {
    return *MakeConfiguration("ring", workers, training, TestProbe(), /*cores=*/64);
  };
  const SummaryRow row = RowOf(divided(2), Records({{0, 8, 1024, 8 * 600}, {0, 8, 0, 8 * 680}}));
  EXPECT_DOUBLE_EQ(*row.mean.boundary_bytes, 640);
  EXPECT_EQ(CellText(row, "layout"), "tp2");
  for (const char* column : {"program", "bubble_fraction", "predicted_bubble_fraction"})
    EXPECT_EQ(CellText(row, column), "") << column;
  EXPECT_EQ(row.mean.samples, 2048);
  // Two replicas: as of stages.
  const Of first{0, 8, 512, 8 * 640 + 2000}, second{0, 8, 0, 8 * 640 + 2000};
  EXPECT_DOUBLE_EQ(*RowOf(divided(4), Records({first, second, first, second})).mean.boundary_bytes, 640);
}

Configuration ServedInLayout(int dp, int pp, const std::string& strategy) {
  TrainingOptions training;
  training.pp = pp;
  return *MakeConfiguration(strategy, dp * pp, training, TestProbe(), /*cores=*/64);
}

TEST(Pipelines, AServersBytesAreThoseOfItsStages) {
  RunRecords records = Records({{1, 8, 512}, {1, 8, 512}, {1, 8, 0}, {1, 8, 0}});
  for (const int rank : {2, 3}) records.ranks[rank].bucket_elements = {300, 200};
  // 3 steps of 2 replicas: one bucket of the first stage, two of the last one.
  records.servers = {{.pushes = 6, .payload_rx_bytes = 3000, .payload_tx_bytes = 3000},
                     {.pushes = 12, .payload_rx_bytes = 1500, .payload_tx_bytes = 1500}};
  Configuration configuration = ServedInLayout(2, 2, "ps-sync");
  EXPECT_EQ(FiguresOf(configuration, records)->each_server_payload_bytes, (std::vector<double>{2000, 1000}));
  // Ranks 0 and 2 have the first stage.
  configuration.training.rank_order = "pp,dp";
  std::swap(records.ranks[1].bucket_elements, records.ranks[2].bucket_elements);
  EXPECT_EQ(FiguresOf(configuration, records)->each_server_payload_bytes, (std::vector<double>{2000, 1000}));
}

TEST(Pipelines, AWorkerWithoutTheFirstStageIsNotSlow) {
  const SummaryRow row =
      RowOf(ServedInLayout(2, 2, "ps-ssp:2"), Records({{1, 8, 512}, {1, 8, 512}, {1, 8, 0}, {1, 8, 0}}));
  EXPECT_TRUE(ClassesOf(row).empty());
  EXPECT_FALSE(row.mean.wait_ms.has_value());
  EXPECT_EQ(NameWithServers(row), "dp2xpp2 1f1b on 2 servers");
}

TEST(Pipelines, TheSumOfASharedTensorIsNoActivation) {
  RunRecords once = Records({{1, 8, 1024, 8 * 640 + 400}, {1, 8, 0, 0}}),
             always = Records({{1, 8, 1024, 8 * 640 + 8 * 400}, {1, 8, 0, 0}});
  for (RunRecords* records : {&once, &always}) {
    for (RankResult& rank : records->ranks) rank.parameters = 2000, rank.tied_elements = 100;
  }
  const SummaryRow row = RowOf(InLayout(1, 2), once);
  EXPECT_DOUBLE_EQ(*row.mean.boundary_bytes, 640);
  EXPECT_EQ(CellText(row, "parameters"), "2000") << "every rank reports those of the whole model";
  EXPECT_DOUBLE_EQ(*RowOf(InLayout(1, 2, "pipedream"), always).mean.boundary_bytes, 640);
}

TEST(Pipelines, TheSimulatedBubbleIsThatOfTheMeasuredStages) {
  // Equal stages of 8 ms in a step of 10 ms: p-1 of m+p-1 parts of the walk, which takes 9 ms.
  const SummaryRow equal = RowOf(InLayout(1, 2), Records({{1, 8, 1024}, {1, 8, 0}}));
  EXPECT_EQ(CellText(equal, "predicted_bubble_fraction"), "0.1000");
  // The first stage takes no time, so only the last one's device is busy: 8 ms of idle time.
  const SummaryRow uneven = RowOf(InLayout(1, 2), Records({{1, 0.0001, 1024}, {1, 8, 0}}));
  EXPECT_NEAR(*uneven.predicted_bubble, 0.4, 1e-3);
  // Without measured computing, by the formula: 1/9.
  const SummaryRow unknown = RowOf(InLayout(1, 2), Records({{1, 0, 1024}, {1, 0, 0}}));
  EXPECT_EQ(CellText(unknown, "predicted_bubble_fraction"), "0.1111");
}

TEST(Pipelines, TheSimulatedStepIsThatOfTheWalkAndTheUpdate) {
  RunRecords records = Records({{1, 8, 1024}, {1, 8, 0}});
  // Eight micro-batches through equal stages of 8 ms take 9 ms.
  EXPECT_NEAR(*RowOf(InLayout(1, 2), records).predicted_step_ms, 9, 1e-3);
  for (RankResult& rank : records.ranks) rank.update_ms = .5;
  const SummaryRow row = RowOf(InLayout(1, 2), records);
  EXPECT_NEAR(*row.predicted_step_ms, 9.5, 1e-3);
  EXPECT_EQ(nlohmann::json::parse(SummaryJson({row}))[0]["walk"]["basis"], "simulated");
  // The walk has no all-reduce.
  const SummaryRow replicas = RowOf(InLayout(2, 2), Records({{1, 8, 9}, {1, 8, 9}, {1, 8, 0}, {1, 8, 0}}));
  EXPECT_TRUE(replicas.predicted_bubble.has_value());
  EXPECT_FALSE(replicas.predicted_step_ms.has_value());
}

// The second stage has the most weights, the first the most of all classes together.
RunRecords RecordsWithMemory() {
  RunRecords records = Records({{1, 8, 1024}, {1, 8, 0}});
  records.ranks[0].memory = {.params_mb = 1, .grads_mb = 2, .optimizer_mb = 1, .activations_mb = 40};
  records.ranks[1].memory = {.params_mb = 3, .grads_mb = 6, .optimizer_mb = 3, .activations_mb = 20};
  records.ranks[0].predicted_memory = {
      .params_mb = 1, .grads_mb = 2, .optimizer_mb = 1, .activations_mb = 39};
  records.ranks[1].predicted_memory = records.ranks[1].memory;
  return records;
}

TEST(Pipelines, MemoryByClassIsThatOfTheRankWithTheMost) {
  const SummaryRow row = RowOf(InLayout(1, 2), RecordsWithMemory());
  EXPECT_EQ(CellText(row, "params_mb"), "3.0000");
  EXPECT_EQ(CellText(row, "grads_mb"), "6.0000");
  EXPECT_EQ(CellText(row, "optimizer_mb"), "3.0000");
  EXPECT_EQ(CellText(row, "activations_mb"), "40.0000");
  EXPECT_EQ(CellText(row, "predicted_peak_memory_mb"), "43.0000");
  const auto memory = nlohmann::json::parse(SummaryJson({row}))[0]["memory"];
  EXPECT_EQ(memory["measured"][1]["params_mb"], 3);
  EXPECT_EQ(memory["predicted"][0]["activations_mb"], 39);
  const std::string table = Table({row});
  EXPECT_THAT(table, Has("memory", "MiB", " 44.0", " 43.0", "memory: weights, gradients"));
}

TEST(Pipelines, MemoryOfEarlierRecordsIsUnknown) {
  const SummaryRow row = RowOf(InLayout(1, 2), Records({{1, 8, 1024}, {1, 8, 0}}));
  for (const char* column : {"params_mb", "optimizer_mb", "predicted_peak_memory_mb"})
    EXPECT_EQ(CellText(row, column), "");
  EXPECT_FALSE(nlohmann::json::parse(SummaryJson({row}))[0].contains("memory"));
  EXPECT_THAT(Table({row}), Lacks("MiB"));
}

TEST(Pipelines, TheSimulationHasTheMeasuredTimesOfMessages) {
  const SummaryRow row = RowOf(InLayout(1, 2), Records({{1, 8, 1024, 0, 0, 0.5}, {1, 8, 0, 0, 1.5, 0}}));
  const auto bubble = [](double activation_s, double gradient_s) {
    return SecondsOfWalk(*FindStepProgram("1f1b"), 8,
                         {{0.003, 0.005, 0, gradient_s}, {0.003, 0.005, activation_s, 0}})
        ->bubble;
  };
  EXPECT_NEAR(*row.predicted_bubble, 1e2 * bubble(0.0015, 0.0005), 1e-9);
  EXPECT_GT(std::abs(bubble(0.0015, 0.0005) - bubble(0, 0)), 1e-6);
}

TEST(Pipelines, TheSimulationHasTheCopyStreamsOfTheRow) {
  const RunRecords records = Records({{1, 8, 1024, 0, 0, 1}, {1, 8, 0, 0, 1, 0}});
  Configuration one = InLayout(1, 2);
  one.training.copy_streams = 1;
  const SummaryRow row = RowOf(one, records);
  const auto walk = [](int copy_streams) {
    return *SecondsOfWalk(*FindStepProgram("1f1b"), 8, {{0.003, 0.005, 0, 0.001}, {0.003, 0.005, 0.001, 0}},
                          copy_streams);
  };
  EXPECT_NEAR(*row.predicted_bubble, 1e2 * walk(1).bubble, 1e-9);
  EXPECT_NEAR(*row.predicted_step_ms, 1e3 * walk(1).step, 1e-6);
  EXPECT_GE(walk(1).step, walk(2).step);
  EXPECT_EQ(CellText(row, "copy_streams"), "1");
  EXPECT_EQ(CellText(RowOf(InLayout(1, 2), records), "copy_streams"), "2");
  EXPECT_EQ(
      CellText(RowOf(TestConfiguration("ring", 2), Records({{0, 8, 512}, {0, 8, 512}})), "copy_streams"), "");
}

TEST(Pipelines, TheBubbleOf4StagesAnd8MicroBatchesIs3Of11) {
  // The answer to the exercise: worksheet.md, question M.
  const NamedProgram program = *FindStepProgram("1f1b");
  EXPECT_DOUBLE_EQ(*program.row.bubble(4, 1, 8), 3. / 11);
  // Stages of 8 s: a step of 11 s.
  const WalkSeconds walk = *SecondsOfWalk(program, 8, {{3, 5}, {3, 5}, {3, 5}, {3, 5}});
  EXPECT_NEAR(walk.bubble, 3, 1e-6);
  EXPECT_NEAR(walk.step, 11, 1e-6);
  EXPECT_NEAR(SecondsOfWalk(*FindStepProgram("gpipe"), 8, {{3, 5}, {3, 5}, {3, 5}, {3, 5}})->bubble, 3, 1e-6);
  // Without a flush, the last of two stages waits in every update for the first one's backward pass of 2: for
  // M micro-batches it takes M times 1 + 2 + 2, after 1 for the first forward pass.
  const NamedProgram dream = *FindStepProgram("pipedream");
  EXPECT_NEAR(SecondsOfWalk(dream, 4, {{4, 8}, {4, 8}})->step, 15, 1e-6);
  EXPECT_NEAR(SecondsOfWalk(dream, 4, {{4, 8}, {4, 8}}, 2, /*ties_ends=*/true)->step, 21, 1e-6);
}

// ring in layouts dp2 and pp2 with the references, on links of 1 Gbit/s.
std::vector<SummaryRow> RowsOfLayouts(double copy_ms, double cut_ms) {
  std::vector<SummaryRow> rows = {TimedRow("single", 1, 180), TimedRow("none", 2, 95),
                                  TimedRow("ring", 2, copy_ms), TimedRow("ring", 2, cut_ms)};
  for (SummaryRow& row : rows) {
    row.configuration.training.global_batch = 64;
    row.mean.samples_per_s = 64e3 / row.mean.step_ms;
    const double scale = row.mean.samples_per_s / row.round_samples_per_s[1];
    for (double& rate : row.round_samples_per_s) rate *= scale;
    row.samples_per_s_95 = Interval{14'487, 14'817};
    row.efficiency = 0.53;
  }
  rows[2].mean.exposed_comm_ms = copy_ms - 100;
  rows[2].sample.parameters = 25'000'000;
  SummaryRow& cut = rows[3];
  cut.configuration.training.pp = 2;
  cut.configuration.training.micro_batches = 8;
  cut.mean.exposed_comm_ms = cut_ms - 115;
  cut.mean.bubble_fraction = 0.125;
  cut.predicted_bubble = 1. / 9;
  cut.mean.boundary_bytes = 800'000;
  return rows;
}

std::string FactOf(const RunVerdict& verdict, const std::string& label) {
  for (const VerdictFact& fact : verdict.facts) {
    if (fact.label == label) return fact.text;
  }
  return "";
}

TEST(Pipelines, TheVerdictSaysCopyOrCutAndFromWhichRateTheOtherWins) {
  RunVerdict verdict = VerdictOf(RowsOfLayouts(400, 120), kGigabitWires);
  EXPECT_THAT(verdict.line, Has("Use pp2 1f1b with 2 workers"));
  EXPECT_THAT(FactOf(verdict, "fastest strategy"), Has("pp2 1f1b, 3.33 times as fast as ring"));
  // 100 + 300 x = 115 + 5 x: at 19.7 times the rate.
  EXPECT_EQ(
      FactOf(verdict, "copy or cut"),
      "pp2 1f1b sends 0.8 MB of activations per micro-batch, ring 100 MB of gradients per step; ring wins "
      "from 19.7 Gbit/s per link (derived)");
  // 100 + 10 x = 115 + 5 x: at a third of the rate.
  verdict = VerdictOf(RowsOfLayouts(110, 120), kGigabitWires);
  EXPECT_THAT(verdict.line, Has("Use ring with 2 workers"));
  EXPECT_THAT(FactOf(verdict, "copy or cut"), Has("; pp2 1f1b wins below 333 Mbit/s per link (derived)"));
}

TEST(Pipelines, RanksOfASequenceSendForAttentionBesideTheWholeGradient) {
  TrainingOptions training;
  training.cp = 2;
  training.micro_batches = 8;
  const Configuration divided = *MakeConfiguration("ring", 2, training, TestProbe(), /*cores=*/64);
  // A ring of two sends 4 bytes for each of 500 elements, as that of two replicas does.
  const SummaryRow row = RowOf(divided, Records({{1, 8, 1024, 8 * 600 + 2000}, {1, 8, 0, 8 * 680 + 2000}}));
  EXPECT_DOUBLE_EQ(*row.mean.boundary_bytes, 640);
  EXPECT_EQ(CellText(row, "layout"), "cp2");
}

TEST(Pipelines, TheVerdictSaysCopyOrDivideAndTheTableWhatTpIs) {
  std::vector<SummaryRow> rows = RowsOfLayouts(400, 120);
  const SummaryRow cut = rows.back();
  SummaryRow& divided = rows.back();
  divided.configuration.training.pp = 1;
  divided.configuration.training.tp = 2;
  divided.mean.bubble_fraction = divided.predicted_bubble = std::nullopt;
  divided.mean.memory = {{.measured = {.params_mb = 7}}};
  const RunVerdict verdict = VerdictOf(rows, kGigabitWires);
  EXPECT_THAT(verdict.line, Has("Use tp2 with 2 workers"));
  EXPECT_EQ(FactOf(verdict, "copy or divide"),
            "tp2 sends 0.8 MB for sums of activations per micro-batch, ring 100 MB of gradients per step; "
            "ring wins from 19.7 Gbit/s per link (derived)");
  EXPECT_EQ(FactOf(verdict, "copy or cut"), "");
  EXPECT_EQ(Recommended(rows), std::vector<std::string>{"tp2"});
  EXPECT_THAT(ShortTable(rows), Has("tp2", "tp, workers that", "Scaling efficiency"));
  EXPECT_THAT(ShortTable(rows), Lacks("bubble"));
  std::map<std::string, std::vector<std::string>> cells;  // by heading and mark
  for (const TableColumn& column : PartsOfTable(rows).columns)
    cells[absl::StrCat(column.first, column.second, " ", column.mark)] = column.cells;
  EXPECT_EQ(cells["layout "], (std::vector<std::string>{"dp1", "dp2", "dp2", "tp2"}));
  EXPECT_EQ(cells["memoryMiB m"], (std::vector<std::string>{"", "", "", "7.0"}));
  EXPECT_FALSE(cells.contains("program "));
  rows.push_back(cut);
  const RunVerdict both = VerdictOf(rows, kGigabitWires);
  std::string all = absl::StrJoin(both.details, " ");
  for (const VerdictFact& fact : both.facts) absl::StrAppend(&all, " ", fact.label, ": ", fact.text);
  EXPECT_THAT(all, Has("copy or divide: tp2 sends", "copy or cut: pp2 1f1b sends"));
}

TEST(Pipelines, WithoutARateTheVerdictNamesTheSizeOfTheGradient) {
  std::vector<SummaryRow> rows = RowsOfLayouts(130, 120);
  for (SummaryRow& row : rows) row.link = {};
  // 100 + 30 x = 120: two thirds of 100 MB.
  EXPECT_THAT(CopyOrCut(rows[2], rows[3]), Has("; ring wins below 66.7 MB of gradients (derived)"));
  rows = RowsOfLayouts(110, 120);
  for (SummaryRow& row : rows) row.link = {};
  EXPECT_THAT(CopyOrCut(rows[2], rows[3]), Has("; pp2 1f1b wins from 200 MB of gradients (derived)"));
  rows[3].configuration.training.pp = 1;
  rows[3].configuration.training.cp = 2;
  EXPECT_EQ(CopyOrCut(rows[2], rows[3]),
            "cp2 sends 0.8 MB for attention per micro-batch, both 100 MB of gradients per step")
      << "any size of the gradient costs both as much";
  rows[3].configuration.training.pp = 2;
  rows[3].configuration.training.cp = 1;
  rows[2].mean.exposed_comm_ms = 0;
  rows[3].mean.boundary_bytes.reset();
  EXPECT_EQ(CopyOrCut(rows[2], rows[3]),
            "pp2 1f1b cuts the model, ring exchanges 100 MB of gradients per step");
}

TEST(Pipelines, TheVerdictNamesTheMemoryIfItDiffersByMoreThanATenth) {
  std::vector<SummaryRow> rows = RowsOfLayouts(400, 120);
  const auto with_memory = [&](double copy_mb, double cut_mb) {
    rows[2].mean.memory = {{.measured = {.params_mb = copy_mb}}};
    rows[3].mean.memory = {{.measured = {.params_mb = 1}}, {.measured = {.params_mb = cut_mb}}};
    return CopyOrCut(rows[2], rows[3]);
  };
  EXPECT_THAT(with_memory(400, 250),
              testing::EndsWith("; a worker needs up to 250 MiB with pp2 1f1b, 400 MiB with ring"));
  EXPECT_THAT(with_memory(100, 111), Has("111 MiB with pp2 1f1b"));
  EXPECT_THAT(with_memory(100, 109), Lacks("MiB"));
  EXPECT_THAT(with_memory(0, 109), Lacks("MiB")) << "not known";
}

TEST(Pipelines, TheTableOfCutsHasStepAndBubbleMeasuredBesideSimulated) {
  std::vector<SummaryRow> rows = RowsOfLayouts(400, 120);
  rows.push_back(rows[3]);
  for (const size_t cut : {3, 4}) {
    rows[cut].configuration.names_cuts = true;
    rows[cut].configuration.training.cuts = std::to_string(cut);
    rows[cut].predicted_step_ms = 110;
  }
  const std::string table = ShortTable(rows);
  EXPECT_THAT(table, Has("pp2 1f1b cut 3", "pp2 1f1b cut 4", "step", " 120 ", " 110 ", "12.5", "11.1"));
  EXPECT_THAT(table, Lacks("interval", "exposed,"));
  std::istringstream lines(table.substr(table.find("\n\n") + 2));
  for (std::string line; std::getline(lines, line) && !line.empty();) EXPECT_LE(line.size(), 80) << line;
  std::vector<std::string> cuts;
  for (const TableColumn& column : PartsOfTable(rows).columns) {
    if (column.second == "cut") cuts = column.cells;
  }
  EXPECT_EQ(cuts, (std::vector<std::string>{"", "", "", "3", "4"}));
}

TEST(Pipelines, NoRateIsDerivedFromWhichAPipelinePays) {
  const std::vector<SummaryRow> rows = RowsOfLayouts(400, 300);
  EXPECT_TRUE(LeastUsefulRate(rows[2], rows[0], rows[1], kGigabitWires).has_value());
  EXPECT_FALSE(LeastUsefulRate(rows[3], rows[0], rows[1], kGigabitWires).has_value());
}

TEST(Pipelines, AVerdictOnOneKindOfLayoutHasNoSuchFact) {
  EXPECT_EQ(FactOf(VerdictOf(RowsOfFour(200, 500), kGigabitWires), "copy or cut"), "");
}

TEST(Pipelines, TheTableHasLayoutsAndBothBubbles) {
  const std::vector<SummaryRow> rows = RowsOfLayouts(400, 120);
  std::map<std::string, std::vector<std::string>> cells;  // by heading and mark
  for (const TableColumn& column : PartsOfTable(rows).columns)
    cells[absl::StrCat(column.first, column.second, " ", column.mark)] = column.cells;
  EXPECT_EQ(cells["layout "], (std::vector<std::string>{"dp1", "dp2", "dp2", "pp2"}));
  EXPECT_EQ(cells["program "], (std::vector<std::string>{"", "", "", "1f1b"}));
  EXPECT_EQ(cells["micro-batches "], (std::vector<std::string>{"", "", "", "8"}));
  EXPECT_EQ(cells["bubble% m"], (std::vector<std::string>{"", "", "", "12.5"}));
  EXPECT_EQ(cells["bubble% s"], (std::vector<std::string>{"", "", "", "11.1"}));
  const std::string table = ShortTable(rows);
  EXPECT_THAT(
      table, Has("pp2 1f1b", "12.5", "11.1", "for other stages to compute (bubble", "Only what a walk of a"));
  std::istringstream lines(table.substr(table.find("\n\n") + 2));  // below AboveTable
  for (std::string line; std::getline(lines, line) && !line.empty();) EXPECT_LE(line.size(), 80) << line;
  EXPECT_THAT(ShortTable(RowsOfFour(200, 500)), Lacks("bubble"));
}

TEST(Pipelines, ThePagesFilesHaveLayoutsAndVerdict) {
  const std::vector<SummaryRow> rows = RowsOfLayouts(400, 120);
  const auto summary = nlohmann::json::parse(SummaryJson(rows));
  EXPECT_EQ(summary[3]["figures"]["layout"], "pp2");
  EXPECT_EQ(summary[3]["figures"]["bubble_fraction"], 0.125);
  EXPECT_EQ(summary[3]["basis"]["predicted_bubble_fraction"], "simulated");
  const auto table = nlohmann::json::parse(TableJson(rows, kGigabitWires, 4));
  EXPECT_EQ(table["recommended"][0], "pp2 1f1b");
  for (const char* language : {"en", "zh"}) EXPECT_THAT(table[language]["facts"].dump(), Has("19.7 Gbit/s"));
  Configuration configuration{.strategy = *FindStrategy("ring"), .workers = 2};
  configuration.training.pp = 2;
  configuration.training.program = "gpipe";
  configuration.training.micro_batches = 4;
  configuration.training.cuts = "3,6";
  EXPECT_THAT(RunsCsvLine({}, configuration, rows[3].mean),
              testing::EndsWith(",pp2,gpipe,4,0.125,\"3,6\"\n"));
}

}  // namespace
}  // namespace psring
