#include "experiments/bench/catalog.h"

#include "common/base/check.h"
#include "common/base/read_file.h"
#include "common/io/json_object.h"

namespace psring {

const std::vector<std::string>& BackendInfo::AlgorithmsFor(const std::string& collective) const {
  static const std::vector<std::string> none;
  const auto found = algorithms.find(collective);
  return found == algorithms.end() ? none : found->second;
}

absl::StatusOr<BenchCatalog> BenchCatalogFromJson(const std::string& text) {
  constexpr size_t kMaxRows = 1000, kMaxBytes = 4096;
  PSRING_ASSIGN_OR_RETURN(const JsonObject json,
                          JsonObject::Parse(text, kMaxTextBytes, "the answer of `ring_worker --describe`"));
  BenchCatalog catalog;
  PSRING_ASSIGN_OR_RETURN(catalog.collectives, json.Texts("collectives", kMaxRows, kMaxBytes));
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> backends, json.Objects("backends", kMaxRows));
  for (const JsonObject& row : backends) {
    BackendInfo& backend = catalog.backends.emplace_back();
    PSRING_ASSIGN_OR_RETURN(backend.name, row.Text("name", kMaxBytes));
    PSRING_ASSIGN_OR_RETURN(backend.summary, row.Text("summary", kMaxBytes, ""));
    PSRING_ASSIGN_OR_RETURN(backend.available, row.Bool("available", false));
    PSRING_ASSIGN_OR_RETURN(backend.missing, row.Text("missing", kMaxBytes, ""));
    PSRING_ASSIGN_OR_RETURN(backend.transports, row.Texts("transports", kMaxRows, kMaxBytes));
    PSRING_ASSIGN_OR_RETURN(const JsonObject algorithms, row.Object("algorithms"));
    for (const std::string& collective : algorithms.Keys()) {
      PSRING_ASSIGN_OR_RETURN(backend.algorithms[collective],
                              algorithms.Texts(collective.c_str(), kMaxRows, kMaxBytes));
    }
  }
  return catalog;
}

}  // namespace psring
