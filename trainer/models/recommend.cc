#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/layers/layers.h"
#include "trainer/models/network.h"
#include "trainer/models/networks.h"

namespace psring {
namespace {

absl::Status CheckOps(const Ops& ops) {
  if (ops.families().bags == nullptr || ops.families().dots == nullptr) {
    return absl::UnimplementedError(
        "tables of rows and products of vectors compute on CPUs only so far; use --device cpu");
  }
  return absl::OkStatus();
}

bool AreClicks(const SampleSpec& samples) {
  return samples.inputs.size() == 2 && samples.inputs[0].kind == TensorKind::kNumbers &&
         samples.inputs[1].kind == TensorKind::kRows && samples.labels == 1;
}

bool AreWordPairs(const SampleSpec& samples) {
  return samples.inputs.size() == 2 && samples.inputs[0].kind == TensorKind::kRows &&
         samples.inputs[0].count() == 1 && samples.inputs[1].kind == TensorKind::kRows &&
         samples.inputs[1].lookups.size() == 1 &&
         static_cast<int>(samples.inputs[1].count()) == samples.labels;
}

}  // namespace

ModelRow::Make Dlrm(const ModelSize& size, double) {
  return [size](const SampleSpec& samples, Ops& ops) -> absl::StatusOr<std::unique_ptr<Model>> {
    if (!AreClicks(samples)) {
      return absl::InvalidArgumentError(
          "the model dlrm-small reads clicks; use --data zipf:ROWS:ALPHA, or another --model");
    }
    PSRING_RETURN_IF_ERROR(CheckOps(ops));
    Network::Builder network(samples);
    ParameterLayout& layout = network.layout();
    int inputs = static_cast<int>(samples.inputs[0].count()), value = network.Input(0);
    const auto add = [&](const std::string& name, int outputs, bool relu) {
      const LinearConfig config{
          .inputs = inputs, .outputs = outputs, .activation = relu ? Activation::kRelu : Activation::kNone};
      value = network.Add(MakeLinear(name, config, layout), {value});
      inputs = outputs;
    };
    add("bottom.0", 2 * size.width, /*relu=*/true);
    add("bottom.1", size.width, /*relu=*/true);
    const TensorSpec& rows = samples.inputs[1];
    std::vector<Table> tables;
    int first = 0;
    for (const int lookups : rows.lookups) {
      tables.push_back({.name = absl::StrCat("tables.", tables.size(), ".weight"),
                        .rows = rows.range,
                        .width = size.width,
                        .input = 1,
                        .first_lookup = first,
                        .per_bag = lookups,
                        .bound = 1 / std::sqrt(static_cast<float>(rows.range))});
      first += lookups;
    }
    const int others = static_cast<int>(tables.size());
    const int bags =
        network.Add(MakeBags(tables, static_cast<int>(rows.count()), layout), {network.Input(1)});
    value = network.Add(MakeDots(Dots::kAllPairs, others, size.width), {value, bags});
    inputs = static_cast<int>(DotShape{Dots::kAllPairs, 0, others, size.width}.outputs());
    add("top.0", 2 * size.width, /*relu=*/true);
    add("top.1", size.width, /*relu=*/true);
    add("top.2", samples.classes, /*relu=*/false);
    return network.Build(ops);
  };
}

ModelRow::Make SkipGram(const ModelSize& size, double) {
  return [size](const SampleSpec& samples, Ops& ops) -> absl::StatusOr<std::unique_ptr<Model>> {
    if (!AreWordPairs(samples)) {
      return absl::InvalidArgumentError(
          "the model skipgram reads pairs of words; use --data words, or another --model");
    }
    PSRING_RETURN_IF_ERROR(CheckOps(ops));
    Network::Builder network(samples);
    const auto vectors = [&](const char* name, int input, int bags, float bound) {
      const Table table{.name = name,
                        .rows = samples.inputs[static_cast<size_t>(input)].range,
                        .width = size.width,
                        .input = input,
                        .bags = bags,
                        .bound = bound};
      return network.Add(MakeBags({table}, bags, network.layout()), {network.Input(input)});
    };
    // word2vec's initial values: of words uniform, of targets 0.
    const int word = vectors("words.weight", 0, 1, .5f / static_cast<float>(size.width));
    const int targets = vectors("targets.weight", 1, samples.labels, 0);
    network.Add(MakeDots(Dots::kFirstWithOthers, samples.labels, size.width), {word, targets});
    return network.Build(ops);
  };
}

}  // namespace psring
