#include "experiments/layouts/layout_model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/text/translate.h"
#include "common/workloads/devices.h"
#include "experiments/simulator/pipeline.h"

namespace psring {
namespace {

bool IsTransformer(const Workload& workload) {
  return workload.heads > 0 && workload.tokens_per_sample > 0 && workload.activation_bytes > 0;
}

absl::Status WithoutLayers(const Workload& workload) {
  return absl::InvalidArgumentError(
      Tr("--layouts needs a transformer; workload $0 has no lines '# heads: N', '# tokens_per_sample: N' and "
         "'# activation_bytes: N', or a single block of layers; use one of $1",
         workload.name, absl::StrJoin(WorkloadNames(IsTransformer), ", ")));
}

// Of a matrix with so many outputs, relative to the model's width, what are keys and values. `name`: as
// architectures.py and PyTorch's models name them.
double KeysOf(const std::string& name, double width) {
  for (const char* const joined : {"qkv", "c_attn"}) {
    if (absl::StrContains(name, joined)) return width - 1;  // after the queries
  }
  for (const char* const own : {"k_proj", "v_proj", ".key.", ".value."}) {
    if (absl::StrContains(name, own)) return width;
  }
  return 0;
}

// Attention has a matrix for queries, keys and values and one for the output, and the MLP some of one size,
// of which the last has the model's width as its output. Before these outputs, inputs' gradients are added
// up.
std::vector<double> WeightPartsOf(const ModelLayer& layer, double width) {
  const double square = width * width, mlp = layer.matrices - (2 + layer.keys) * square;
  const double widest = *std::ranges::max_element(layer.widths);
  const double count = std::max(1., std::round(mlp / (widest * width)));
  const double of_weights = (1 - layer.attention) / 2;  // half of a matrix's backward
  std::vector<double> parts;
  for (const double values : {(1 + layer.keys) * square, std::max(0., mlp) * (count - 1) / count}) {
    parts.push_back(of_weights * std::min(1., values / layer.matrices));
  }
  return parts;
}

}  // namespace

double LayoutModel::KeptBytes(const ModelLayer& layer, int samples, int tensor_ranks) const {
  constexpr double kLossBytes = 4;  // of a logit, whose gradient takes its place
  double bytes = kLossBytes * layer.logits / tensor_ranks;
  if (!layer.widths.empty()) {
    bytes += value_bytes() * KeptValuesPerToken(width, layer.widths, tensor_ranks, sequence_parallel);
  }
  // The input of the logits' matrix.
  return samples * tokens * bytes + (layer.logits > 0 ? OwnBoundaryBytes(samples, tensor_ranks) : 0);
}

absl::StatusOr<LayoutModel> LayoutModelOf(const Workload& workload) {
  constexpr double kLeastRows = 16;  // of a matrix; a bias is up to a few times as long as the model's width
  if (!IsTransformer(workload)) return WithoutLayers(workload);
  LayoutModel model{.name = workload.name,
                    .width = static_cast<double>(workload.activation_bytes) / 4 / workload.tokens_per_sample,
                    .tokens = workload.tokens_per_sample,
                    .heads = workload.heads,
                    .sixteen_bits = ComputesIn16Bits(workload)};
  const std::vector<LayerBlock> blocks = BlocksOf(workload);
  if (blocks.size() < 2) return WithoutLayers(workload);
  for (const LayerBlock& block : blocks) {
    model.layers.push_back({.forward_s = 1e-3 * block.forward_ms / workload.batch,
                            .backward_s = 1e-3 * block.backward_ms / workload.batch});
  }
  size_t at = blocks.size() - 1;  // tensors are in the order of the backward pass
  for (const GradientTensor& tensor : workload.tensors) {
    while (at > 0 && BlockName(tensor.name) != blocks[at].name) --at;
    ModelLayer& layer = model.layers[at];
    const double values = static_cast<double>(tensor.bytes) / 4;
    const bool is_matrix = values > kLeastRows * model.width;
    (is_matrix ? layer.matrices : layer.others) += values;
    if (!is_matrix) continue;
    layer.widths.push_back(values / model.width);
    layer.keys += KeysOf(tensor.name, layer.widths.back() / model.width);
  }
  // The first block looks tokens up and keeps nothing; the last multiplies by the vocabulary, with a matrix
  // of its own or that of the first. Every rank has all positions. Other blocks with matrices are attention
  // and MLP.
  ModelLayer &first = model.layers.front(), &last = model.layers.back();
  const double vocabulary = first.widths.empty() ? 0 : first.widths.back();  // declared first
  model.is_tied = last.widths.empty() && vocabulary > 0;
  last.logits = last.widths.empty() ? vocabulary : last.widths.back();
  first.others += first.matrices - vocabulary * model.width;
  first.matrices = vocabulary * model.width;
  first.widths.clear();
  last.widths.clear();
  for (ModelLayer& layer : model.layers) {
    if (layer.widths.empty()) continue;
    layer.forward_sums = layer.backward_sums = kAllReducesPerLayer / 2;
    if (layer.keys <= 0) layer.keys = 2;
    const double pairs = model.tokens * model.width;  // 2 s^2 h operations beside 2 s of each parameter
    layer.attention = pairs / (pairs + layer.matrices);
    layer.weight_parts = WeightPartsOf(layer, model.width);
  }
  first.forward_sums = 1;  // the part of the vocabulary of each rank
  last.backward_sums = 1;
  last.weight_parts = {.5};
  return model;
}

}  // namespace psring
