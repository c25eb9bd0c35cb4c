#include "experiments/report/staleness_data.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "experiments/simulator/servers.h"

namespace psring {
namespace {

using Json = nlohmann::ordered_json;

struct Spread {
  const char* name;
  double jitter;
  int slow_workers;
};
constexpr Spread kSpreads[] = {{"even", 0.02, 0}, {"uneven", 0.4, 0}, {"straggler", 0.02, 1}};
constexpr int kWorkers[] = {2, 4, 8, 16};
constexpr const char* kRules[] = {"sync", "ssp:1", "ssp:2", "ssp:4", "ssp:8", "async"};

// A network and a server that take almost no time.
Cluster Instant() {
  return {.link_bytes_per_s = 1e15,
          .fraction = 1,
          .latency_s = 1e-9,
          .add_s_per_byte = 0,
          .server_add_s_per_byte = 0,
          .server_update_s_per_byte = 0};
}

double Rounded(double value) { return std::round(value * 1e4) / 1e4; }

}  // namespace

std::string StalenessJson() {
  Json progress = Json::array(), staleness = Json::array(), spreads = Json::array(), most = Json::array();
  for (const Spread& spread : kSpreads) spreads.push_back(spread.name);
  for (const int workers : kWorkers) {
    Json progress_of = Json::array(), staleness_of = Json::array(), most_of = Json::array();
    for (const Spread& spread : kSpreads) {
      Json by_rule_progress = Json::array(), by_rule_staleness = Json::array(), by_rule_most = Json::array();
      for (const char* rule : kRules) {
        const absl::StatusOr<ServerTime> time = SimulateServers({.consistency = rule,
                                                                 .workers = workers,
                                                                 .place = ServerPlace::kDedicated,
                                                                 .backward_s = 1,
                                                                 .bucket_bytes = {4},
                                                                 .ready_s = {1},
                                                                 .slow_workers = spread.slow_workers,
                                                                 .slowness = 2,
                                                                 .jitter = spread.jitter,
                                                                 .warmup_steps = 10,
                                                                 .steps = 150},
                                                                Instant());
        PSRING_CHECK(time.ok());
        by_rule_progress.push_back(Rounded(time->worker_steps_per_s / workers));
        by_rule_staleness.push_back(Rounded(std::max(0.0, time->staleness_mean)));
        by_rule_most.push_back(std::max(0.0, time->staleness_max));
      }
      progress_of.push_back(by_rule_progress);
      staleness_of.push_back(by_rule_staleness);
      most_of.push_back(by_rule_most);
    }
    progress.push_back(progress_of);
    staleness.push_back(staleness_of);
    most.push_back(most_of);
  }
  return Json({{"workers", kWorkers},
               {"rules", kRules},
               {"spreads", spreads},
               {"progress", progress},
               {"staleness", staleness},
               {"staleness_max", most}})
      .dump();
}

}  // namespace psring
