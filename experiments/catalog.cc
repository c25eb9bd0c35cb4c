#include "experiments/catalog.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/command_line.h"

namespace psring {
namespace {

using Json = nlohmann::json;

StrategyNeeds NeedsFrom(const std::string& text) {
  if (text == "process_group") return StrategyNeeds::kProcessGroup;
  if (text == "parameter_server") return StrategyNeeds::kParameterServer;
  return StrategyNeeds::kNothing;
}

absl::Status Unknown(const std::string& what, const std::string& name,
                     const std::vector<std::string>& known) {
  const std::string near = NearestWord(name, known);
  return absl::NotFoundError(
      near.empty() ? absl::StrCat("unknown ", what, " '", name, "'; there are: ", absl::StrJoin(known, ", "))
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
    catalog.strategies.push_back({.name = row.value("name", ""),
                                  .summary = row.value("summary", ""),
                                  .needs = NeedsFrom(row.value("needs", "")),
                                  .backend = row.value("backend", ""),
                                  .algorithm = row.value("algorithm", ""),
                                  .synchronous = row.value("synchronous", false),
                                  .single_process = row.value("single_process", false),
                                  .default_momentum = row.value("default_momentum", 0.0)});
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
  return Find(catalog.strategies, "strategy", name);
}

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
  return strategy.needs == StrategyNeeds::kParameterServer && !strategy.synchronous;
}

}  // namespace psring
