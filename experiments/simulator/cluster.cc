#include "experiments/simulator/cluster.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "common/io/json_object.h"
#include "common/text/translate.h"
#include "common/text/units.h"

namespace psring {
namespace {

constexpr double kGbit = 1e9 / 8;
constexpr double kMaxRate = 1e14 / 8;  // bytes/s, as ParseBitRate allows
constexpr double kMaxNumber = 1e12;
constexpr size_t kMaxRateBytes = 64;

// The fields of the JSON form, and the values of each that CheckCluster accepts.
struct Rate {
  const char* key;
  double Cluster::*value;
};
constexpr Rate kRates[] = {{"link", &Cluster::link_bytes_per_s},
                           {"intra", &Cluster::intra_bytes_per_s},
                           {"connection", &Cluster::connection_bytes_per_s}};

struct Count {
  const char* key;
  int Cluster::*value;
  int most;
};
constexpr Count kCounts[] = {{"gpus_per_node", &Cluster::gpus_per_node, 1024},
                             {"cards_per_node", &Cluster::cards_per_node, 64},
                             {"rings", &Cluster::rings, 64}};

struct Range {
  bool (*contains)(double value);
  const char* text;
  const char *name = nullptr, *unit = "";  // in errors, instead of the key
};
constexpr Range kShare = {[](double x) { return x > 0 && x <= 1; }, "above 0 and at most 1"};
constexpr Range kFactor = {[](double x) { return x >= 1 && x <= 1000; }, "1 to 1000"};
constexpr Range kLoss = {[](double x) { return x >= 0 && x <= 10; }, "0 to 10"};
constexpr Range kBytes = {[](double x) { return x >= 0 && x < 1e12; }, "at least 0 and below 1e12"};
constexpr Range kTime = {[](double x) { return x >= 0 && x < 1; }, "at least 0 and below 1",
                         "a latency or a time per byte", " s"};

struct Number {
  const char* key;
  double Cluster::*value;
  const Range& range;
};
constexpr Number kNumbers[] = {{"fraction", &Cluster::fraction, kShare},
                               {"latency_us", &Cluster::latency_s, kTime},
                               {"intra_latency_us", &Cluster::intra_latency_s, kTime},
                               {"oversubscription", &Cluster::oversubscription, kFactor},
                               {"add_s_per_byte", &Cluster::add_s_per_byte, kTime},
                               {"server_add_s_per_byte", &Cluster::server_add_s_per_byte, kTime},
                               {"server_update_s_per_byte", &Cluster::server_update_s_per_byte, kTime},
                               {"server_worker_s_per_byte", &Cluster::server_worker_s_per_byte, kTime},
                               {"worker_update_s_per_byte", &Cluster::worker_update_s_per_byte, kTime},
                               {"node_loss", &Cluster::node_loss, kLoss},
                               {"barrier_us", &Cluster::barrier_s, kTime},
                               {"socket_bytes", &Cluster::socket_bytes, kBytes},
                               {"burst_bytes", &Cluster::burst_bytes, kBytes}};

// The row of `key`; null if there is none.
template <typename Rows>
auto RowOf(const Rows& rows, absl::string_view key) {
  const auto row =
      std::find_if(std::begin(rows), std::end(rows), [&](const auto& one) { return key == one.key; });
  return row == std::end(rows) ? nullptr : row;
}

template <typename... What>
absl::Status Wrong(const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat(what...));
}

}  // namespace

// Rates are from the vendors' data sheets; latencies are typical.
const std::vector<ClusterPreset>& ClusterPresets() {
  static const auto& presets = *[] {
    const Cluster dgx{.name = "dgx-h100",
                      .gpus_per_node = 8,
                      .link_bytes_per_s = 400 * kGbit,
                      .cards_per_node = 8,
                      .intra_bytes_per_s = 3600 * kGbit,
                      .latency_s = 8e-6,
                      .intra_latency_s = 3e-6,
                      .rings = 8,
                      .add_s_per_byte = 0.6e-12};
    const Cluster p3dn{.name = "p3dn",
                       .gpus_per_node = 8,
                       .link_bytes_per_s = 100 * kGbit,
                       .intra_bytes_per_s = 1200 * kGbit};
    const Cluster pcie{.name = "8x10gbe",
                       .gpus_per_node = 8,
                       .link_bytes_per_s = 10 * kGbit,
                       .intra_bytes_per_s = 80 * kGbit};
    return new std::vector<ClusterPreset>{{dgx, "8 H100 with NVLink (450 GB/s), 8 cards of 400 Gbit/s"},
                                          {p3dn, "8 V100 with NVLink (150 GB/s), one card of 100 Gbit/s"},
                                          {pcie, "8 GPUs on PCIe 3 (10 GB/s), one card of 10 Gbit/s"}};
  }();
  return presets;
}

absl::StatusOr<Cluster> ClusterFromJson(const std::string& name, const std::string& text) {
  PSRING_ASSIGN_OR_RETURN(const JsonObject json,
                          JsonObject::Parse(text, kMaxTextBytes, absl::StrCat("cluster ", name)));
  Cluster cluster{.name = name};
  for (const std::string& key : json.Keys()) {
    if (const Rate* const rate = RowOf(kRates, key)) {
      PSRING_ASSIGN_OR_RETURN(const std::string text_of_rate, json.Text(rate->key, kMaxRateBytes));
      const absl::StatusOr<double> bits = ParseBitRate(text_of_rate);
      if (!bits.ok()) return json.Error(key, std::string(bits.status().message()));
      cluster.*rate->value = *bits / 8;
    } else if (const Count* const count = RowOf(kCounts, key)) {
      PSRING_ASSIGN_OR_RETURN(cluster.*count->value, json.WholeNumber(count->key, 1, count->most));
    } else if (const Number* const number = RowOf(kNumbers, key)) {
      PSRING_ASSIGN_OR_RETURN(const double value, json.Number(number->key, 0, kMaxNumber));
      cluster.*number->value = value * (absl::EndsWith(key, "_us") ? 1e-6 : 1);
    } else if (key != "name") {
      return json.UnknownField(key);
    }
  }
  const absl::Status status = CheckCluster(cluster);
  if (!status.ok()) return Wrong("cluster ", name, ": ", status.message());
  return cluster;
}

absl::StatusOr<Cluster> LoadCluster(const std::string& name_or_path) {
  std::vector<std::string> names;
  for (const ClusterPreset& preset : ClusterPresets()) {
    if (name_or_path == preset.cluster.name) return preset.cluster;
    names.push_back(preset.cluster.name);
  }
  if (!absl::StrContains(name_or_path, '/') && !absl::EndsWith(name_or_path, ".json")) {
    return absl::NotFoundError(Tr("unknown cluster '$0'; use $1 or the path of a JSON file (./mine.json)",
                                  name_or_path, absl::StrJoin(names, ", ")));
  }
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(name_or_path));
  return ClusterFromJson(name_or_path, text);
}

absl::Status CheckCluster(const Cluster& cluster) {
  for (const Rate& rate : kRates) {
    const double value = cluster.*rate.value;
    if (!(value >= 0 && value <= kMaxRate))
      return Wrong(rate.key, " is ", value, " bytes/s; it must be between 0 and ", kMaxRate);
  }
  if (cluster.link_bytes_per_s <= 0)
    return Wrong(Tr("the rate of the links is missing; use --link 25gbit or --cluster"));
  for (const Count& count : kCounts) {
    const int value = cluster.*count.value;
    if (value < 1 || value > count.most)
      return Wrong(count.key, " is ", value, "; it must be 1 to ", count.most);
  }
  if (cluster.gpus_per_node > 1 && cluster.intra_bytes_per_s <= 0) {
    return Wrong("nodes of ", cluster.gpus_per_node,
                 " GPUs need the rate of the links inside a node; use --intra 300gbit");
  }
  for (const auto& [key, value, range] : kNumbers) {
    if (!range.contains(cluster.*value)) {
      return Wrong(range.name != nullptr ? range.name : key, " is ", cluster.*value, range.unit,
                   "; it must be ", range.text);
    }
  }
  return absl::OkStatus();
}

double FullSpeed(const Cluster& cluster) {
  constexpr double kProcessToProcess = 1e9;  // bytes/s
  return std::max(kProcessToProcess, 2 * cluster.link_bytes_per_s * cluster.fraction);
}

absl::Status CheckWorkers(const Cluster& cluster, int workers) {
  if (workers < 1) return Wrong(workers, " workers; at least 1 is needed");
  if (workers <= cluster.gpus_per_node || workers % cluster.gpus_per_node == 0) return absl::OkStatus();
  return Wrong(
      Tr("$0 workers do not fill nodes of $1 GPUs; use a multiple, such as $2, or another --gpus_per_node",
         workers, cluster.gpus_per_node, (workers / cluster.gpus_per_node + 1) * cluster.gpus_per_node));
}

Cluster WithNodes(Cluster cluster, int nodes) {
  if (nodes > 2) cluster.fraction *= 1 / (1 + cluster.node_loss * (std::log2(nodes) - 1));
  return cluster;
}

double BarrierSeconds(const Cluster& cluster, int nodes) {
  return nodes <= 1 ? 0 : cluster.barrier_s * std::ceil(std::log2(nodes));
}

Shape ShapeOf(const Cluster& cluster, int workers) {
  const int ranks = std::min(workers, cluster.gpus_per_node);
  return {workers / ranks, ranks};
}

bool AlignsWithNodes(const Cluster& cluster, int workers, int count) {
  const int per_node = ShapeOf(cluster, workers).ranks_per_node;
  return per_node % count == 0 || count % per_node == 0;
}

}  // namespace psring
