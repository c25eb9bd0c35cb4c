// An all-reduce within and between machines, in training. Ranks are threads.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/has.h"
#include "tests/trainer/cluster.h"
#include "trainer/step/plan/training_plan.h"

namespace psring {
namespace {

struct Machines {
  int number, each;
  int workers() const { return number * each; }
  std::string strategy() const { return absl::StrCat("hierarchical:", each); }
};
constexpr Machines kMachines[] = {{2, 1}, {1, 2}, {2, 2}, {3, 2}, {2, 3}};

TEST(HierarchicalStrategy, TrainsToTheWeightsOfOneProcess) {
  for (const Machines& machines : kMachines) {
    for (const std::string optimizer : {"sgd", "momentum"}) {
      SCOPED_TRACE(absl::StrCat(machines.strategy(), " x ", machines.workers(), ", ", optimizer));
      TrainingOptions options = SmallOptions(machines.strategy());
      options.optimizer = optimizer;
      options.check_replicas = true;
      const auto outcomes = ExpectOneProcess(options, machines.workers(), SmallData(), 1e-5);
      EXPECT_EQ(outcomes[0].result->algorithm, machines.strategy());
    }
  }
}

TEST(HierarchicalStrategy, EqualsTheRingOnTwoMachinesOfOneRankBitForBit) {
  EXPECT_EQ(WeightsOf(TrainRanks(SmallOptions("hierarchical:1"), 2, SmallData())),
            WeightsOf(TrainRanks(SmallOptions("ring"), 2, SmallData())));
}

// Of the gradient: 2(G-1)/G within the machine, 2(n-1)/n of 1/G to others.
TEST(HierarchicalStrategy, ARankSendsItsShareOfTheGradientToOtherMachines) {
  for (const Machines& machines : kMachines) {
    SCOPED_TRACE(absl::StrCat(machines.strategy(), " x ", machines.workers()));
    const auto outcomes = TrainRanks(SmallOptions(machines.strategy()), machines.workers(), SmallData());
    uint64_t sent = 0;
    for (const RankOutcome& outcome : outcomes) sent += outcome.steps[5].payload_tx_bytes;
    const uint64_t n = static_cast<uint64_t>(machines.number), each = static_cast<uint64_t>(machines.each);
    EXPECT_EQ(sent, (2 * (each - 1) * n + 2 * (n - 1)) * GradientBytes(*outcomes[0].result));
  }
}

TEST(HierarchicalStrategy, RanksThatDoNotDivideIntoMachinesAreRejected) {
  const TrainingOptions options = SmallOptions("hierarchical:2");
  TrainingOptions sequences = options;
  sequences.cp = 3;
  EXPECT_EQ(CheckStrategy(sequences, *FindStrategy("hierarchical:2"), 2), absl::OkStatus());
  EXPECT_FALSE(CheckStrategy(sequences, *FindStrategy("hierarchical:2"), 1).ok()) << "3 ranks add up";
  EXPECT_THAT(CheckStrategy(options, *FindStrategy("hierarchical:2"), 3).message(),
              Has("needs a multiple of 2 ranks, not 3"));
}

}  // namespace
}  // namespace psring
