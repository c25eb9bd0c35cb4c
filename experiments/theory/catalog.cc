#include "experiments/theory/catalog.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/command_line.h"

namespace psring {
namespace {

using Json = nlohmann::json;

constexpr int kMostNumber = 1'000'000;  // as in the trainer

absl::Status Unknown(const std::string& what, const std::string& name,
                     const std::vector<std::string>& known) {
  const std::string near = NearestWord(name, known);
  return absl::NotFoundError(
      near.empty() ? absl::StrCat("unknown ", what, " '", name, "'; use one of ", absl::StrJoin(known, ", "))
                   : absl::StrCat("unknown ", what, " '", name, "'; did you mean '", near, "'?"));
}

template <typename Row>
absl::StatusOr<Row> Find(const std::vector<Row>& rows, const std::string& what, const std::string& name) {
  std::vector<std::string> known;
  for (const Row& row : rows) {
    if (row.name == name) return row;
    known.push_back(row.name);
  }
  return Unknown(what, name, known);
}

}  // namespace

absl::StatusOr<Catalog> CatalogFromJson(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("strategies") || !json.contains("models")) {
    return absl::InternalError(
        "`trainer --describe` did not answer with its tables of strategies and models");
  }
  Catalog catalog;
  for (const Json& row : json["strategies"]) {
    const std::string needs = row.value("needs", "");
    catalog.strategies.push_back({.name = row.value("name", ""),
                                  .summary = row.value("summary", ""),
                                  .uses_group = absl::StrContains(needs, "process_group"),
                                  .uses_servers = absl::StrContains(needs, "parameter_server"),
                                  .backend = row.value("backend", ""),
                                  .algorithm = row.value("algorithm", ""),
                                  .synchronous = row.value("synchronous", false),
                                  .single_process = row.value("single_process", false),
                                  .replicates = row.value("replicates", false),
                                  .shares_steps = row.value("shares_steps", false),
                                  .drops_gradients = row.value("drops_gradients", false),
                                  .default_momentum = row.value("default_momentum", 0.0),
                                  .number_letter = row.value("number", ""),
                                  .number_meaning = row.value("number_meaning", ""),
                                  .number_least = row.value("number_least", 0),
                                  .number_below_workers = row.value("number_below_workers", false)});
  }
  for (const Json& row : json["models"]) {
    catalog.models.push_back({.name = row.value("name", ""),
                              .summary = row.value("summary", ""),
                              .default_lr = row.value("default_lr", 0.0),
                              .default_async_lr = row.value("default_async_lr", 0.0),
                              .parameters = row.value("parameters", int64_t{0})});
  }
  if (json.contains("data")) {
    for (const Json& row : json["data"]) {
      catalog.data.push_back(row.is_string() ? row.get<std::string>() : row.value("name", ""));
    }
  }
  return catalog;
}

absl::StatusOr<StrategyInfo> FindStrategy(const Catalog& catalog, const std::string& name) {
  const std::string base = BaseName(name);
  const absl::StatusOr<StrategyInfo> row = Find(catalog.strategies, "strategy", base);
  if (!row.ok()) return base == name ? row : Find(catalog.strategies, "strategy", name);
  StrategyInfo strategy = *row;
  const bool given = base != name;
  if (strategy.number_letter.empty()) {
    if (!given) return strategy;
    return absl::InvalidArgumentError(absl::StrCat("strategy '", name, "': ", base, " takes no number"));
  }
  if (!given || !absl::SimpleAtoi(name.substr(base.size() + 1), &strategy.number) ||
      strategy.number < strategy.number_least || strategy.number > kMostNumber) {
    return absl::InvalidArgumentError(absl::StrCat(
        "strategy '", name, "': ", base, ":", strategy.number_letter, " needs a whole number from ",
        strategy.number_least, given ? absl::StrCat(" to ", kMostNumber) : "", " (", strategy.number_letter,
        ": ", strategy.number_meaning, "), as in ", base, ":", std::max(1, strategy.number_least)));
  }
  strategy.name = absl::StrCat(base, ":", strategy.number);
  strategy.algorithm = absl::StrCat(strategy.algorithm, ":", strategy.number);
  return strategy;
}

std::string BaseName(const std::string& strategy) { return strategy.substr(0, strategy.find(':')); }

absl::StatusOr<ModelInfo> FindModel(const Catalog& catalog, const std::string& name) {
  return Find(catalog.models, "model", name);
}

absl::Status RequireData(const Catalog& catalog, const std::string& name) {
  for (const std::string& known : catalog.data) {
    if (known == name) return absl::OkStatus();
  }
  return catalog.data.empty() ? absl::OkStatus() : Unknown("data", name, catalog.data);
}

bool IsAsynchronousServer(const StrategyInfo& strategy) {
  return strategy.uses_servers && !strategy.synchronous;
}

bool CanAggregate(const StrategyInfo& strategy) {
  return strategy.uses_servers && strategy.synchronous && !strategy.drops_gradients;
}

}  // namespace psring
