// A strategy that only this test knows: its implementation and one row are enough to run it, and for its
// theory, its simulation and its explanation. Local SGD (Stich 2019): each worker makes H steps of its own,
// then the weights are averaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "experiments/simulator/prediction.h"
#include "experiments/verbs/explain/explain.h"
#include "tests/trainer/cluster.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kWorkers = 4;

// `none`, and an all-reduce of the weights after each H-th step.
class LocalSgd final : public SyncStrategy {
 public:
  LocalSgd(const StrategyContext& context, std::unique_ptr<SyncStrategy> own)
      : context_(context), own_(std::move(own)) {}

  absl::StatusOr<int64_t> Start(const TrainingState& state) override {
    weights_ = state.weights.device;
    return own_->Start(state);
  }
  absl::Status BeginStep(const StepInfo& info) override {
    averages_ = (info.step + 1) % context_.number == 0;
    return own_->BeginStep(info);
  }
  void GradientReady(absl::Span<const Bucket> buckets, Event ready) override {
    own_->GradientReady(buckets, ready);
  }
  absl::StatusOr<StepReport> FinishStep() override {
    PSRING_ASSIGN_OR_RETURN(StepReport report, own_->FinishStep());
    if (!averages_) return report;
    const Traffic before = context_.group->traffic();
    PSRING_RETURN_IF_ERROR(context_.group->AllReduce(weights_, weights_, ReduceOp::kMean, context_.compute));
    PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    report.traffic = context_.group->traffic() - before;
    return report;
  }
  absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) override {
    return own_->Save(weights, slots);
  }
  absl::Status Collect(Span weights) override { return own_->Collect(weights); }
  void Abort(absl::Status why) override { context_.group->Abort(std::move(why)); }

 private:
  const StrategyContext context_;
  const std::unique_ptr<SyncStrategy> own_;
  Span weights_;
  bool averages_ = false;
};

absl::StatusOr<Strategy> MakeLocalSgd(const StrategyContext& context) {
  PSRING_ASSIGN_OR_RETURN(Strategy own, MakeNone(context));
  Strategy strategy;
  strategy.sync = std::make_unique<LocalSgd>(context, std::move(own.sync));
  return strategy;
}

const StrategyTable& RowsWithLocalSgd() {
  static const auto& rows = *[] {
    auto* all = new StrategyTable(StrategyRows());
    all->push_back({.name = "local-sgd",
                    .summary = "H steps without communication, then an average of the weights",
                    .uses_group = true,
                    .backend = "native",
                    .algorithm = "ring",
                    .synchronous = false,
                    .number_letter = "H",
                    .number_meaning = "steps between two averages",
                    .number_least = 1,
                    .scheme = &Scheme::kAllReduce,
                    .exchanges = [](int number) { return 1.0 / number; },
                    .step = {"Each worker updates its own weights.", "After H steps all average them."},
                    .make = MakeLocalSgd});
    return all;
  }();
  return rows;
}

StrategyRow LocalSgdOf(int steps) {
  return *FindStrategy(absl::StrCat("local-sgd:", steps), {}, RowsWithLocalSgd());
}

std::vector<RankOutcome> Train(int steps_between) {
  TrainingOptions options = SmallOptions(absl::StrCat("local-sgd:", steps_between));
  options.optimizer = "sgd";
  return TrainRanks(options, kWorkers, SmallData(), [](Worker&) {}, {.strategies = RowsWithLocalSgd()});
}

TEST(NewStrategy, IsFoundOnlyInItsTable) {
  EXPECT_EQ(LocalSgdOf(4).name, "local-sgd:4");
  EXPECT_THAT(std::string(FindStrategy("local-sgd", {}, RowsWithLocalSgd()).status().message()),
              HasSubstr("needs a whole number from 1 (H: steps between two averages)"));
  EXPECT_FALSE(FindStrategy("local-sgd:4").ok());
}

TEST(NewStrategy, IsRun) {
  const std::vector<RankOutcome> outcomes = Train(/*steps_between=*/4);
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.weights, outcomes[0].weights) << "the last of 20 steps averages them";
    ASSERT_EQ(outcome.steps.size(), 20u);
    for (size_t step = 0; step < outcome.steps.size(); ++step) {
      EXPECT_EQ(outcome.steps[step].payload_tx_bytes > 0, step % 4 == 3) << step;
    }
  }
  EXPECT_NE(Train(/*steps_between=*/3)[1].weights, outcomes[0].weights);
}

TEST(NewStrategy, IsPriced) {
  constexpr double kBytes = 1e6;
  const Wires wires{.latency_s = 1e-3, .bytes_per_s = 1e9};
  const CommPattern ring{.scheme = SchemeOf(*FindStrategy("ring")).value(), .workers = kWorkers};
  const CommPattern local{.scheme = SchemeOf(LocalSgdOf(4)).value(), .workers = kWorkers};
  EXPECT_DOUBLE_EQ(ExchangeSeconds(local, kBytes, wires), ExchangeSeconds(ring, kBytes, wires) / 4);
  EXPECT_DOUBLE_EQ(MeanExchangeSeconds(local, {kBytes, kBytes}, wires),
                   MeanExchangeSeconds(ring, {kBytes, kBytes}, wires) / 4);
  EXPECT_DOUBLE_EQ(PayloadBytesPerWorker(local, kBytes), PayloadBytesPerWorker(ring, kBytes) / 4);
}

TEST(NewStrategy, IsSimulated) {
  Predictor predictor(*LoadWorkload("resnet50"), {});
  const auto step = [&](const StrategyRow& strategy) {
    return predictor.Predict({.strategy = strategy, .workers = kWorkers}, {.link_bytes_per_s = 1e9}).value();
  };
  const Prediction ring = step(*FindStrategy("ring")), none = step(*FindStrategy("none"));
  const Prediction local = step(LocalSgdOf(4));
  EXPECT_NEAR(local.step, (ring.step + 3 * none.step) / 4, 1e-9);
  EXPECT_NEAR(local.tx_bytes, ring.tx_bytes / 4, 1);
  EXPECT_GT(local.samples_per_s, ring.samples_per_s);
}

TEST(NewStrategy, IsExplained) {
  EXPECT_THAT(ExplainStep(LocalSgdOf(4), kWorkers).value(),
              AllOf(HasSubstr("local-sgd:4: H steps without communication"),
                    HasSubstr("1. Each worker updates its own weights."), HasSubstr("psring explain ring")));
  const ScopedLanguage chinese(Language::kChinese);
  EXPECT_THAT(ExplainStep(LocalSgdOf(4), kWorkers).value(),
              AllOf(HasSubstr("After H steps all average them."), HasSubstr("运行它：")));
}

}  // namespace
}  // namespace psring
