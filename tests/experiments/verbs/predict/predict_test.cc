#include "experiments/verbs/predict/predict.h"

#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/workloads/changes.h"
#include "experiments/run_folder/run_files.h"
#include "experiments/verbs/predict/report.h"
#include "ring_worker/schedules/schedule_traffic.h"
#include "tests/experiments/simulator/test_network.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::ContainsRegex;

absl::Status Refused(const RawPredictFlags& raw) { return UnderstandPredict(raw, {}).status(); }

TEST(PredictFlags, BadInputIsOneLineWithARemedy) {
  const auto says = [](const RawPredictFlags& raw, const char* what) {
    const absl::Status status = Refused(raw);
    EXPECT_THAT(status.message(), Has(what));
    EXPECT_THAT(status.message(), Lacks("\n"));
  };
  says({.link = "25"}, "--link: '25' has no unit; write 1gbit");
  says({.workload = "resnet", .link = "1gbit"},
       "Use one of alexnet, bert_base, gnmt, gpt2, gpt_mini, inception_bn, inception_v3, llama_8b, "
       "resnet101, resnet152, resnet50, vgg16, vgg19_22k");
  says({.workers = "4,12", .link = "1gbit", .intra = "10gbit", .gpus_per_node = 8},
       "12 workers do not fill nodes of 8 GPUs");
  says({.link = "1gbit", .gpus_per_node = 8}, "use --intra");
  says({}, "use --link 25gbit");
  says({.cluster = "dgx"}, "use dgx-h100, p3dn, 8x10gbe or the path");
  says({.link = "1gbit", .latency = "5"}, "--latency: '5' is not a time");
  says({.workload = "bert_base", .link = "1gbit", .device = "A100-tf32"}, "or to that of --device H100");
  says({.link = "1gbit", .device = "B200"}, "with --compute_speedup X");
  says({.link = "1gbit", .local_aggregation = true}, "use --gpus_per_node 8");
  says({.link = "1gbit", .system = "byteps"}, "use auto, none or one of byteps-tcp");
  says({.calibrate = "run", .fit = "fraction,speed"}, "unknown constant 'speed'");
  says({.calibrate = "run", .fit = "fraction,latency_us,node_loss"}, "at most two constants");
  says({.fit = "fraction"}, "--fit needs --calibrate");
  says({.link = "1gbit", .compute_varies = "normal:-1"}, "--compute_varies");
  says({.workers = "2,4", .link = "1gbit", .straggler = "2:2"}, "no worker 2");
  for (const char* strategy : {"zero2", "fsdp"}) {
    says({.strategies = absl::StrCat("ring,", strategy), .link = "1gbit", .wire = "float16"},
         absl::StrCat("--strategy ", strategy, " does not support --wire; omit it").c_str());
  }
  says({.strategies = "zero1", .workers = "4,6", .link = "1gbit", .dp_shard = 4},
       "--dp_shard 4 does not divide 6 replicas; use --dp_shard 2 or 3 or 6");
  says({.strategies = "ring", .link = "1gbit", .dp_shard = 2}, "--dp_shard is for zero1, zero2 and fsdp");
  says({.strategies = "ring", .workers = "4", .link = "1gbit", .pp = 2, .dp_shard = 2}, "--dp_shard");
}

TEST(PredictFlags, GroupsWithACopyOfTheStateArePredicted) {
  const RawPredictFlags raw{.strategies = "zero1", .workers = "4", .link = "1gbit", .dp_shard = 2};
  EXPECT_EQ(UnderstandPredict(raw, {})->options.dp_shard, 2);
}

TEST(PredictFlags, FlagsOverrideTheCluster) {
  const auto flags = UnderstandPredict({.workers = "8,16", .cluster = "p3dn", .link = "25gbit"}, {}).value();
  EXPECT_DOUBLE_EQ(flags.cluster.link_bytes_per_s, 25e9 / 8);
  EXPECT_EQ(flags.cluster.gpus_per_node, 8);
  EXPECT_EQ(flags.options.place, ServerPlace::kDedicated) << "no worker has an advantage";
}

TEST(PredictFlags, ASpeedupIsRelativeToTheDevice) {
  const auto on = [](const RawPredictFlags& raw) { return UnderstandPredict(raw, {})->workload; };
  const Workload a100 = on({.link = "1gbit", .device = "A100", .batch = 64}),
                 twice = on({.link = "1gbit", .device = "A100", .compute_speedup = 2, .batch = 64});
  EXPECT_NEAR(twice.compute_ms(), a100.compute_ms() / 2, 1e-9);
  EXPECT_THAT(twice.device, Has("2 times as fast as A100"));
}

TEST(Clusters, AreParsedFromJsonAndErrorsNameTheProblem) {
  const auto cluster =
      ClusterFromJson("mine",
                      R"({"link": "25gbit", "gpus_per_node": 4, "intra": "100gbit", "latency_us": 7})")
          .value();
  EXPECT_DOUBLE_EQ(cluster.latency_s, 7e-6);
  for (const auto& [text, what] :
       {std::pair(R"({"link": 25})", "cluster mine: link: expected a text of at most 64 bytes, found 25"),
        {R"({"lnk": "1gbit"})", "cluster mine: unknown field \"lnk\""},
        {R"({"link": "1gbit", "rings": 1.5})", "rings: expected a whole number from 1 to 64, found 1.5"},
        {R"({"gpus_per_node": 4294967297})",
         "gpus_per_node: expected a whole number from 1 to 1024, found 4294967297"},
        {R"({"link": "1gbit", "latency_us": -1})", "latency_us: expected a number"},
        {R"({"gpus_per_node": 2})", "links is missing"},
        {"[1]", "not a JSON object"}}) {
    EXPECT_THAT(ClusterFromJson("mine", text).status().message(), Has(what)) << text;
  }
}

TEST(Clusters, EveryRateIsChecked) {
  const Cluster good{.link_bytes_per_s = 1e9, .intra_bytes_per_s = 1e10, .connection_bytes_per_s = 1e8};
  EXPECT_TRUE(CheckCluster(good).ok());
  for (double Cluster::*rate :
       {&Cluster::link_bytes_per_s, &Cluster::intra_bytes_per_s, &Cluster::connection_bytes_per_s}) {
    for (const double wrong : {-1.0, double{INFINITY}, double{NAN}}) {
      Cluster cluster = good;
      cluster.*rate = wrong;
      EXPECT_FALSE(CheckCluster(cluster).ok()) << wrong;
    }
  }
}

// 100 MB that are ready at once, half of the step.
Workload Block() {
  return {.name = "block",
          .device = "none",
          .batch = 10,
          .forward_ms = 50,
          .backward_ms = 50,
          .tensors = {{"w", 100'000'000, 50}}};
}

PredictCase Ring(int workers) { return {.strategy = kRing, .workers = workers}; }

TEST(Predictor, AStepIsComputingPlusExposedCommunication) {
  const Predictor predictor(Block(), {.place = ServerPlace::kDedicated});
  const auto ring = predictor.Predict(Ring(4), TestNetwork()).value();
  EXPECT_NEAR(ring.step, 0.1 + 0.15, 1e-3);
  EXPECT_NEAR(ring.samples_per_s, 40 / ring.step, 1e-9);
  EXPECT_EQ(ring.limit, "node links");
  const auto server = predictor.Predict({kSync, 4, 1}, TestNetwork()).value();
  EXPECT_NEAR(server.step, 0.1 + 0.8, 1e-6);  // one bucket: nothing to pipeline
  EXPECT_EQ(server.limit, "server links");
}

TEST(Predictor, TheBytesSentAreThoseOfTheSchedule) {
  Predictor predictor(Block(), {});
  const auto ring = predictor.Predict(Ring(4), TestNetwork());
  const auto one_shot =
      predictor.Predict({.strategy = AllReduceRow("one-shot"), .workers = 4}, TestNetwork());
  ASSERT_TRUE(ring.ok() && one_shot.ok()) << ring.status() << one_shot.status();
  EXPECT_DOUBLE_EQ(one_shot->tx_bytes, 2 * ring->tx_bytes);  // (N-1) M and 2(N-1)/N M
  EXPECT_EQ(one_shot->rx_bytes, one_shot->tx_bytes);
  // Counted transfers agree with the closed forms.
  for (const std::string& algorithm : AlgorithmsFor(Collective::kAllReduce)) {
    const std::optional<Scheme> scheme = SchemeOf(AllReduceRow(algorithm));
    if (!scheme) continue;
    const auto schedule = MakeSchedule(algorithm, Collective::kAllReduce, {.ranks = 8}).value();
    EXPECT_NEAR(1e6 * TrafficOf(*schedule).MeanSent(),
                PayloadBytesPerWorker({.scheme = *scheme, .workers = 8}, 1e6), 1)
        << algorithm;
  }
}

TEST(Predictor, ASerialServerIsAlsoLimitedByItsLinks) {
  Predictor predictor(Block(), {.place = ServerPlace::kDedicated, .pipelined = false});
  const auto server = predictor.Predict({kSync, 4, 1}, TestNetwork()).value();
  EXPECT_EQ(server.limit, "server links");  // half of the time in, half of it out
  EXPECT_NEAR(server.limit_part, 1, 0.01);
}

TEST(Predictor, UpdatesFollowEveryBucketOfAnAllReduce) {
  Workload two = Block();
  two.tensors = {{"late", 40'000'000, 0}, {"early", 60'000'000, 0}};
  Cluster network = TestNetwork();
  Predictor predictor(two, {.buckets = {.first_mb = 0, .others_mb = 0}});
  const PredictCase ring = Ring(2);
  const double without = predictor.Predict(ring, network)->step;
  network.worker_update_s_per_byte = 1e-10;
  const auto with = predictor.Predict(ring, network).value();
  EXPECT_NEAR(with.step, without + 0.010, 1e-9);
  EXPECT_NEAR(with.update, 0.010, 1e-12);
  EXPECT_NEAR(with.step, with.compute + with.exposed + 0.006, 1e-9);  // the last one is not exposed
  // A server's workers update nothing.
  EXPECT_DOUBLE_EQ(predictor.Predict({kSync, 2, 1}, network)->step,
                   predictor.Predict({kSync, 2, 1}, TestNetwork())->step);
}

TEST(Predictor, ABurstShortensTheFirstBucketAndThoseAfterAPause) {
  Workload burst = Block();
  burst.tensors = {{"first", 40'000'000, 0}, {"behind it", 40'000'000, 0}, {"late", 20'000'000, 50}};
  burst.backward_ms = 500;
  burst.tensors[2].ready_ms = 500;
  Cluster network = TestNetwork();
  Predictor predictor(burst, {.buckets = {.first_mb = 0, .others_mb = 0}});
  const PredictCase ring = Ring(2);
  const double without = predictor.Predict(ring, network)->busy;
  network.burst_bytes = 2'000'000;
  // 2 MB of each direction at 2e9 instead of 1e9 a second, twice: tokens come back meanwhile.
  EXPECT_NEAR(predictor.Predict(ring, network)->busy, without - 2 * 0.002, 2e-4);
}

TEST(Predictor, StragglersAndJitterDelayARing) {
  Predictor slow(Block(), {.delays = {.slowness = {2}}});
  EXPECT_NEAR(slow.Predict(Ring(4), TestNetwork())->step, 0.2 + 0.15, 1e-3);
  EXPECT_NEAR(slow.Predict(Ring(4), TestNetwork())->wait, 0.2 - 0.125, 1e-6);
  const TimeDistribution exponential{.kind = TimeDistribution::Kind::kExponential, .scale_ms = 10};
  Predictor jittery(Block(), {.delays = {.jitter = exponential}});
  // The largest of four exponential delays is 1 + 1/2 + 1/3 + 1/4 times their mean.
  EXPECT_NEAR(jittery.Predict(Ring(4), TestNetwork())->step, 0.1 + 0.0208 + 0.15, 3e-3);
}

TEST(Predictor, Zero1IsARingWhoseWorkersUpdateOneShardEach) {
  const PredictCase ring = Ring(4), zero1 = {.strategy = *FindStrategy("zero1"), .workers = 4};
  Cluster network = TestNetwork();
  network.worker_update_s_per_byte = 1e-9;  // .1 s for all
  const auto of = [&](const PredictCase& point, const PredictOptions& options) {
    return Predictor(Block(), options).Predict(point, network).value();
  };
  EXPECT_DOUBLE_EQ(of(zero1, {}).tx_bytes, of(ring, {}).tx_bytes);
  EXPECT_NEAR(of(ring, {}).step - of(zero1, {}).step, .75 * .1, 1e-9);
  EXPECT_NEAR(of(zero1, {}).update, .1 / 4, 1e-9);
  // Gradients are half as long, weights are not.
  EXPECT_DOUBLE_EQ(of(zero1, {.wire_part = .5}).tx_bytes, .75 * of(zero1, {}).tx_bytes);
  EXPECT_NEAR(of(zero1, {.wire_part = .5}).busy, .75 * of(zero1, {}).busy, .01 * of(zero1, {}).busy);
  // All buckets are ready when backward ends: clipping changes only the order of the same work.
  EXPECT_NEAR(of(zero1, {.clips = true}).step, of(zero1, {}).step, 1e-9);
}

// Two nodes of four workers: between nodes only the sums of the shards are sent.
TEST(Predictor, ACopyOfTheStateOnEachNodeSendsLessBetweenThem) {
  Cluster network = TestNetwork();
  network.gpus_per_node = 4;
  network.intra_bytes_per_s = 100 * network.link_bytes_per_s;
  const auto of = [&](const char* strategy, int dp_shard) {
    const Predictor predictor(Block(), {.dp_shard = dp_shard});
    return predictor.Predict({.strategy = *FindStrategy(strategy), .workers = 8}, network).value();
  };
  // 2 (S-1)/S, or 3 (S-1)/S, and 2 (C-1)/C of 1/S, of 100 MB.
  EXPECT_NEAR(of("zero1", 4).tx_bytes, (1.5 + .25) * 100e6, 1);
  EXPECT_NEAR(of("fsdp", 4).tx_bytes, (2.25 + .25) * 100e6, 1);
  EXPECT_DOUBLE_EQ(of("fsdp", 8).tx_bytes, of("fsdp", 0).tx_bytes);
  EXPECT_LT(of("fsdp", 4).step, of("fsdp", 0).step);
  // The four rings of a node share its card, which sends 2 (C-1)/C of 100 MB.
  const double card_s = 100e6 / (network.fraction * network.link_bytes_per_s);
  EXPECT_NEAR(of("fsdp", 4).busy, card_s, .1 * card_s);
  network.cards_per_node = 4;  // each ring has one
  EXPECT_NEAR(of("fsdp", 4).busy, card_s / 4, .1 * card_s);
  network.cards_per_node = 1;
  const Predictor uneven(Block(), {.dp_shard = 3});
  EXPECT_THAT(
      std::string(
          uneven.Predict({.strategy = *FindStrategy("fsdp"), .workers = 12}, network).status().message()),
      Has("--dp_shard 3 and nodes of 4 workers"));
}

TEST(Predictor, OtherLibrariesChoicesAreNotPredicted) {
  EXPECT_FALSE(CheckStrategy(*FindStrategy("nccl")).ok());
  EXPECT_TRUE(CheckStrategy(kAsync).ok());
}

const Predictor kDedicated(Block(), {.place = ServerPlace::kDedicated});

PredictReport Report(const Predictor& predictor, const std::vector<int>& workers) {
  PredictReport report{.run_id = "test", .predictor = &predictor, .cluster = TestNetwork()};
  for (const int n : workers) {
    for (const PredictCase& point :
         {PredictCase{kRing, n, 0}, PredictCase{kSync, n, 1}, PredictCase{kAsync, n, 1}}) {
      PredictedRow row{.point = point, .single_samples_per_s = 100};
      row.guesses.push_back(*predictor.Predict(point, report.cluster));
      report.rows.push_back(row);
    }
  }
  return report;
}

TEST(PredictReport, NamesAWinnerAndItsAdvantage) {
  const PredictReport report = Report(kDedicated, {2, 8});
  const std::optional<PredictionVerdict> verdict = VerdictAt(report, MostWorkers(report));
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->winner->name(), "ring");
  EXPECT_TRUE(verdict->shown);
  EXPECT_LE(verdict->interval.low, verdict->factor);
  EXPECT_GE(verdict->interval.high, verdict->factor);
  const std::string text = PredictText(report);
  EXPECT_THAT(text, Has("Verdict (simulated): ring is fastest with 8 workers",
                        "- --system none: the described network"));
  for (const absl::string_view line : absl::StrSplit(text, '\n')) EXPECT_LE(line.size(), 120u) << line;
}

TEST(PredictReport, RecommendsOneProcessFirstIfTheWorkersAreNotFaster) {
  PredictReport report = Report(kDedicated, {8});
  const PredictedRow& winner = *VerdictAt(report, MostWorkers(report))->winner;
  const double together = winner.expected().samples_per_s;
  const auto verdict = [&](double one) {
    for (PredictedRow& row : report.rows) row.single_samples_per_s = one;
    const std::string text = PredictText(report);
    std::string flat = text.substr(text.find("Verdict (simulated): "));
    std::ranges::replace(flat, '\n', ' ');
    return flat;
  };
  EXPECT_THAT(verdict(together / 4),
              testing::StartsWith("Verdict (simulated): ring is fastest with 8 workers"));
  const std::string slower = verdict(4 * together);
  EXPECT_THAT(slower, testing::StartsWith(
                          "Verdict (simulated): use one process: 8 workers with the fastest strategy, ring, "
                          "reach only 0.25 ("));
  EXPECT_THAT(slower, Has("If you distribute the model anyway: ring is fastest with 8 workers"));
  EXPECT_THAT(
      verdict(together),
      testing::StartsWith("Verdict (simulated): use one process: 8 workers are not shown to be faster;"));
}

TEST(PredictReport, AWinnerWithOtherUpdatesIsToBeComparedInAccuracy) {
  PredictReport report = Report(kDedicated, {8});
  EXPECT_THAT(PredictText(report), Lacks("late gradients"));
  const PredictionVerdict verdict = *VerdictAt(report, MostWorkers(report));
  for (PredictedRow& row : report.rows) {
    if (&row != verdict.winner) continue;
    row.point.strategy.uses_servers = true;
    row.point.strategy.synchronous = false;
  }
  EXPECT_THAT(PredictText(report), Has("ring updates the weights with late gradients: compare"));
}

TEST(PredictReport, NamesAWorkerThatMakesMostOfTheSamples) {
  Cluster slow_links = TestNetwork();
  slow_links.link_bytes_per_s = 1e8;
  const auto text = [&](ServerPlace place) {
    Predictor predictor(Block(), {.place = place});
    PredictReport report = Report(predictor, {4});
    for (PredictedRow& row : report.rows)
      row.guesses.assign(row.guesses.size(), *predictor.Predict(row.point, slow_links));
    return absl::StrReplaceAll(PredictText(report), {{"\n", " "}});
  };
  const std::string beside = text(ServerPlace::kRank0), apart = text(ServerPlace::kDedicated);
  EXPECT_THAT(
      beside,
      ContainsRegex("ps-async on 1 server \\(one worker makes [6-9][0-9]% of the samples\\) is fastest"));
  EXPECT_THAT(beside, Has("- one worker: ", "its exchange uses no link"));
  EXPECT_THAT(apart, Lacks("one worker"));
}

TEST(PredictReport, EqualStrategiesHaveNoWinner) {
  Workload small = Block();
  small.tensors.front().bytes = 4;
  Predictor predictor(small, {});
  const std::optional<PredictionVerdict> verdict = VerdictAt(Report(predictor, {4}), 4);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_FALSE(verdict->shown);
}

TEST(PredictReport, ComparesServersWithARingAndNotWithOtherNumbersOfServers) {
  PredictReport report = Report(kDedicated, {8});
  report.rows[2] = report.rows[1];  // ps-sync on other servers, as fast as the best of them
  report.rows[2].point.servers = 4;
  const PredictionVerdict verdict = *VerdictAt(report, 8);
  EXPECT_EQ(verdict.winner->name(), "ring");
  for (Prediction& guess : report.rows[2].guesses) guess.samples_per_s *= 100;
  const PredictionVerdict other = *VerdictAt(report, 8);
  EXPECT_EQ(other.winner->name(), "ps-sync on 4 servers");
  EXPECT_EQ(other.next->name(), "ring");
}

TEST(PredictReport, NamesACrossoverOnlyForShownWinners) {
  PredictReport report = Report(kDedicated, {2, 8});
  EXPECT_THAT(PredictText(report), Has("ring is fastest"));
  for (PredictedRow& row : report.rows) row.guesses = report.rows.front().guesses;
  const std::string text = PredictText(report);
  EXPECT_THAT(text, Has("no winner is shown for any requested number of workers"));
  EXPECT_THAT(text, Lacks("is fastest"));
}

TEST(PredictReport, NamesTheSizesFromWhichAStrategyIsShownToBeFastest) {
  PredictReport report = Report(kDedicated, {8});
  const auto text = [&](const std::vector<std::pair<double, std::optional<PredictCase>>>& fastest) {
    report.findings.fastest_by_size = fastest;
    return absl::StrReplaceAll(PredictText(report), {{"\n  ", " "}, {"\n", " "}});
  };
  EXPECT_THAT(
      text({{1 << 10, std::nullopt}, {1 << 12, Ring(8)}, {1 << 20, PredictCase{kSync, 8, 2}}}),
      Has("without computation: no winner from 1K on, ring from 4K on, ps-sync on 2 servers from 1M on."));
  EXPECT_THAT(text({{1 << 10, Ring(8)}, {1 << 12, Ring(8)}}),
              Has("without computation: ring is fastest from 1K on."));
}

TEST(PredictReport, TheHeaderHasNoFiguresOfManyDigits) {
  Workload slow = Block();
  slow.forward_ms = 1234567;
  const Predictor predictor(slow, {.place = ServerPlace::kDedicated});
  PredictReport report = Report(predictor, {2});
  report.cluster.fraction = 0.8389617;
  EXPECT_THAT(absl::StrReplaceAll(PredictText(report), {{"\n", " "}}),
              Has("forward 1235 s, backward 50.0 ms", "(0.839 of the rate is usable"));
}

TEST(PredictReport, SaysHowMuchOfTheirWorkTheWorkersDo) {
  PredictReport report = Report(kDedicated, {8});
  const double winner = VerdictAt(report, 8)->winner->expected().samples_per_s;
  for (PredictedRow& row : report.rows) row.single_samples_per_s = winner / 2.2;
  report.findings.half_work_bits_per_s = 41.23e9;
  const auto text = [&] { return absl::StrReplaceAll(PredictText(report), {{"\n  ", " "}, {"\n", " "}}); };
  EXPECT_THAT(text(),
              Has("The 8 workers do the work of 2.2. For half of theirs, links of at least 42 Gbit/s"));
  report.findings.half_work_bits_per_s = INFINITY;
  EXPECT_THAT(text(), Has("Faster links would not make it half"));
  for (PredictedRow& row : report.rows) row.single_samples_per_s = winner / 7;
  EXPECT_THAT(text(), Lacks("do the work of"));
}

TEST(PredictReport, NoRangeExceedsTheWorkersComputing) {
  PredictReport report = Report(kDedicated, {2});
  PredictedRow& row = report.rows.front();
  row.single_samples_per_s = 0.51 * row.expected().samples_per_s;
  EXPECT_DOUBLE_EQ(row.samples_per_s().high, 1.02 * row.expected().samples_per_s);
}

TEST(PredictReport, WithoutComputingThereAreNoSamples) {
  const Predictor exchange(WithoutComputing(Block()), {.place = ServerPlace::kDedicated});
  PredictReport report = Report(exchange, {4});
  for (PredictedRow& row : report.rows) row.single_samples_per_s = INFINITY;
  EXPECT_THAT(PredictText(report), Lacks("use one process"));
  const std::string csv = CellsCsv({PredictedCells(report, report.rows.front())});
  EXPECT_THAT(csv, Has("step_ms "));
  EXPECT_THAT(csv, Lacks("samples/s "));
}

TEST(PredictReport, AModelThatDoesNotFitOneGpuIsNamed) {
  const Predictor large(LoadWorkload("llama_8b").value(), {.wire_part = 0.5});
  PredictReport report{.predictor = &large, .cluster = TestNetwork()};
  report.rows.push_back({.point = Ring(2),
                         .guesses = {{.step = 500, .compute = 50, .samples_per_s = 0.004}},
                         .single_samples_per_s = 0.02});
  const std::string text = absl::StrReplaceAll(PredictText(report), {{"\n  ", " "}, {"\n", " "}});
  EXPECT_THAT(text, Has("16 bytes per parameter", "at most 32 GB", "in 16 bits", "0.004", "500 s",
                        "Tokens/s with 2 workers: 32.77 with ring"));
}

TEST(PredictReport, FillsTheColumnsOfTheSummary) {
  const PredictReport report = Report(kDedicated, {4});
  std::vector<std::vector<Cell>> rows;
  for (const PredictedRow& row : report.rows) rows.push_back(PredictedCells(report, row));
  const std::vector<Cell> summary = Cells(SummaryRow{});
  ASSERT_EQ(rows[0].size(), summary.size());
  for (size_t i = 0; i < summary.size(); ++i) EXPECT_STREQ(rows[0][i].column, summary[i].column);
  const std::string csv = CellsCsv(rows);
  EXPECT_THAT(csv, Has(",simulated,true,"));
  EXPECT_THAT(csv, Lacks("measured"));
  EXPECT_THAT(CellsJson(rows), Has("\"step_ms\": \"simulated\""));
}

}  // namespace
}  // namespace psring
