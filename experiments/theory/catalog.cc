#include "experiments/theory/catalog.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/read_file.h"
#include "common/cli/command_line.h"
#include "common/io/json_object.h"
#include "common/suggestions/suggestions.h"
#include "common/workloads/workload.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {
namespace {

constexpr int kMostNumber = 1'000'000;  // as in the trainer
constexpr size_t kMostRows = 1000, kMostCellBytes = 4096;
constexpr double kMostFactor = 1e30;

absl::StatusOr<StrategyInfo> StrategyFrom(const JsonObject& row) {
  StrategyInfo info;
  PSRING_ASSIGN_OR_RETURN(info.name, row.Text("name", kMostCellBytes));
  PSRING_ASSIGN_OR_RETURN(info.summary, row.Text("summary", kMostCellBytes, ""));
  PSRING_ASSIGN_OR_RETURN(const std::string needs, row.Text("needs", kMostCellBytes, ""));
  PSRING_ASSIGN_OR_RETURN(info.aliases, row.Text("aliases", kMostCellBytes, ""));
  PSRING_ASSIGN_OR_RETURN(info.also_called, row.Text("also_called", kMostCellBytes, ""));
  PSRING_ASSIGN_OR_RETURN(info.resembles, row.Text("resembles", kMostCellBytes, ""));
  info.uses_group = absl::StrContains(needs, "process_group");
  info.uses_servers = absl::StrContains(needs, "parameter_server");
  PSRING_ASSIGN_OR_RETURN(info.backend, row.Text("backend", kMostCellBytes, ""));
  PSRING_ASSIGN_OR_RETURN(info.algorithm, row.Text("algorithm", kMostCellBytes, ""));
  PSRING_ASSIGN_OR_RETURN(info.synchronous, row.Bool("synchronous", false));
  PSRING_ASSIGN_OR_RETURN(info.single_process, row.Bool("single_process", false));
  PSRING_ASSIGN_OR_RETURN(info.replicates, row.Bool("replicates", false));
  PSRING_ASSIGN_OR_RETURN(info.shares_steps, row.Bool("shares_steps", false));
  PSRING_ASSIGN_OR_RETURN(info.drops_gradients, row.Bool("drops_gradients", false));
  PSRING_ASSIGN_OR_RETURN(info.default_momentum, row.Number("default_momentum", 0, 1, 0));
  PSRING_ASSIGN_OR_RETURN(info.number_letter, row.Text("number", kMostCellBytes, ""));
  PSRING_ASSIGN_OR_RETURN(info.number_meaning, row.Text("number_meaning", kMostCellBytes, ""));
  PSRING_ASSIGN_OR_RETURN(info.number_least, row.WholeNumber("number_least", 0, kMostNumber, 0));
  PSRING_ASSIGN_OR_RETURN(info.number_below_workers, row.Bool("number_below_workers", false));
  return info;
}

}  // namespace

absl::StatusOr<Catalog> CatalogFromJson(const std::string& text) {
  PSRING_ASSIGN_OR_RETURN(const JsonObject json,
                          JsonObject::Parse(text, kMostTextBytes, "the answer of `trainer --describe`"));
  Catalog catalog;
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> strategies, json.Objects("strategies", kMostRows));
  for (const JsonObject& row : strategies) {
    PSRING_ASSIGN_OR_RETURN(catalog.strategies.emplace_back(), StrategyFrom(row));
  }
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> models, json.Objects("models", kMostRows));
  for (const JsonObject& row : models) {
    ModelInfo& model = catalog.models.emplace_back();
    PSRING_ASSIGN_OR_RETURN(model.name, row.Text("name", kMostCellBytes));
    PSRING_ASSIGN_OR_RETURN(model.summary, row.Text("summary", kMostCellBytes, ""));
    PSRING_ASSIGN_OR_RETURN(model.default_lr, row.Number("default_lr", 0, kMostFactor, 0));
    PSRING_ASSIGN_OR_RETURN(model.default_async_lr, row.Number("default_async_lr", 0, kMostFactor, 0));
    PSRING_ASSIGN_OR_RETURN(model.parameters, row.WholeNumber<int64_t>("parameters", 0, INT64_MAX / 8, 0));
    PSRING_ASSIGN_OR_RETURN(model.has_tables, row.Bool("has_tables", false));
  }
  if (!json.Has("data")) return catalog;
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> data, json.Objects("data", kMostRows));
  for (const JsonObject& row : data) {
    PSRING_ASSIGN_OR_RETURN(catalog.data.emplace_back(), row.Text("name", kMostCellBytes));
  }
  return catalog;
}

absl::StatusOr<StrategyInfo> FindStrategy(const Catalog& catalog, const std::string& name,
                                          const std::vector<std::string>& given) {
  const std::string word = BaseName(name);
  std::vector<KnownName> known;
  const StrategyInfo* row = nullptr;
  for (const StrategyInfo& one : catalog.strategies) {
    if (one.name == word || !MeantByOtherName(word, {one.name}, {one.aliases}).empty()) row = &one;
    known.push_back({.name = one.name,
                     .also_called = one.also_called,
                     .resembles = one.resembles,
                     .given = std::ranges::any_of(
                         given, [&](const std::string& other) { return BaseName(other) == one.name; })});
  }
  if (row == nullptr && FindSchedule(name) != nullptr) {
    return absl::NotFoundError(absl::StrCat("'", name,
                                            "' is a schedule that psring predict and psring explain "
                                            "know, but no strategy trains with it; use ring"));
  }
  if (row == nullptr) return UnknownName("strategy", name, known);
  StrategyInfo strategy = *row;
  const std::string& base = row->name;
  const bool has_number = word != name;
  if (strategy.number_letter.empty()) {
    if (!has_number) return strategy;
    return absl::InvalidArgumentError(absl::StrCat("strategy '", name, "': ", base, " takes no number"));
  }
  if (!has_number || !absl::SimpleAtoi(name.substr(word.size() + 1), &strategy.number) ||
      strategy.number < strategy.number_least || strategy.number > kMostNumber) {
    return absl::InvalidArgumentError(
        absl::StrCat("strategy '", name, "': ", base, ":", strategy.number_letter,
                     " needs a whole number from ", strategy.number_least,
                     has_number ? absl::StrCat(" to ", kMostNumber) : "", " (", strategy.number_letter, ": ",
                     strategy.number_meaning, "), as in ", base, ":", std::max(1, strategy.number_least)));
  }
  strategy.name = absl::StrCat(base, ":", strategy.number);
  strategy.algorithm = absl::StrCat(strategy.algorithm, ":", strategy.number);
  return strategy;
}

absl::Status UseCatalogNames(const Catalog& catalog, std::vector<std::string>& names) {
  for (auto name = names.begin(); name != names.end(); ++name) {
    const absl::StatusOr<StrategyInfo> strategy = FindStrategy(catalog, *name);
    if (strategy.ok()) *name = strategy->name;
    if (std::find(names.begin(), name, *name) == name) continue;
    return absl::InvalidArgumentError(absl::StrCat("--strategies names ", *name, " twice; name it once"));
  }
  return absl::OkStatus();
}

std::string BaseName(const std::string& strategy) { return strategy.substr(0, strategy.find(':')); }

absl::StatusOr<ModelInfo> FindModel(const Catalog& catalog, const std::string& name) {
  std::vector<std::string> known;
  for (const ModelInfo& model : catalog.models) {
    if (model.name == name) return model;
    known.push_back(model.name);
  }
  const std::string hint = WorkloadHint(name);
  return hint.empty() ? UnknownName("model", name, known) : absl::NotFoundError(hint);
}

absl::Status RequireData(const Catalog& catalog, const std::string& name) {
  for (const std::string& known : catalog.data) {
    // The numbers of "zipf:ROWS:ALPHA" have been checked with the flag.
    const bool has_numbers = known.find(':') != std::string::npos && name.find(':') != std::string::npos;
    if (known == name || (has_numbers && BaseName(known) == BaseName(name))) return absl::OkStatus();
  }
  return catalog.data.empty() ? absl::OkStatus() : UnknownName("data", name, catalog.data);
}

bool IsAsynchronousServer(const StrategyInfo& strategy) {
  return strategy.uses_servers && !strategy.synchronous;
}

bool CanAggregate(const StrategyInfo& strategy) {
  return strategy.uses_servers && !strategy.uses_group && strategy.synchronous && !strategy.drops_gradients;
}

}  // namespace psring
