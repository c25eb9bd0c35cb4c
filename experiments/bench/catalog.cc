#include "experiments/bench/catalog.h"

#include <nlohmann/json.hpp>

namespace psring {

const std::vector<std::string>& BackendInfo::AlgorithmsFor(const std::string& collective) const {
  static const std::vector<std::string> none;
  const auto found = algorithms.find(collective);
  return found == algorithms.end() ? none : found->second;
}

absl::StatusOr<BenchCatalog> BenchCatalogFromJson(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("collectives") || !json.contains("backends")) {
    return absl::InternalError("`ring_worker --describe` did not answer with its tables");
  }
  using Names = std::vector<std::string>;
  BenchCatalog catalog{.collectives = json["collectives"].get<Names>()};
  for (const nlohmann::json& row : json["backends"]) {
    BackendInfo& backend = catalog.backends.emplace_back();
    backend.name = row.value("name", "");
    backend.summary = row.value("summary", "");
    backend.available = row.value("available", false);
    backend.missing = row.value("missing", "");
    backend.transports = row.value("transports", Names());
    for (const auto& [collective, algorithms] : row["algorithms"].items()) {
      backend.algorithms[collective] = algorithms.get<Names>();
    }
  }
  return catalog;
}

}  // namespace psring
