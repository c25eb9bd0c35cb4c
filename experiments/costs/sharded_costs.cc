#include "experiments/costs/sharded_costs.h"

#include <numeric>

#include "common/text/translate.h"

namespace psring {
namespace {

double SentOf(int ranks, double bytes) { return (ranks - 1.) / ranks * bytes; }

}  // namespace

const std::vector<ShardRow>& ShardRows() {
  static const auto& rows = *new std::vector<ShardRow>{
      {.name = "none",
       .summary = TrNoop("every replica keeps weights, gradients and optimizer state"),
       .formula = "2 (N-1)/N"},
      {.name = "zero1",
       .summary = TrNoop("a replica keeps the optimizer state of its shard"),
       .optimizer = true,
       .formula = "2 (N-1)/N"},
      {.name = "zero2",
       .summary = TrNoop("a replica keeps the optimizer state and the gradient of its shard; a unit's "
                         "gradient is freed after its reduce-scatter"),
       .optimizer = true,
       .gradients = true,
       .formula = "(M+1) (N-1)/N"},
      {.name = "fsdp",
       .summary = TrNoop("a replica keeps the optimizer state, the gradient and the weights of its shard; a "
                         "unit's weights are gathered before each use"),
       .optimizer = true,
       .gradients = true,
       .weights = true,
       .formula = "3 M (N-1)/N"}};
  return rows;
}

const ShardRow* FindShardRow(const std::string& name) {
  for (const ShardRow& row : ShardRows()) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

ShardExchanges ExchangesOf(const ShardRow& row, int micro_batches, bool reshards) {
  const double all = micro_batches;
  return {.reduce_scatters = row.gradients ? all : 1, .all_gathers = row.weights && reshards ? 2 * all : 1};
}

double ShardBytesPerRank(const ShardRow& row, int replicas, int micro_batches, double gradient_bytes,
                         double weight_bytes, bool reshards) {
  const auto [reduce_scatters, all_gathers] = ExchangesOf(row, micro_batches, reshards);
  return SentOf(replicas, reduce_scatters * gradient_bytes +
                              all_gathers * (row.optimizer ? weight_bytes : gradient_bytes));
}

StateBytes ShardedStateOf(const ShardRow& row, int replicas, double parameters, const AdamBytes& bytes,
                          const UnitBuffers& buffers) {
  const auto part = [&](bool is_shard) { return is_shard ? parameters / replicas : parameters; };
  StateBytes state{.weights = bytes.weight * part(row.weights),
                   .gradients = bytes.gradient * part(row.gradients),
                   .optimizer = bytes.optimizer * part(row.optimizer)};
  if (row.weights) state.weights += bytes.weight * buffers.gathered * buffers.largest;
  if (row.gradients) state.gradients += bytes.gradient * buffers.gradients * buffers.largest;
  return state;
}

double TensorParallelBytes(int tensor_ranks, double all_reduces, double activation_bytes) {
  return 2 * SentOf(tensor_ranks, all_reduces * activation_bytes);
}

double KeptValuesPerToken(double width, const std::vector<double>& widths, int tensor_ranks) {
  return 4 * width + std::accumulate(widths.begin(), widths.end(), 0.) / tensor_ranks;
}

}  // namespace psring
