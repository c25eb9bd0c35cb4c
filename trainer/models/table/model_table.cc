#include "trainer/models/table/model_table.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"
#include "common/workloads/workload.h"
#include "trainer/data/table/data_table.h"

namespace psring {
namespace {

ModelRow GptRow(const char* name, const char* summary, const ModelSize& size, double lr) {
  return {.name = name,
          .summary = summary,
          .default_lr = lr,
          .default_data = "text",
          .size = size,
          .optimizer = "adamw",
          .has_dropout = true,
          .has_units = true,
          .network = "gpt"};
}

ModelRow ResNetRow(const char* name, const char* summary) {
  return {.name = name,
          .summary = summary,
          .default_lr = .05,
          .size = {.width = 64},
          .has_units = true,
          .network = name};
}

// A velocity would change all rows in every step, so the default is plain SGD.
ModelRow TableRow(const char* name, const char* summary, int width, double lr, const char* data) {
  return {.name = name,
          .summary = summary,
          .default_lr = lr,
          .default_data = data,
          .size = {.width = width},
          .optimizer = "sgd",
          .has_tables = true,
          .network = name};
}

// "mlp, cnn (fashion-mnist); gpt2 (text)".
std::string NamesWithData() {
  std::string text;
  const char* data = "";
  for (const ModelRow& row : ModelRows()) {
    const bool same = std::string(row.default_data) == data;
    if (!text.empty()) absl::StrAppend(&text, same ? "" : absl::StrCat(" (", data, ")"), same ? ", " : "; ");
    text += row.name;
    data = row.default_data;
  }
  return absl::StrCat(text, " (", data, ")");
}

std::string CheckData(const std::string& name) {
  const absl::Status status = FindData(name).status();
  return absl::IsNotFound(status) ? OneOf(DataNames())(name) : std::string(status.message());
}

}  // namespace

const ModelTable& ModelRows() {
  static const auto& rows = *new ModelTable{
      {.name = "mlp",
       .summary = "784-1024-1024-10 with ReLU",
       .default_lr = .05,
       .default_async_lr = .15,
       .size = {.width = 1024},
       .network = "mlp"},
      {.name = "mlp-small",
       .summary = "784-300-100-10 with ReLU: small gradients, short steps",
       .default_lr = .05,
       .default_async_lr = .1,
       .size = {.width = 0},
       .network = "mlp"},
      {.name = "cnn",
       .summary = "two 3x3 convolutions (32, 64), 2x2 pooling, 9216-128-10",
       .default_lr = .1,
       .network = "cnn"},
      ResNetRow("resnet18", "18 layers with residual connections and BatchNorm, 3x3 stem as for CIFAR"),
      ResNetRow("resnet50", "50 layers in bottlenecks with BatchNorm, 3x3 stem as for CIFAR"),
      GptRow("gpt-nano", "GPT-2 with 4 layers, 4 heads, width 128, context 64",
             {.layers = 4, .width = 128, .heads = 4, .context = 64}, 1e-3),
      GptRow("gpt-mini", "GPT-2 with 6 layers, 6 heads, width 384, context 256",
             {.layers = 6, .width = 384, .heads = 6, .context = 256}, 1e-3),
      GptRow("gpt2", "GPT-2 with 12 layers, 12 heads, width 768, context 1024",
             {.layers = 12, .width = 768, .heads = 12, .context = 1024}, 6e-4),
      TableRow("dlrm-small", "DLRM: 8 tables of rows of width 64, their products, and two small MLPs", 64, 1,
               "zipf:1000000:1.05"),
      TableRow("skipgram", "word2vec's skip-grams with 5 negatives and vectors of width 128", 128, 10,
               "words"),
  };
  return rows;
}

absl::StatusOr<const ModelRow*> FindModelRow(const std::string& name, const ModelTable& rows) {
  std::vector<std::string> names;
  for (const ModelRow& row : rows) {
    if (row.name == name) return &row;
    names.push_back(row.name);
  }
  const std::string hint = WorkloadHint(name);
  return hint.empty() ? UnknownName(TrNoop("model"), name, names) : absl::NotFoundError(hint);
}

absl::Status ApplyModel(TrainingOptions& options, const ModelTable& rows) {
  if (options.data.empty() && options.workload.empty()) {
    // An unknown model is an error of FindModelRow's other callers.
    const absl::StatusOr<const ModelRow*> row = FindModelRow(options.model, rows);
    options.data = row.ok() ? (*row)->default_data : "fashion-mnist";
  }
  const absl::StatusOr<const DataRow*> data = FindData(options.data);
  if (options.text.empty() || (data.ok() && (*data)->takes_text)) return absl::OkStatus();
  return InvalidArgument("--text is for models of texts, such as --model gpt-nano, with --data text; ",
                         "this model is ", options.model, ", with --data ", options.data);
}

bool HasTables(const TrainingOptions& options) {
  const absl::StatusOr<const ModelRow*> row = FindModelRow(options.model);
  return options.workload.empty() && row.ok() && (*row)->has_tables;
}

void AddModelsAndData(CLI::App& app) {
  CLI::Option *model = app.get_option("--model"), *data = app.get_option("--data");
  model->description(absl::StrCat(model->get_description(), " ", NamesWithData()));
  data->description(absl::StrCat(data->get_description(), " ", absl::StrJoin(DataNames(), ", ")));
  data->check(ValueCheck(CheckData));
}

}  // namespace psring
