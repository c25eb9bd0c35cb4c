#include "experiments/analysis/residuals.h"

#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "experiments/analysis/findings.h"
#include "experiments/analysis/table.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// A step of 100 ms; the simulator predicts 80.
RunFigures Measured() {
  return {.step_ms = 100,
          .exposed_comm_ms = 60,
          .computed_ms = 31,
          .update_ms = 9,
          .run_delay_ms = 4,
          .waited_ms = 3,
          .network = NetworkFigures{.retransmitted_segments = 6, .again_ms = 2}};
}

Prediction Predicted() {
  return {.step = 0.080,
          .compute = 0.030,
          .exposed = 0.045,
          .wait = 0.001,
          .update = 0.008,
          .method = "simulated"};
}

double Sum(const Residual& r) {
  return r.computing + r.waiting + r.update + r.congestion + r.scheduling + r.unexplained;
}

TEST(Residual, HasNamedParts) {
  const Residual residual = ResidualOf(Measured(), Predicted());
  EXPECT_DOUBLE_EQ(residual.total(), 20);
  EXPECT_NEAR(residual.computing, 1, 1e-9);
  EXPECT_NEAR(residual.waiting, 2, 1e-9);
  EXPECT_NEAR(residual.update, 1, 1e-9);
  EXPECT_NEAR(residual.congestion, 2, 1e-9);
  EXPECT_NEAR(residual.scheduling, 4, 1e-9);
  EXPECT_NEAR(residual.unexplained, 10, 1e-9);
  EXPECT_NEAR(Sum(residual), 20, 1e-9);
}

TEST(Residual, UpperBoundsExplainAtMostTheRest) {
  RunFigures measured = Measured();
  measured.step_ms = 85;  // 5 ms more, 4 of them computing, waiting and updating
  Residual residual = ResidualOf(measured, Predicted());
  EXPECT_NEAR(residual.congestion, 1, 1e-9);
  EXPECT_NEAR(residual.scheduling, 0, 1e-9);
  EXPECT_NEAR(residual.unexplained, 0, 1e-9);
  measured.step_ms = 70;  // faster than predicted: congestion and scheduling explain nothing
  residual = ResidualOf(measured, Predicted());
  EXPECT_NEAR(residual.congestion, 0, 1e-9);
  EXPECT_NEAR(residual.scheduling, 0, 1e-9);
  EXPECT_NEAR(residual.unexplained, -14, 1e-9);
  EXPECT_NEAR(Sum(residual), -10, 1e-9);
}

TEST(Residual, UncountedPartsAreUnexplained) {
  RunFigures measured = Measured();
  measured.network.reset();
  measured.run_delay_ms.reset();
  measured.computed_ms.reset();
  measured.update_ms.reset();
  const Residual residual = ResidualOf(measured, Predicted());
  EXPECT_NEAR(residual.waiting, 2, 1e-9);
  EXPECT_NEAR(residual.unexplained, 18, 1e-9);
}

// 8 MB in two buckets.
SummaryRow Row(const std::string& strategy, int workers) {
  SummaryRow row{.run_id = "test", .configuration = TestConfiguration(strategy, workers)};
  row.measured_cost = true;
  row.rounds = 1;
  row.sample.parameters = 2'000'000;
  row.sample.bucket_elements = {500'000, 1'500'000};
  row.sample.backend = "native";
  row.link = {.shaping = Shaping::kNetns, .bits_per_s = 1e9};
  row.mean = {.step_ms = 60, .computed_ms = 20, .update_ms = 4, .waited_ms = 0, .bucket_ready_ms = {10, 20}};
  return row;
}

const PredictionInputs kGround{
    .wires = {.bytes_per_s = 1e8, .add_s_per_byte = 1e-10, .update_s_per_byte = 1e-10}, .cores = 8};

TEST(PredictRow, TakesComputingAndUpdatesFromNone) {
  const SummaryRow none = Row("none", 2);
  const auto beside = PredictRow(Row("ring", 2), &none, kGround).value();
  // 2 MB from 10 ms on take 20 ms and 1 ms of updating; then 6 MB take 60 ms and 3 ms of updating.
  EXPECT_NEAR(beside.prediction.step, 0.094, 5e-4);
  EXPECT_DOUBLE_EQ(beside.prediction.compute, 0.020);
  EXPECT_NEAR(beside.prediction.update, 0.004, 1e-9);
  EXPECT_EQ(beside.compute_from, "none x 2");
  EXPECT_NEAR(beside.residual.total(), 60 - 1e3 * beside.prediction.step, 1e-9);
}

TEST(PredictRow, UsesAWorkloadsTimesWithoutNone) {
  PredictionInputs ground = kGround;
  ground.workload = Workload{.name = "mine",
                             .batch = 1,
                             .forward_ms = 30,
                             .backward_ms = 10,
                             .tensors = {{"b", 2'000'000, 0}, {"a", 6'000'000, 10}}};
  const auto beside = PredictRow(Row("ring", 2), nullptr, ground).value();
  EXPECT_DOUBLE_EQ(beside.prediction.compute, 0.040);
  EXPECT_EQ(beside.compute_from, "the recording of mine");

  SummaryRow row = Row("ring", 2);
  row.configuration.training.micro_batches = 3;
  EXPECT_DOUBLE_EQ(PredictRow(row, nullptr, ground)->prediction.compute, 3 * 0.040);
  // Times measured in `none` take precedence over recorded ones.
  const SummaryRow none = Row("none", 2);
  EXPECT_EQ(PredictRow(Row("ring", 2), &none, ground)->compute_from, "none x 2");
  row.sample.bucket_elements = {1'500'000, 500'000};
  EXPECT_THAT(PredictRow(row, &none, ground).status().message(), Has("another order"));
}

TEST(PredictRow, UsesTheServersPlacementAndSchedule) {
  const SummaryRow none = Row("none", 4);
  SummaryRow row = Row("ps-sync", 4);
  const double beside_rank0 = PredictRow(row, &none, kGround)->prediction.step;
  row.configuration.training.server_placement = "dedicated";
  const double dedicated = PredictRow(row, &none, kGround)->prediction.step;
  row.configuration.training.ps_schedule = "serial";
  const double serial = PredictRow(row, &none, kGround)->prediction.step;
  EXPECT_LT(beside_rank0, dedicated);  // the bytes of three workers instead of four
  EXPECT_LT(dedicated, serial);
  // All pushes, then all pulls: 2 x 4 x 8 MB, from the first bucket's readiness on.
  EXPECT_NEAR(serial, 0.010 + 0.640, 0.02);
}

TEST(PredictRow, UsesTheMeasuredRateOfTheServersWire) {
  const SummaryRow none = Row("none", 4);
  SummaryRow row = Row("ps-sync", 4);
  PredictionInputs ground = kGround;
  ground.wires.grpc_bytes_per_s = 5e7;  // slower than the links
  const auto step = [&] { return PredictRow(row, &none, ground)->prediction.step; };
  const double grpc = step();
  // Pushes and pulls of 8 MB for three remote workers.
  EXPECT_NEAR(grpc, 0.010 + 2 * 3 * 8e6 / 5e7, 0.03);
  row.configuration.training.server_wire = "stream";
  EXPECT_LT(step(), 0.6 * grpc) << "only the links limit it";
  ground.wires.stream_bytes_per_s = 5e7;
  EXPECT_EQ(step(), grpc);
}

TEST(PredictRow, ReportsUnsupportedCases) {
  const SummaryRow none = Row("none", 2);
  const auto why = [&](SummaryRow row) {
    return std::string(PredictRow(row, &none, kGround).status().message());
  };
  SummaryRow row = Row("ring", 2);
  EXPECT_EQ(why(row), "");
  row.link = {};
  EXPECT_THAT(why(row), Has("no rate"));
  row = Row("ring", 2);
  row.sample.backend = "gloo";
  EXPECT_THAT(why(row), Has("external libraries"));
  SummaryRow blind = Row("none", 2);
  blind.mean.computed_ms.reset();
  EXPECT_THAT(PredictRow(Row("ring", 2), &blind, kGround).status().message(),
              Has("the time of computing was not measured"));
}

// 8 MB in two buckets, ready at 10 and 20 ms, at 100 MB/s.
TEST(PredictRow, ModelsWireTypeAndClipping) {
  const SummaryRow none = Row("none", 2);
  const auto step = [&](const SummaryRow& row) {
    return PredictRow(row, &none, kGround).value().prediction.step;
  };
  SummaryRow row = Row("ring", 2);
  row.configuration.training.wire = "bfloat16";
  // 1 MB from 10 ms on, then 3 MB; followed by updates of 1 and 3 ms.
  EXPECT_NEAR(step(row), 0.010 + 0.010 + 0.001 + 0.030 + 0.003, 5e-4);
  row = Row("ring", 2);
  const double unclipped = step(row);
  row.configuration.training.clip_norm = 1;
  EXPECT_NEAR(step(row), unclipped, 5e-4);  // updates are sequential in both cases
  row = Row("ps-sync", 2);
  const double waits_for_buckets = step(row);
  row.configuration.training.clip_norm = 1;
  // The first bucket's weights come after the last bucket's gradient.
  EXPECT_GT(step(row), waits_for_buckets + 0.01);
  EXPECT_GT(step(Row("ps-backup:1", 2)), 0);
}

TEST(PredictRow, AppliesStragglers) {
  SummaryRow none = Row("none", 2), row = Row("ring", 2);
  const double even = PredictRow(row, &none, kGround)->prediction.step;
  none.configuration.training.straggler = row.configuration.training.straggler = "1:3";
  row.mean.steps = 10;
  // In `none` both take 40 ms on average: 20 and 60.
  none.mean.computed_ms = 40;
  none.mean.bucket_ready_ms = {20, 40};
  const auto beside = PredictRow(row, &none, kGround).value();
  EXPECT_NEAR(beside.prediction.compute, 0.040, 1e-9);
  EXPECT_NEAR(beside.prediction.wait, 0.020, 1e-9);
  EXPECT_GT(beside.prediction.step, even + 0.019);
  row.configuration.training.jitter_ms = "4";
  EXPECT_NEAR(PredictRow(row, &none, kGround)->prediction.compute, 0.004 + 0.036, 1e-9);
}

TEST(PredictRow, WithAlignedStepsPredictsAWorkersOwnStep) {
  const SummaryRow none = Row("none", 2);
  SummaryRow row = Row("ps-sync", 2);
  const double period = PredictRow(row, &none, kGround)->prediction.step;
  row.configuration.training.align_steps = true;
  // The worker beside the server gets its weights first.
  EXPECT_LT(PredictRow(row, &none, kGround)->prediction.step, period - 0.01);
}

TEST(ResidualsCsv, HasALinePerRoundAndOneForTheMean) {
  std::vector<SummaryRow> rows = {Row("none", 2), Row("ring", 2)};
  PredictRows(kGround, rows);
  ASSERT_TRUE(rows[1].prediction.has_value()) << rows[1].why_not_predicted;
  EXPECT_FALSE(rows[0].prediction.has_value());
  std::vector<ConfigurationRuns> runs;
  for (const SummaryRow& row : rows)
    runs.push_back({.configuration = row.configuration, .cost = {row.mean, row.mean}});
  const std::string csv = ResidualsCsv(rows, runs);
  const std::vector<std::string> lines = absl::StrSplit(csv, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 1 + 3);  // no lines for `none`
  const size_t columns = std::vector<std::string>(absl::StrSplit(lines[0], ',')).size();
  for (const std::string& line : lines)
    EXPECT_EQ(std::vector<std::string>(absl::StrSplit(line, ',')).size(), columns) << line;
  const std::vector<std::string> ring = absl::StrSplit(lines.back(), ',');
  double parts = 0, value = 0, total = 0;
  ASSERT_TRUE(absl::SimpleAtod(ring[8], &total));
  for (size_t i = 9; i <= 14; ++i) {
    ASSERT_TRUE(absl::SimpleAtod(ring[i], &value));
    parts += value;
  }
  EXPECT_NEAR(parts, total, 1e-6);
}

TEST(ResidualFindings, NameTheWorstAndNotableResiduals) {
  std::vector<SummaryRow> rows = {Row("none", 2), Row("ring", 2), Row("ring", 4)};
  rows[2].sample.backend = "gloo";
  PredictRows(kGround, rows);
  rows[1].prediction->residual = {.measured = 100, .predicted = 80, .waiting = 15, .unexplained = 5};
  const std::vector<std::string> findings = ResidualFindings(rows);
  ASSERT_EQ(findings.size(), 3);
  EXPECT_THAT(findings[0], Has("+25.0% at most (ring x 2)"));
  EXPECT_THAT(findings[1], Has("ring x 2: a step took 100.0 ms, the simulator predicts 80.0 ms. The "
                               "difference of +20.0 ms consists of: "
                               "waiting for a peer +15.0, unexplained +5.0."));
  EXPECT_THAT(findings[2], Has("Not predicted: ring x 4"));
  EXPECT_THAT(Table(rows), Has("+25.0", "s simulated"));
  rows[1].prediction->residual = {.measured = 81, .predicted = 80, .unexplained = 1};
  EXPECT_EQ(ResidualFindings(rows).size(), 2);  // no notable residual
}

TEST(PredictRow, ShardsOfWeightsAreGatheredOnceOrTwice) {
  SummaryRow none = Row("none", 2);
  const auto predicted = [&none](const std::string& strategy, auto change) {
    SummaryRow row = Row(strategy, 2);
    change(row.configuration.training);
    return PredictRow(row, &none, kGround);
  };
  const auto as_given = [](TrainingOptions&) {};
  const double ring = predicted("ring", as_given)->prediction.tx_bytes;
  EXPECT_DOUBLE_EQ(predicted("zero2", as_given)->prediction.tx_bytes, ring);
  EXPECT_DOUBLE_EQ(predicted("fsdp", as_given)->prediction.tx_bytes, 1.5 * ring);
  const auto never = [](TrainingOptions& o) { o.reshard = "never"; };
  EXPECT_DOUBLE_EQ(predicted("fsdp", never)->prediction.tx_bytes, ring);
  // With clipping zero1 sends its weights after the norm, and fsdp none.
  none.mean.computed_ms = 100;
  none.mean.bucket_ready_ms = {10, 100};
  const auto clips = [](TrainingOptions& o) { o.clip_norm = 1, o.reshard = "never"; };
  EXPECT_LT(predicted("fsdp", clips)->prediction.step, predicted("zero1", clips)->prediction.step - .005);
  const auto twice = [](TrainingOptions& o) { o.micro_batches = 2; };
  EXPECT_THAT(predicted("zero2", twice).status().message(), Has("before the last micro-batch"));
  EXPECT_TRUE(predicted("zero1", twice).ok());
}

TEST(PredictRow, DoesNotSimulateRowsOfTables) {
  SummaryRow row = Row("ring", 2);
  row.configuration.model.has_tables = true;
  EXPECT_EQ(PredictRow(row, nullptr, kGround).status().message(), "the rows of tables are not simulated");
}

TEST(ResidualFindings, AreEmptyWithoutPredictions) {
  const std::vector<SummaryRow> rows = {Row("none", 2), Row("ring", 2)};
  EXPECT_THAT(ResidualFindings(rows), IsEmpty());
  EXPECT_THAT(Table(rows), Lacks("simu-"));
}

TEST(Findings, StateTheCostOfRecording) {
  std::vector<SummaryRow> rows = {Row("ring", 2)};
  rows[0].mean.probe_ms = 0.06;
  EXPECT_THAT(Findings(rows, std::nullopt, 8),
              testing::Contains(HasSubstr("Recording took at most 0.1% of a step")));
  rows[0].mean.probe_ms = 1.2;
  EXPECT_THAT(Findings(rows, std::nullopt, 8), testing::Contains(HasSubstr("above the target of 1%")));
}

}  // namespace
}  // namespace psring
