// The sizes of models, and what their flags accept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/check.h"
#include "common/cli/command_line.h"
#include "common/workloads/workload.h"
#include "tests/common/ops/reference_ops.h"
#include "trainer/data/sources.h"
#include "trainer/data/table/data_table.h"
#include "trainer/models/model.h"
#include "trainer/models/replayed_model.h"
#include "trainer/models/table/model_table.h"

namespace psring {
namespace {

// Of the model that `options` make for `samples`.
absl::StatusOr<ParameterLayout> LayoutFor(const TrainingOptions& options, const SampleSpec& samples) {
  const auto ops = MakeReferenceOps();
  PSRING_ASSIGN_OR_RETURN(const ModelRow row, ModelOf(options));
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, row.make(samples, *ops));
  return model->parameters();
}

std::string ErrorFor(const TrainingOptions& options, const SampleSpec& samples) {
  return std::string(LayoutFor(options, samples).status().message());
}

TEST(Models, HaveTheirKnownSizes) {
  const auto parameters = [](const TrainingOptions& options) {
    return LayoutFor(options, PictureSpec(28, 28))->parameters();
  };
  EXPECT_EQ(parameters({.model = "mlp"}), 1'863'690);
  EXPECT_EQ(parameters({.model = "mlp-small"}), 266'610);
  EXPECT_EQ(parameters({.model = "cnn"}), 1'199'882);
  // torchvision's for 3 channels and 10 classes, with a stem of 3x3 instead of 7x7, less 2 channels of it.
  EXPECT_EQ(parameters({.model = "resnet18"}), 11'173'962 - 2 * 9 * 64);
  EXPECT_EQ(parameters({.model = "resnet50"}), 23'520'842 - 2 * 9 * 64);
  for (const char* name : {"mlp", "mlp-small"}) {
    EXPECT_EQ(parameters({.model = name, .width = 40}), 784 * 40 + 40 + 40 * 40 + 40 + 40 * 10 + 10);
  }
}

TEST(Models, WithTablesHaveTheirKnownSizes) {
  const ParameterLayout dlrm = *LayoutFor({.model = "dlrm-small"}, ClickSpec(1'000'000));
  ASSERT_EQ(dlrm.tables().size(), 8);
  EXPECT_EQ(dlrm.table_elements(), 8 * 64'000'000);
  // 13-128-64, the products of 9 vectors with these 64 numbers, 100-128-64-2.
  EXPECT_EQ(dlrm.parameters(), 14 * 128 + 129 * 64 + (64 + 36 + 1) * 128 + 129 * 64 + 65 * 2);
  const ParameterLayout skipgram = *LayoutFor({.model = "skipgram"}, WordSpec(1000));
  EXPECT_EQ(skipgram.parameters(), 0);
  EXPECT_EQ(skipgram.table_elements(), 2 * 128'000);
}

TEST(Models, GptHasTheSizesOfNanoGpt) {
  const auto parameters = [](const TrainingOptions& options, int classes) {
    return LayoutFor(options, TextSpec(ModelOf(options)->size.context, classes))->parameters();
  };
  EXPECT_EQ(parameters({.model = "gpt2"}, 50257), 124'439'808);
  EXPECT_EQ(parameters({.model = "gpt-nano"}, 73), 4 * (12 * 128 * 128 + 13 * 128) + (73 + 64 + 2) * 128);
  EXPECT_EQ(parameters({.model = "gpt-nano", .layers = 3, .width = 60, .heads = 2, .context = 32}, 73),
            3 * (12 * 60 * 60 + 13 * 60) + (73 + 32 + 2) * 60);
}

TEST(Models, RejectSizesAndSamplesThatDoNotFit) {
  const SampleSpec pictures = PictureSpec(28, 28), text = TextSpec(64, 73);
  EXPECT_EQ(ErrorFor({.model = "cnn", .width = 40}, pictures),
            "--width is not a size of the model cnn; omit it");
  EXPECT_EQ(ErrorFor({.model = "mlp", .heads = 2}, pictures),
            "--heads is not a size of the model mlp; omit it");
  EXPECT_EQ(ErrorFor({.model = "cnn"}, PictureSpec(27, 28)),
            "the cnn needs images of even size, 6x6 at least; these are 27x28");
  EXPECT_EQ(ErrorFor({.model = "resnet18", .width = 24}, pictures),
            "--width 24: the channels of a residual network's first stage are a multiple of 16, such as 16, "
            "32 or 64");
  EXPECT_EQ(ErrorFor({.model = "gpt-nano", .heads = 3}, text),
            "--width 128 is not a multiple of --heads 3; choose another of them");
  EXPECT_EQ(ErrorFor({.model = "dlrm-small"}, pictures),
            "the model dlrm-small reads clicks; use --data zipf:ROWS:ALPHA, or another --model");
  EXPECT_NE(ErrorFor({.model = "resnet50"}, text), "");
  EXPECT_NE(ErrorFor({.model = "gpt-nano"}, pictures), "");
  EXPECT_NE(ErrorFor({.model = "skipgram"}, ClickSpec(10)), "");
}

TEST(Models, GptMiniHasTheGradientsOfItsWorkload) {
  // 73 symbols: the King James Bible.
  const int context = (*FindModel("gpt-mini"))->size.context;
  const ParameterLayout layout = *LayoutFor({.model = "gpt-mini"}, TextSpec(context, 73));
  const Workload workload = *LoadWorkload("gpt_mini");
  const std::vector<Tensor>& tensors = layout.tensors();
  ASSERT_EQ(workload.tensors.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const GradientTensor& replayed = workload.tensors[tensors.size() - 1 - i];
    EXPECT_EQ(replayed.name, tensors[i].name);
    EXPECT_EQ(replayed.bytes, static_cast<int64_t>(4 * tensors[i].count)) << tensors[i].name;
  }
}

TEST(Models, OnlyTransformersHaveDropout) {
  for (const ModelRow& row : Models()) {
    TrainingOptions options{.model = row.name, .dropout = .1};
    EXPECT_EQ(ModelOf(options).status().message(),
              std::string(row.name).starts_with("gpt")
                  ? ""
                  : std::string("--dropout is for transformers (gpt-nano, gpt-mini, gpt2); omit it for ") +
                        row.name);
  }
}

TEST(Models, WeightDecayLeavesOutBiasesAndNormalizations) {
  const ParameterLayout layout = *LayoutFor({.model = "gpt-nano", .layers = 1}, TextSpec(64, 73));
  std::vector<bool> decays(layout.count(), true);
  for (const ParameterRange& range : WithoutDecay(layout)) {
    std::fill_n(decays.begin() + static_cast<std::ptrdiff_t>(range.first), range.count, false);
  }
  for (const Tensor& tensor : layout.tensors()) {
    const bool is_matrix = tensor.name.find("ln_") == std::string::npos && tensor.name.ends_with(".weight");
    EXPECT_EQ(decays[tensor.first], is_matrix) << tensor.name;
    EXPECT_EQ(decays[tensor.first + tensor.count - 1], is_matrix) << tensor.name;
  }
}

TEST(Models, TheHelpNamesAll) {
  CLI::App app("", "program");
  TrainingOptions options;
  AddTrainingFlags(app, options);
  AddModelsAndData(app);
  const std::string help = app.get_option("--model")->get_description();
  for (const ModelRow& row : Models()) EXPECT_THAT(help, testing::HasSubstr(row.name));
  for (const std::string& name : DataNames()) {
    EXPECT_THAT(app.get_option("--data")->get_description(), testing::HasSubstr(name));
  }
  EXPECT_TRUE(Parse(app, {"--data=zipf:10:1.5"}).proceed);
  EXPECT_THAT(Parse(app, {"--data=fashion_mnist"}).text, testing::HasSubstr("did you mean fashion-mnist?"));
  EXPECT_FALSE(Parse(app, {"--data=zipf:0:1.5"}).proceed);
}

}  // namespace
}  // namespace psring
