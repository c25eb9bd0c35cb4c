#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/workloads/workload.h"
#include "experiments/costs/machine_profile.h"
#include "experiments/costs/row_exchange.h"
#include "experiments/costs/sharded_costs.h"
#include "ring_worker/schedules/schedule.h"
#include "ring_worker/schedules/schedule_traffic.h"
#include "trainer/programs/lower_program.h"
#include "trainer/programs/program_rows.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

TEST(MachineProfile, FieldsOfAnotherTypeAreErrors) {
  for (
      const char* text :
      {"[]", "{}", R"({"results":[]})", R"({"results": [1, "two"], "config": 3})",
       R"({"results": [{"collective": 7, "backend": null}]})",
       R"({"results": [{"collective": "all_reduce", "backend": "native", "type": "float", "algorithm": "ring",
            "transport": "tcp", "workers": 4294967298, "size": 8}]})"}) {
    EXPECT_FALSE(ProfileOfBench("bench.json", text).ok()) << text;
  }
}

TEST(MachineProfile, RecoversTheParametersOfSyntheticTimes) {
  // Over links of their own moving and adding grow alike; over one medium they do not.
  const Wires truth{.latency_s = 30e-6, .add_s_per_byte = 0.2e-9, .medium_bytes_per_s = 2e9};
  std::vector<ProfilePoint> points;
  for (const char* schedule : {"ring", "star"}) {
    const Scheme scheme = Scheme::AllReduce(schedule);
    for (const int workers : {2, 4}) {
      for (double bytes = 4096; bytes < 1e8; bytes *= 8)
        points.push_back(
            {scheme, workers, bytes, ExchangeSeconds({.scheme = scheme, .workers = workers}, bytes, truth)});
    }
  }
  auto profile = FitProfile(points, true);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_NEAR(profile->latency_s.value, 30e-6, 1e-9);
  EXPECT_NEAR(profile->bytes_per_s.value, 2e9, 1e5);
  EXPECT_NEAR(profile->add_s_per_byte.value, 0.2e-9, 1e-13);
  EXPECT_NEAR(profile->r_squared, 1, 1e-9);
  // 5% off, up and down: the intervals widen and still hold the truth.
  for (size_t i = 0; i < points.size(); ++i) points[i].seconds *= i % 3 == 0 ? 1.05 : 0.975;
  profile = FitProfile(points, true);
  ASSERT_TRUE(profile.ok());
  EXPECT_LT(profile->bytes_per_s.interval.low, 2e9);
  EXPECT_GT(profile->bytes_per_s.interval.high, 2e9);
  EXPECT_LT(profile->r_squared, 1);
}

TEST(MachineProfile, OneNumberOfWorkersCannotSeparateAddingFromTransfers) {
  std::vector<ProfilePoint> points;
  for (double bytes = 4096; bytes < 1e8; bytes *= 8)
    points.push_back({Scheme::AllReduce("ring"), 2, bytes, 1e-4 + bytes / 1e9});
  const auto profile = FitProfile(points, true).value();
  EXPECT_EQ(profile.undetermined, (std::vector<std::string>{"g"}));
  EXPECT_NEAR(profile.latency_s.value, 0.5e-4, 1e-9);
  EXPECT_NEAR(profile.bytes_per_s.value, 2e9, 1e5);  // 2(N-1)M over the medium
}

TEST(MachineProfile, KeepsTheRateIfNoiseWouldAttributeEverythingToAdding) {
  // More workers take longer than their bytes: the best fit would have a negative rate.
  std::vector<ProfilePoint> points;
  for (double bytes = 4096; bytes < 1e8; bytes *= 8) {
    points.push_back({Scheme::AllReduce("ring"), 2, bytes, 1e-4 + bytes / 1e9});
    points.push_back({Scheme::AllReduce("ring"), 3, bytes, 1e-4 + 1.2 * bytes / 1e9});
  }
  const auto profile = FitProfile(points, true).value();
  EXPECT_GT(profile.bytes_per_s.value, 1e9);
  EXPECT_EQ(profile.undetermined, (std::vector<std::string>{"g"}));
}

TEST(MachineProfile, IsMadeFromABenchmark) {
  std::string rows;
  for (const int size : {1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26}) {
    absl::StrAppendFormat(
        &rows,
        "%s{\"collective\":\"all_reduce\",\"backend\":\"native\",\"type\":\"float\",\"algorithm\":\"ring\","
        "\"transport\":\"tcp\",\"workers\":2,\"size\":%d,\"out_of_place\":{\"time\":%g}}",
        rows.empty() ? "" : ",", size, 100 + size * 1e-3);
  }
  const MachineProfile profile = ProfileOfBench("bench.json", "{\"results\":[" + rows + "]}").value();
  EXPECT_NEAR(profile.latency_s.value, 50e-6, 1e-9);
  EXPECT_EQ(profile.transport, "tcp");
}

constexpr Wires kWires{.latency_s = .001, .bytes_per_s = 1000};

TEST(RowExchange, AnAllGatherSendsEveryRanksRowsToAllOthers) {
  const RowFigures rows{.gathered_bytes = 500};
  const CommPattern ring{.scheme = Scheme::AllReduce("ring"), .workers = 4};
  EXPECT_DOUBLE_EQ(RowExchangeOf(ring, rows, kWires)->payload_bytes, 1500);
  EXPECT_DOUBLE_EQ(RowExchangeOf(ring, rows, kWires)->seconds, 6 * .001 + 1.5);
  const CommPattern direct{.scheme = Scheme::AllReduce("direct"), .workers = 4};
  EXPECT_DOUBLE_EQ(RowExchangeOf(direct, rows, kWires)->seconds, 2 * .001 + 1.5);
  const CommPattern one{.scheme = Scheme::AllReduce("ring"), .workers = 1};
  EXPECT_EQ(RowExchangeOf(one, rows, kWires)->payload_bytes, 0);
  const CommPattern tree{.scheme = Scheme::AllReduce("double-binary-tree"), .workers = 4};
  EXPECT_FALSE(RowExchangeOf(tree, rows, kWires).has_value());
}

TEST(RowExchange, ATableThatIsReducedAsAWholeCostsAnAllReduce) {
  const CommPattern ring{.scheme = Scheme::AllReduce("ring"), .workers = 4};
  const auto exchange = RowExchangeOf(ring, {.gathered_bytes = 4, .reduced_bytes = 4000}, kWires);
  EXPECT_DOUBLE_EQ(exchange->payload_bytes, 3 * 4 + 2 * .75 * 4000);
  EXPECT_DOUBLE_EQ(exchange->seconds, 6 * .001 + .012 + ExchangeSeconds(ring, 4000, kWires));
}

TEST(RowExchange, AServersLinkCarriesTheRowsOfAllRemoteWorkers) {
  const RowFigures rows{.pushed_bytes = 600, .asked_bytes = 40, .pulled_bytes = 560};
  CommPattern servers{.scheme = Scheme::kServerSync, .workers = 4, .place = ServerPlace::kDedicated};
  EXPECT_DOUBLE_EQ(RowExchangeOf(servers, rows, kWires)->payload_bytes, 640);
  EXPECT_DOUBLE_EQ(RowExchangeOf(servers, rows, kWires)->seconds, .002 + 4 * (.56 + .64));
  servers.servers = 4;
  EXPECT_DOUBLE_EQ(RowExchangeOf(servers, rows, kWires)->seconds, .002 + .56 + .64);
  servers.place = ServerPlace::kColocated;
  EXPECT_DOUBLE_EQ(RowExchangeOf(servers, rows, kWires)->seconds, .002 + .75 * (.56 + .64));
  servers = {.scheme = Scheme::kServerSync, .workers = 4};
  EXPECT_DOUBLE_EQ(RowExchangeOf(servers, rows, kWires)->seconds, .002 + 3 * (.56 + .64));
}

TEST(RowExchange, AServersHostMovesRowsAtTheRateOfItsWire) {
  const RowFigures rows{.pushed_bytes = 600, .asked_bytes = 40, .pulled_bytes = 560};
  const CommPattern servers{.scheme = Scheme::kServerSync, .workers = 4, .place = ServerPlace::kDedicated};
  Wires wires = kWires;
  wires.server_bytes_per_s = 500;
  EXPECT_DOUBLE_EQ(RowExchangeOf(servers, rows, wires)->seconds, .002 + 8 * (.56 + .64));
}

// Kim et al. 2019: a worker's bytes are those of the ring and of its rows.
TEST(RowExchange, OfHybridIsThatOfServersBesideItsRing) {
  const RowFigures rows{.pushed_bytes = 600, .asked_bytes = 40, .pulled_bytes = 560};
  CommPattern hybrid{
      .scheme = Scheme::AllReduce("ring"), .workers = 4, .place = ServerPlace::kDedicated, .servers = 2};
  const CommPattern servers{
      .scheme = Scheme::kServerSync, .workers = 4, .place = ServerPlace::kDedicated, .servers = 2};
  EXPECT_DOUBLE_EQ(RowExchangeOf(hybrid, rows, kWires)->payload_bytes, 640);
  EXPECT_DOUBLE_EQ(RowExchangeOf(hybrid, rows, kWires)->seconds, .002 + 2 * (.56 + .64));
  EXPECT_DOUBLE_EQ(RowExchangeOf(hybrid, rows, kWires)->seconds,
                   RowExchangeOf(servers, rows, kWires)->seconds);
  // One worker has no ring, but rows.
  hybrid = {.scheme = Scheme::AllReduce("ring"), .workers = 1};
  EXPECT_DOUBLE_EQ(RowExchangeOf(hybrid, rows, kWires)->payload_bytes, 640);
  EXPECT_DOUBLE_EQ(RowExchangeOf(hybrid, rows, kWires)->seconds, .002) << "they use no link";
}

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

TEST(ShardedCosts, HalfBlocksOfGptMiniOnFourRanksNeedLittleMoreThanAThirdOfDataParallelism) {
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
  EXPECT_NEAR(state / (16 * parameters) / .359, 1, .01);
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
