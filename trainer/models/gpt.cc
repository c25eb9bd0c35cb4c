#include <cmath>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/text/translate.h"
#include "trainer/layers/layers.h"
#include "trainer/models/network.h"
#include "trainer/models/networks.h"

namespace psring {
namespace {

constexpr float kDeviation = .02f;  // of initial weights

absl::Status Check(const ModelSize& size, const TensorPlace& place, const SequencePlace& sequence,
                   const SampleSpec& samples, const Ops& ops) {
  if (size.width % size.heads != 0) {
    return InvalidArgument("--width ", size.width, " is not a multiple of --heads ", size.heads,
                           "; choose another of them");
  }
  if (samples.inputs.size() != 1 || samples.inputs[0].kind != TensorKind::kTokens) {
    return absl::InvalidArgumentError("the model reads texts; use --data text or --data tokens");
  }
  PSRING_CHECK(samples.labels == sequence.OwnPositions(size.context) && size.heads % place.ranks == 0);
  if (place.divides_rows && size.context % place.ranks != 0) {
    return absl::InvalidArgumentError(
        Tr("--sequence_parallel: $0 ranks do not divide a context of $1 tokens; omit it, or use another --tp "
           "or --context",
           place.ranks, size.context));
  }
  if (samples.classes < place.ranks) {
    return absl::InvalidArgumentError(
        Tr("--tp $0: a vocabulary of $1 tokens has not one for each rank; use a "
           "smaller --tp",
           place.ranks, samples.classes));
  }
  const OpFamilies& has = ops.families();
  if (has.embedding == nullptr || has.normalization == nullptr || has.attention == nullptr ||
      has.dropout == nullptr) {
    return absl::UnimplementedError("transformers compute on CPUs only so far; use --device cpu");
  }
  return absl::OkStatus();
}

// x + attention(norm(x)), then x + mlp(norm(x)). Returns the output. The ranks of `place` divide heads and
// the width of the MLP between its layers; norms, residuals and dropout are equal on all of them, or of each
// rank's own rows. Those of `sequence` divide the rows of everything; only attention needs those of others.
int AddBlock(const ModelSize& size, double dropout, const TensorPlace& place, const SequencePlace& sequence,
             int block, int x, Network::Builder& network) {
  const std::string name = absl::StrCat("transformer.h.", block);
  ParameterLayout& layout = network.layout();
  const int rows = sequence.OwnPositions(size.context);
  const LinearConfig linear{
      .inputs = size.width, .outputs = size.width, .rows = rows, .deviation = kDeviation, .place = place};
  // Each block adds to the residual stream twice.
  LinearConfig projection = linear;
  projection.residual = dropout == 0;
  projection.deviation = kDeviation / std::sqrt(2.0f * static_cast<float>(size.layers));
  projection.division = LinearDivision::kInputs;
  LinearConfig qkv = linear, up = linear, down = projection;
  qkv.division = up.division = LinearDivision::kOutputs;
  qkv.outputs = 3 * size.width;
  qkv.groups = 3;
  up.outputs = down.inputs = 4 * size.width;
  up.activation = Activation::kGelu;

  const auto norm = [&](const char* of, int value) {
    return network.Add(MakeLayerNorm(absl::StrCat(name, of), rows, size.width, layout, place), {value});
  };
  const auto add = [&](const char* of, const LinearConfig& config, std::vector<int> inputs) {
    return network.Add(MakeLinear(absl::StrCat(name, of), config, layout), std::move(inputs));
  };
  // The embedding's dropout is number 0.
  const auto add_to_x = [&](const char* of, const LinearConfig& config, int value, int branch) {
    if (dropout == 0) return add(of, config, {value, x});
    return network.Add(MakeDropout({.elements = size_t{1} * size.context * size.width,
                                    .probability = dropout,
                                    .number = uint32_t(1 + 2 * block + branch),
                                    .residual = true,
                                    .place = place,
                                    .sequence = sequence,
                                    .context = size.context}),
                       {add(of, config, {value}), x});
  };
  int value = add(".attn.c_attn", qkv, {norm(".ln_1", x)});
  const int heads = place.ShareOf(size.heads).count, head_size = size.width / size.heads;
  value =
      network.Add(!sequence.divides()        ? MakeAttention(size.context, heads, head_size)
                  : sequence.row().uses_ring ? MakeRingAttention(size.context, heads, head_size, sequence)
                                             : MakeUlyssesAttention(size.context, heads, head_size, sequence),
                  {value});
  x = add_to_x(".attn.c_proj", projection, value, 0);
  value = add(".mlp.c_fc", up, {norm(".ln_2", x)});
  return add_to_x(".mlp.c_proj", down, value, 1);
}

absl::StatusOr<std::unique_ptr<Model>> MakeGpt(const ModelSize& size, double dropout,
                                               const TensorPlace& place, const SequencePlace& sequence,
                                               const SampleSpec& samples, Ops& ops) {
  PSRING_RETURN_IF_ERROR(Check(size, place, sequence, samples, ops));
  Network::Builder network(samples, place);
  ParameterLayout& layout = network.layout();
  const auto vectors = [&](const char* name, int rows, const TensorPart& part) -> Tensor {
    return layout.tensors()[layout.Add(name, {rows, size.width}, {}, part)];
  };
  const TensorPart words = place.ranks > 1 ? place.PartOf(1, samples.classes) : TensorPart();
  const Tensor table = vectors("transformer.wte.weight", place.ShareOf(samples.classes).count, words),
               positions = vectors("transformer.wpe.weight", size.context, {});
  int x = network.Add(MakeEmbedding(table, positions, kDeviation, place, sequence), {network.Input(0)});
  if (dropout > 0) {
    x = network.Add(MakeDropout({.elements = size_t{1} * size.context * size.width,
                                 .probability = dropout,
                                 .number = 0,
                                 .place = place,
                                 .sequence = sequence,
                                 .context = size.context}),
                    {x});
  }
  for (int block = 0; block < size.layers; ++block) {
    network.AddUnit([&] { x = AddBlock(size, dropout, place, sequence, block, x, network); });
  }
  const int rows = sequence.OwnPositions(size.context);
  x = network.Add(MakeLayerNorm("transformer.ln_f", rows, size.width, layout, place), {x});
  const LinearConfig logits{.inputs = size.width,
                            .outputs = samples.classes,
                            .rows = rows,
                            .place = place,
                            .division = LinearDivision::kOutputs};
  network.Add(MakeTiedLinear(logits, table), {x});
  return network.Build(ops);
}

}  // namespace

ModelRow::Make Gpt(const ModelSize& size, double dropout) { return GptPart(size, dropout, {}, {}); }

ModelRow::Make GptPart(const ModelSize& size, double dropout, const TensorPlace& place,
                       const SequencePlace& sequence) {
  return [size, dropout, place, sequence](const SampleSpec& samples, Ops& ops) {
    return MakeGpt(size, dropout, place, sequence, samples, ops);
  };
}

}  // namespace psring
