#include "experiments/costs/sharded_costs.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "common/base/check.h"

namespace psring {

const StrategyTable& ShardingStrategies() {
  static const auto& rows = *[] {
    auto* const table = new StrategyTable{*FindStrategy("ring")};
    std::ranges::copy_if(StrategyRows(), std::back_inserter(*table), &StrategyRow::shards_updates);
    return table;
  }();
  return rows;
}

const StrategyRow& ShardingStrategy(const std::string& name) {
  const auto row = std::ranges::find(ShardingStrategies(), name, &StrategyRow::name);
  PSRING_CHECK(row != ShardingStrategies().end());
  return *row;
}

StateBytes ShardedStateOf(const StrategyRow& strategy, int replicas, double parameters,
                          const AdamBytes& bytes, double unit, int turns) {
  const auto part = [&](bool is_shard) { return is_shard ? parameters / replicas : parameters; };
  StateBytes state{.weights = bytes.weight * part(strategy.shards_weights),
                   .gradients = bytes.gradient * part(strategy.shards_gradients),
                   .optimizer = bytes.optimizer * part(strategy.shards_updates)};
  if (strategy.shards_weights) state.weights += bytes.weight * turns * unit;
  if (strategy.shards_gradients) state.gradients += bytes.gradient * turns * unit;
  return state;
}

double KeptValuesPerToken(double width, const std::vector<double>& widths, int tensor_ranks,
                          bool sequence_parallel) {
  const double matrices = std::accumulate(widths.begin(), widths.end(), 0.);
  return 4 * width / (sequence_parallel ? tensor_ranks : 1) + matrices / tensor_ranks;
}

TensorHalves TensorHalvesOf(int outputs, int inputs, bool sequence_parallel) {
  if (!sequence_parallel) return {2 * outputs, 2 * inputs};
  return {outputs + inputs, outputs + 2 * inputs};
}

}  // namespace psring
