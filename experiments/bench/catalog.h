// The collectives that can be measured, from `ring_worker --describe`. psring keeps no list of its own. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct BackendInfo {
  std::string name, summary;
  bool available = false;
  std::string missing;                                         // if not available: what to install
  std::map<std::string, std::vector<std::string>> algorithms;  // by collective; no entry if not offered
  std::vector<std::string> transports;

  const std::vector<std::string>& AlgorithmsFor(const std::string& collective) const;
};

struct BenchCatalog {
  std::vector<std::string> collectives;
  std::vector<BackendInfo> backends;
};

absl::StatusOr<BenchCatalog> BenchCatalogFromJson(const std::string& text);

}  // namespace psring
