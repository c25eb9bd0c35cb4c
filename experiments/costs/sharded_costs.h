// The theory of sharded data parallelism (ZeRO, FSDP) and tensor parallelism: what a rank keeps and sends.
// Pure.
//
// N replicas, a model of P parameters, M micro-batches per step, t ranks of a tensor-parallel group. A ring
// all-reduce is a reduce-scatter and an all-gather, in each of which a rank sends (N-1)/N of the bytes.
// Sources: Rajbhandari et al. 2020, ZeRO, sections 5 and 7; Zhao et al. 2023, PyTorch FSDP, section 3;
// Shoeybi et al. 2019, Megatron-LM, section 3; Korthikanti et al. 2022, Reducing Activation Recomputation,
// section 4.
#pragma once

#include <string>
#include <vector>

namespace psring {

// Which part of a model's state each replica keeps a shard of, instead of all of it.
struct ShardRow {
  const char* name;
  const char* summary;
  bool optimizer = false, gradients = false, weights = false;
  // Of the payload of a step, with N replicas and M micro-batches, in units of the model's size.
  const char* formula;
};
// none, zero1, zero2, fsdp.
const std::vector<ShardRow>& ShardRows();
// Null: there is no such row.
const ShardRow* FindShardRow(const std::string& name);

// The collectives of a whole model in a step. A reduce-scatter has the size of the gradient, an all-gather
// that of the weights (of an all-reduce, of the gradient).
struct ShardExchanges {
  double reduce_scatters = 0, all_gathers = 0;
};
// `reshards`: weights are released after forward and gathered again for backward; else gathered once a step.
ShardExchanges ExchangesOf(const ShardRow& row, int micro_batches, bool reshards = true);

// Payload bytes that a rank sends in a step.
double ShardBytesPerRank(const ShardRow& row, int replicas, int micro_batches, double gradient_bytes,
                         double weight_bytes, bool reshards = true);

// Bytes per parameter with Adam; master weights belong to the optimizer's state.
struct AdamBytes {
  double weight = 4, gradient = 4, optimizer = 8;
  static AdamBytes Float32() { return {}; }
  static AdamBytes SixteenBits() { return {2, 2, 12}; }  // and float32 master weights
};

// The buffers of units (program_rows.h) of sharded weights and gradients. A unit's weights are gathered while
// the unit before computes, and its gradient is complete before it is reduced.
struct UnitBuffers {
  double largest = 0;  // parameters of the largest unit
  int gathered = 2;    // units with all weights at a time; 2: with prefetch
  int gradients = 1;   // units with a whole gradient at a time
};

struct StateBytes {
  double weights = 0, gradients = 0, optimizer = 0;
  double total() const { return weights + gradients + optimizer; }
};
// Of a rank. Without buffers: per parameter 16 bytes; zero1 4 + 12/N (float32: 8 + 8/N), zero2 2 + 14/N (4 +
// 12/N), fsdp 16/N.
StateBytes ShardedStateOf(const ShardRow& row, int replicas, double parameters, const AdamBytes& bytes,
                          const UnitBuffers& buffers = {});

// All-reduces of a layer's output or of its input's gradient, of a micro-batch: attention and MLP need one
// each in forward and in backward.
inline constexpr int kAllReducesPerLayer = 4;
// Payload bytes that a rank sends in `all_reduces` of `activation_bytes` over t ranks.
double TensorParallelBytes(int tensor_ranks, double all_reduces, double activation_bytes);

// Values per token that a transformer's layer keeps for backward: inputs of normalizations and of matrix
// products, what attention reads, and the inputs of activation functions. Without dropout masks and attention
// scores, which FlashAttention does not keep. `widths`: of each matrix the side that is not the model's
// width. 3h, h, 4h and 4h give 4 h + 12 h/t values: the 8 + 24/t bytes of section 4 in 16 bits.
double KeptValuesPerToken(double width, const std::vector<double>& widths, int tensor_ranks);

}  // namespace psring
