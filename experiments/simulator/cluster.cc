#include "experiments/simulator/cluster.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/units.h"
#include "common/io/files.h"
#include "common/io/json_object.h"

namespace psring {
namespace {

constexpr double kGbit = 1e9 / 8;
constexpr double kMaxRate = 1e14 / 8;  // bytes/s, as ParseBitRate allows
constexpr int kMaxGpus = 1024, kMaxCards = 64, kMaxRings = 64;
constexpr double kMaxNumber = 1e12;
constexpr size_t kMaxRateBytes = 64;

absl::Status Wrong(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("cluster ", name, ": ", what));
}

// Rates are from the vendors' data sheets; latencies are typical.
std::vector<ClusterPreset> MakePresets() {
  const Cluster dgx{.name = "dgx-h100",
                    .gpus_per_node = 8,
                    .link_bytes_per_s = 400 * kGbit,
                    .cards_per_node = 8,
                    .intra_bytes_per_s = 3600 * kGbit,
                    .latency_s = 8e-6,
                    .intra_latency_s = 3e-6,
                    .rings = 8,
                    .add_s_per_byte = 0.6e-12};
  const Cluster p3dn{
      .name = "p3dn", .gpus_per_node = 8, .link_bytes_per_s = 100 * kGbit, .intra_bytes_per_s = 1200 * kGbit};
  const Cluster pcie{
      .name = "8x10gbe", .gpus_per_node = 8, .link_bytes_per_s = 10 * kGbit, .intra_bytes_per_s = 80 * kGbit};
  std::vector<ClusterPreset> presets;
  presets.push_back({dgx, "8 H100 with NVLink (450 GB/s), 8 cards of 400 Gbit/s"});
  presets.push_back({p3dn, "8 V100 with NVLink (150 GB/s), one card of 100 Gbit/s"});
  presets.push_back({pcie, "8 GPUs on PCIe 3 (10 GB/s), one card of 10 Gbit/s"});
  return presets;
}

}  // namespace

const std::vector<ClusterPreset>& ClusterPresets() {
  static const auto& presets = *new std::vector<ClusterPreset>(MakePresets());
  return presets;
}

absl::StatusOr<Cluster> ClusterFromJson(const std::string& name, const std::string& text) {
  PSRING_ASSIGN_OR_RETURN(const JsonObject json,
                          JsonObject::Parse(text, kMaxTextBytes, absl::StrCat("cluster ", name)));
  Cluster cluster{.name = name};
  const std::map<std::string, double*> rates = {{"link", &cluster.link_bytes_per_s},
                                                {"intra", &cluster.intra_bytes_per_s},
                                                {"connection", &cluster.connection_bytes_per_s}};
  struct Count {
    int* value;
    int most;
  };
  const std::map<std::string, Count> counts = {{"gpus_per_node", {&cluster.gpus_per_node, kMaxGpus}},
                                               {"cards_per_node", {&cluster.cards_per_node, kMaxCards}},
                                               {"rings", {&cluster.rings, kMaxRings}}};
  const std::map<std::string, double*> numbers = {
      {"fraction", &cluster.fraction},
      {"latency_us", &cluster.latency_s},
      {"intra_latency_us", &cluster.intra_latency_s},
      {"oversubscription", &cluster.oversubscription},
      {"add_s_per_byte", &cluster.add_s_per_byte},
      {"server_add_s_per_byte", &cluster.server_add_s_per_byte},
      {"server_update_s_per_byte", &cluster.server_update_s_per_byte},
      {"server_worker_s_per_byte", &cluster.server_worker_s_per_byte},
      {"worker_update_s_per_byte", &cluster.worker_update_s_per_byte},
      {"sender_loss", &cluster.sender_loss},
      {"node_loss", &cluster.node_loss},
      {"barrier_us", &cluster.barrier_s},
      {"socket_bytes", &cluster.socket_bytes},
      {"burst_bytes", &cluster.burst_bytes}};
  for (const std::string& key : json.Keys()) {
    if (const auto rate = rates.find(key); rate != rates.end()) {
      PSRING_ASSIGN_OR_RETURN(const std::string text_of_rate, json.Text(key.c_str(), kMaxRateBytes));
      const absl::StatusOr<double> bits = ParseBitRate(text_of_rate);
      if (!bits.ok()) return json.Error(key, std::string(bits.status().message()));
      *rate->second = *bits / 8;
    } else if (const auto count = counts.find(key); count != counts.end()) {
      PSRING_ASSIGN_OR_RETURN(*count->second.value, json.WholeNumber(key.c_str(), 1, count->second.most));
    } else if (const auto number = numbers.find(key); number != numbers.end()) {
      PSRING_ASSIGN_OR_RETURN(const double value, json.Number(key.c_str(), 0, kMaxNumber));
      *number->second = value * (absl::EndsWith(key, "_us") ? 1e-6 : 1);
    } else if (key != "name") {
      return json.UnknownField(key);
    }
  }
  if (absl::Status status = CheckCluster(cluster); !status.ok()) {
    return Wrong(name, std::string(status.message()));
  }
  return cluster;
}

absl::StatusOr<Cluster> LoadCluster(const std::string& name_or_path) {
  std::vector<std::string> names;
  for (const ClusterPreset& preset : ClusterPresets()) {
    if (name_or_path == preset.cluster.name) return preset.cluster;
    names.push_back(preset.cluster.name);
  }
  if (!absl::StrContains(name_or_path, '/') && !absl::EndsWith(name_or_path, ".json")) {
    return absl::NotFoundError(absl::StrCat("unknown cluster '", name_or_path, "'; use ",
                                            absl::StrJoin(names, ", "),
                                            " or the path of a JSON file (./mine.json)"));
  }
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(name_or_path));
  return ClusterFromJson(name_or_path, text);
}

absl::Status CheckCluster(const Cluster& cluster) {
  const auto wrong = [](const auto&... what) { return absl::InvalidArgumentError(absl::StrCat(what...)); };
  for (const auto& [name, rate] : {std::pair("link", cluster.link_bytes_per_s),
                                   {"intra", cluster.intra_bytes_per_s},
                                   {"connection", cluster.connection_bytes_per_s}}) {
    if (!(rate >= 0 && rate <= kMaxRate)) {
      return wrong(name, " is ", rate, " bytes/s; it must be between 0 and ", kMaxRate);
    }
  }
  if (cluster.link_bytes_per_s <= 0)
    return wrong("the rate of the links is missing; use --link 25gbit or --cluster");
  if (cluster.gpus_per_node < 1 || cluster.gpus_per_node > kMaxGpus) {
    return wrong("gpus_per_node is ", cluster.gpus_per_node, "; it must be 1 to ", kMaxGpus);
  }
  if (cluster.gpus_per_node > 1 && cluster.intra_bytes_per_s <= 0) {
    return wrong("nodes of ", cluster.gpus_per_node,
                 " GPUs need the rate of the links inside a node; use --intra 300gbit");
  }
  if (cluster.cards_per_node < 1 || cluster.cards_per_node > kMaxCards) {
    return wrong("cards_per_node is ", cluster.cards_per_node, "; it must be 1 to ", kMaxCards);
  }
  if (cluster.rings < 1 || cluster.rings > kMaxRings)
    return wrong("rings is ", cluster.rings, "; it must be 1 to ", kMaxRings);
  if (!(cluster.fraction > 0 && cluster.fraction <= 1)) {
    return wrong("fraction is ", cluster.fraction, "; it must be above 0 and at most 1");
  }
  if (!(cluster.oversubscription >= 1 && cluster.oversubscription <= 1000)) {
    return wrong("oversubscription is ", cluster.oversubscription, "; it must be 1 to 1000");
  }
  for (const double seconds :
       {cluster.latency_s, cluster.intra_latency_s, cluster.add_s_per_byte, cluster.server_add_s_per_byte,
        cluster.server_update_s_per_byte, cluster.server_worker_s_per_byte, cluster.worker_update_s_per_byte,
        cluster.barrier_s}) {
    if (!(seconds >= 0 && seconds < 1))
      return wrong("a latency or a time per byte is ", seconds, " s; it must be at least 0 and below 1");
  }
  for (const auto& [name, loss] :
       {std::pair("sender_loss", cluster.sender_loss), std::pair("node_loss", cluster.node_loss)}) {
    if (!(loss >= 0 && loss <= 10)) return wrong(name, " is ", loss, "; it must be 0 to 10");
  }
  for (const auto& [name, bytes] :
       {std::pair("burst_bytes", cluster.burst_bytes), std::pair("socket_bytes", cluster.socket_bytes)}) {
    if (!(bytes >= 0 && bytes < 1e12))
      return wrong(name, " is ", bytes, "; it must be at least 0 and below 1e12");
  }
  return absl::OkStatus();
}

double FullSpeed(const Cluster& cluster) {
  constexpr double kProcessToProcess = 1e9;  // bytes/s
  return std::max(kProcessToProcess, 2 * cluster.link_bytes_per_s * cluster.fraction);
}

absl::Status CheckWorkers(const Cluster& cluster, int workers) {
  if (workers < 1) return absl::InvalidArgumentError(absl::StrCat(workers, " workers; at least 1 is needed"));
  if (workers <= cluster.gpus_per_node || workers % cluster.gpus_per_node == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      workers, " workers do not fill nodes of ", cluster.gpus_per_node, " GPUs; use a multiple, such as ",
      (workers / cluster.gpus_per_node + 1) * cluster.gpus_per_node, ", or another --gpus_per_node"));
}

Shape ShapeOf(const Cluster& cluster, int workers) {
  const int ranks = std::min(workers, cluster.gpus_per_node);
  return {workers / ranks, ranks};
}

}  // namespace psring
