#include "experiments/costs/sharded_costs.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/workloads/workload.h"
#include "ring_worker/schedules/schedule.h"
#include "ring_worker/schedules/schedule_traffic.h"
#include "trainer/programs/lower_program.h"
#include "trainer/programs/program_rows.h"

namespace psring {
namespace {

double BytesPerParameter(const std::string& name, int replicas, const AdamBytes& bytes) {
  return ShardedStateOf(ShardingStrategy(name), replicas, 1, bytes).total();
}

TEST(ShardedCosts, TheStateIsThatOfTheTableOfZero) {
  for (const int n : {1, 2, 4, 64}) {
    const AdamBytes sixteen = AdamBytes::SixteenBits(), full = AdamBytes::Float32();
    EXPECT_DOUBLE_EQ(BytesPerParameter("ring", n, sixteen), 16);
    EXPECT_DOUBLE_EQ(BytesPerParameter("zero1", n, sixteen), 4 + 12. / n);
    EXPECT_DOUBLE_EQ(BytesPerParameter("zero2", n, sixteen), 2 + 14. / n);
    EXPECT_DOUBLE_EQ(BytesPerParameter("fsdp", n, sixteen), 16. / n);
    EXPECT_DOUBLE_EQ(BytesPerParameter("ring", n, full), 16);
    EXPECT_DOUBLE_EQ(BytesPerParameter("zero1", n, full), 8 + 8. / n);
    EXPECT_DOUBLE_EQ(BytesPerParameter("zero2", n, full), 4 + 12. / n);
    EXPECT_DOUBLE_EQ(BytesPerParameter("fsdp", n, full), 16. / n);
  }
  EXPECT_EQ(ShardingStrategies().size(), 4u);
}

// Rajbhandari et al. 2020, figure 1: 7.5 billion parameters on 64 devices.
TEST(ShardedCosts, TheStateIsThatOfZerosFirstFigure) {
  const double gigabytes[] = {120, 31.4, 16.6, 1.9};
  for (size_t i = 0; i < ShardingStrategies().size(); ++i) {
    EXPECT_NEAR(1e-9 * ShardedStateOf(ShardingStrategies()[i], 64, 7.5e9, AdamBytes::SixteenBits()).total(),
                gigabytes[i], .05);
  }
}

TEST(ShardedCosts, HalfBlocksOfGptMiniOnFourRanksNeedAThirdOfDataParallelism) {
  const Workload workload = LoadWorkload("gpt_mini").value();
  double half_block = 0;
  for (const GradientTensor& tensor : workload.tensors) {
    const bool in_half =
        tensor.name.find("h.0.mlp") != std::string::npos || tensor.name.find("h.0.ln_2") != std::string::npos;
    half_block += in_half ? static_cast<double>(tensor.bytes) / 4 : 0;
  }
  const double parameters = static_cast<double>(workload.bytes()) / 4;
  EXPECT_NEAR(half_block / parameters, .109, .001);
  const double state =
      ShardedStateOf(ShardingStrategy("fsdp"), 4, parameters, AdamBytes::Float32(), half_block).total();
  EXPECT_NEAR(state / (16 * parameters) / .332, 1, .02);
}

// What a rank sends in a step of `units` equal units: the actions of the lowered program, each with the
// traffic of its ring.
double CountedBytes(const StrategyRow& row, int replicas, int micro_batches, int units, double unit_bytes) {
  const auto sent = [&](Collective collective) {
    return TrafficOf(**MakeSchedule("ring", collective, {.ranks = replicas})).MeanSent() * unit_bytes;
  };
  const StepProgram compute =
      MakeStepProgram(FindStepProgram("single_stage").value(), 1, micro_batches).value();
  ModelCut cut{.units = {units}, .bucket_ends = {{}}};
  for (int unit = units - 1; unit >= 0; --unit) cut.bucket_ends[0].push_back(unit);
  const StepProgram lowered =
      LowerProgram(compute, cut, {.reduce_always = row.shards_gradients, .shard_weights = row.shards_weights})
          .value();
  double bytes = 0;
  for (const StepAction& action : lowered.actions[0]) {
    if (action.kind == StepKind::kReduceGradient) {
      bytes += sent(row.shards_updates ? Collective::kReduceScatter : Collective::kAllReduce);
    }
    if (action.kind == StepKind::kUnshard) bytes += sent(Collective::kAllGather);
    if (action.kind == StepKind::kUpdate && row.shards_updates && !row.shards_weights) {
      bytes += sent(Collective::kAllGather);
    }
  }
  return bytes;
}

TEST(ShardedCosts, AStepSendsWhatItsProgramDoes) {
  constexpr int kUnits = 5;
  constexpr double kUnitBytes = 1200;
  for (const StrategyRow& row : ShardingStrategies()) {
    for (const int replicas : {2, 4, 6}) {
      for (const int micro_batches : {1, 3, 8}) {
        const double half = (replicas - 1.) / replicas * kUnitBytes;
        double expected = 2 * kUnits * half * row.SentPart(1, micro_batches);
        // The last unit stays from forward to backward, the first to the next micro-batch.
        if (row.shards_weights) expected -= (2 * micro_batches - 1) * half;
        EXPECT_NEAR(CountedBytes(row, replicas, micro_batches, kUnits, kUnitBytes), expected, 1e-6)
            << row.name << " " << replicas << " " << micro_batches;
      }
    }
  }
}

TEST(ShardedCosts, DividedTokensAreGatheredOnceMoreInBackward) {
  const TensorHalves sums = TensorHalvesOf(2, 2, false), parts = TensorHalvesOf(2, 2, true);
  EXPECT_EQ(sums.forward + sums.backward, 2 * kAllReducesPerLayer);
  EXPECT_EQ(parts.forward, sums.forward);
  EXPECT_EQ(parts.backward, sums.backward + 2);
}

// Korthikanti et al. 2022, equation 2: s b h (10 + 24/t) bytes without attention scores, of which 2 are
// dropout masks.
TEST(ShardedCosts, ALayerKeepsTheActivationsOfThePaper) {
  constexpr double kWidth = 512;
  for (const int ranks : {1, 4}) {
    const double values = KeptValuesPerToken(kWidth, {3 * kWidth, kWidth, 4 * kWidth, 4 * kWidth}, ranks);
    EXPECT_DOUBLE_EQ(2 * values, kWidth * (8 + 24. / ranks));
    // Equation 4: 34/t, of which 2 are dropout masks.
    EXPECT_DOUBLE_EQ(
        2 * KeptValuesPerToken(kWidth, {3 * kWidth, kWidth, 4 * kWidth, 4 * kWidth}, ranks, true),
        kWidth * 32. / ranks);
  }
}

}  // namespace
}  // namespace psring
