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

#include "trainer/strategies/table/strategy_table.h"

namespace psring {

// ring, which shards nothing, and those that shard the model's state: zero1, zero2, fsdp. What they send:
// StrategyRow::SentPart.
const StrategyTable& ShardingStrategies();
// One of them.
const StrategyRow& ShardingStrategy(const std::string& name);

// Bytes per parameter with Adam; master weights belong to the optimizer's state.
struct AdamBytes {
  double weight = 4, gradient = 4, optimizer = 8;
  static AdamBytes Float32() { return {}; }
  static AdamBytes SixteenBits() { return {2, 2, 12}; }  // and float32 master weights
};

struct StateBytes {
  double weights = 0, gradients = 0, optimizer = 0;
  double total() const { return weights + gradients + optimizer; }
};
// Of a rank. Without buffers: per parameter 16 bytes; zero1 4 + 12/N (float32: 8 + 8/N), zero2 2 + 14/N (4 +
// 12/N), fsdp 16/N. `unit`: parameters of the largest unit (program_rows.h), 0 for none. Buffers are those of
// the trainer: zero2 and fsdp have the gradients of `turns` units, one is reduced while the next is computed,
// and fsdp the weights of as many, one is gathered while the other computes. With --dp_shard S `replicas` is
// S.
StateBytes ShardedStateOf(const StrategyRow& strategy, int replicas, double parameters,
                          const AdamBytes& bytes, double unit = 0, int turns = 2);

// All-reduces of a layer's output or of its input's gradient, of a micro-batch: attention and MLP need one
// each in forward and in backward.
inline constexpr int kAllReducesPerLayer = 4;

// Values per token that a transformer's layer keeps for backward: inputs of normalizations and of matrix
// products, what attention reads, and the inputs of activation functions. Without dropout masks and attention
// scores, which FlashAttention does not keep. `widths`: of each matrix the side that is not the model's
// width. 3h, h, 4h and 4h give 4 h + 12 h/t values: the 8 + 24/t bytes of section 4 in 16 bits. With sequence
// parallelism the ranks divide all of them: 32/t.
double KeptValuesPerToken(double width, const std::vector<double>& widths, int tensor_ranks,
                          bool sequence_parallel = false);

// Halves of an all-reduce of activations, each a reduce-scatter or an all-gather, in forward and in backward
// of a part of a model in which tensor-parallel ranks add up `outputs` of layers, and the gradients of
// `inputs`. With sequence parallelism each sum is a reduce-scatter, and what is not kept is gathered: inputs
// in forward, and once more in backward for the weights' gradients, and the gradients of outputs. It then
// needs 10 halves for a layer and micro-batch instead of 8, of which 2 are beside the computation of the
// inputs' gradients; and an all-reduce of the gradients of normalizations, which is not counted.
struct TensorHalves {
  int forward = 0, backward = 0;
};
TensorHalves TensorHalvesOf(int outputs, int inputs, bool sequence_parallel);

}  // namespace psring
