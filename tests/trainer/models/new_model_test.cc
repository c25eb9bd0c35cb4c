// A model that only this test knows: its maker and one row make it available to the trainer.
#include <gtest/gtest.h>

#include "tests/trainer/cluster.h"
#include "trainer/layers/layers.h"
#include "trainer/models/network.h"
#include "trainer/models/replayed_model.h"

namespace psring {
namespace {

// Logistic regression: one layer.
absl::StatusOr<std::unique_ptr<Model>> MakeLogistic(const SampleSpec& samples, Ops& ops) {
  Network::Builder network(samples);
  const LinearConfig config{.inputs = static_cast<int>(samples.inputs[0].count()),
                            .outputs = samples.classes};
  network.Add(MakeLinear("fc", config, network.layout()), {network.Input(0)});
  return network.Build(ops);
}

const ModelTable& ModelsWithLogistic() {
  static const auto& rows = *[] {
    auto* all = new ModelTable(Models());
    all->push_back({.name = "logistic",
                    .summary = "one layer",
                    .default_lr = .1,
                    .default_data = "synthetic",
                    .make = MakeLogistic});
    return all;
  }();
  return rows;
}

TEST(NewModel, HasItsDefaults) {
  TrainingOptions options{.model = "logistic"};
  ASSERT_TRUE(ApplyModel(options, ModelsWithLogistic()).ok());
  EXPECT_EQ(options.data, "synthetic");
  EXPECT_TRUE(ModelOf(options, ModelsWithLogistic()).ok());
  EXPECT_FALSE(ModelOf(options).ok()) << "the table did not change";
  options.width = 8;
  EXPECT_EQ(ModelOf(options, ModelsWithLogistic()).status().message(),
            "--width is not a size of the model logistic; omit it");
}

TEST(NewModel, IsTrained) {
  TrainingOptions options = SmallOptions("ring");
  options.model = "logistic";
  const auto outcomes =
      TrainRanks(options, 2, SmallData(), [](Worker& worker) { worker.models = &ModelsWithLogistic(); });
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.result->parameters, (8 * 8 + 1) * 10);
    EXPECT_EQ(outcome.weights, outcomes[0].weights);
  }
}

}  // namespace
}  // namespace psring
