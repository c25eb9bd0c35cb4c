// A transformer's workload as its layers: what each computes, which of its parameters tensor parallelism
// divides, and which activations it keeps for backward. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/workloads/workload.h"
#include "experiments/costs/sharded_costs.h"

namespace psring {

// A block of layers (BlocksOf). Of one sample.
struct ModelLayer {
  double forward_s = 0, backward_s = 0;              // of what tensor-parallel ranks divide
  double whole_forward_s = 0, whole_backward_s = 0;  // of what each of them computes whole
  double matrices = 0, others = 0;  // parameters: those that tensor parallelism divides, and the others
  std::vector<double> widths = {};  // see KeptValuesPerToken; empty: not a transformer's layer
  double logits = 0;                // outputs per token of the last matrix, which are float32
  int forward_sums = 0, backward_sums = 0;  // of outputs and of inputs' gradients (TensorHalvesOf)
  // Of matrices whose input's gradient is added up: the part of backward_s that computes the weights'
  // gradient, and as much that of the input (LayoutModel::overlaps_sums).
  std::vector<double> weight_parts = {};
  // Of attention: its keys and values per token, relative to the model's width; and the part of the layer's
  // computing that are products of queries and keys, and of these with values, by operations, causal.
  double keys = 0, attention = 0;

  // Of a rank, with so many of them.
  double Parameters(int tensor_ranks) const { return matrices / tensor_ranks + others; }
};

struct LayoutModel {
  std::string name;                // of the workload
  std::vector<ModelLayer> layers;  // in the order of the forward pass; at least two
  double width = 0, tokens = 0;    // of a sample
  int heads = 0;                   // tensor parallelism divides them
  bool sixteen_bits = false;       // activations, weights and gradients; else float32
  bool sequence_parallel = false;  // tensor-parallel ranks divide the tokens between matrices, too
  // They add up the gradient of a matrix's input while they compute that of its weights, as the trainer does
  // (layers/linear.cc), and Megatron-LM since 2022, which sets CUDA_DEVICE_MAX_CONNECTIONS=1 so that a GPU
  // begins the sum first. Of runs before that, it is assumed that they add up before they compute.
  bool overlaps_sums = true;
  // The last layer multiplies by the matrix of the first.
  bool is_tied = false;

  AdamBytes bytes() const { return sixteen_bits ? AdamBytes::SixteenBits() : AdamBytes::Float32(); }
  double value_bytes() const { return sixteen_bits ? 2 : 4; }
  // Of a micro-batch, between two layers: of all ranks, and what each has of it.
  double BoundaryBytes(int samples) const { return value_bytes() * samples * tokens * width; }
  double OwnBoundaryBytes(int samples, int tensor_ranks) const {
    return BoundaryBytes(samples) / (sequence_parallel ? tensor_ranks : 1);
  }
  // What a layer keeps for the backward pass of a micro-batch.
  double KeptBytes(const ModelLayer& layer, int samples, int tensor_ranks) const;
};

// InvalidArgument names what a workload needs: the size of its activations, its tokens and its heads.
absl::StatusOr<LayoutModel> LayoutModelOf(const Workload& workload);

}  // namespace psring
