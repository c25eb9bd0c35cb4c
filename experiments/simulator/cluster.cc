#include "experiments/simulator/cluster.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/bit_rate.h"
#include "common/base/check.h"
#include "common/io/files.h"

namespace psring {
namespace {

using Json = nlohmann::json;

constexpr double kGbit = 1e9 / 8;

absl::Status Wrong(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("cluster ", name, ": ", what));
}

// From the vendors' data sheets; latencies are of the usual size.
std::vector<ClusterPreset> MakePresets() {
  std::vector<ClusterPreset> presets;
  Cluster dgx{.gpus_per_node = 8};
  dgx.name = "dgx-h100";
  dgx.link_bytes_per_s = 400 * kGbit;
  dgx.cards_per_node = dgx.rings = 8;
  dgx.intra_bytes_per_s = 3600 * kGbit;
  dgx.latency_s = 8e-6;
  dgx.intra_latency_s = 3e-6;
  dgx.add_s_per_byte = 0.6e-12;
  presets.push_back({dgx, "8 H100 with NVLink (450 GB/s), 8 cards of 400 Gbit/s"});
  Cluster p3dn{.gpus_per_node = 8};
  p3dn.name = "p3dn";
  p3dn.link_bytes_per_s = 100 * kGbit;
  p3dn.intra_bytes_per_s = 1200 * kGbit;
  presets.push_back({p3dn, "8 V100 with NVLink (150 GB/s), one card of 100 Gbit/s"});
  Cluster pcie{.gpus_per_node = 8};
  pcie.name = "8x10gbe";
  pcie.link_bytes_per_s = 10 * kGbit;
  pcie.intra_bytes_per_s = 80 * kGbit;
  presets.push_back({pcie, "8 GPUs on PCIe 3 (10 GB/s), one card of 10 Gbit/s"});
  return presets;
}

}  // namespace

const std::vector<ClusterPreset>& ClusterPresets() {
  static const auto& presets = *new std::vector<ClusterPreset>(MakePresets());
  return presets;
}

absl::StatusOr<Cluster> ClusterFromJson(const std::string& name, const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return Wrong(name, "it is no JSON object");
  Cluster cluster{.name = name};
  const auto rate = [&](const Json& value, double& to) -> absl::Status {
    if (!value.is_string()) return absl::InvalidArgumentError("it must be a text such as \"25gbit\"");
    PSRING_ASSIGN_OR_RETURN(const double bits, ParseBitRate(value.get<std::string>()));
    to = bits / 8;
    return absl::OkStatus();
  };
  const auto number = [&](const Json& value, double& to, double unit) -> absl::Status {
    if (!value.is_number()) return absl::InvalidArgumentError("it must be a number");
    to = value.get<double>() * unit;
    return absl::OkStatus();
  };
  const auto whole = [&](const Json& value, int& to) -> absl::Status {
    if (!value.is_number_integer()) return absl::InvalidArgumentError("it must be a whole number");
    to = value.get<int>();
    return absl::OkStatus();
  };
  for (const auto& [key, value] : json.items()) {
    absl::Status status;
    if (key == "gpus_per_node")
      status = whole(value, cluster.gpus_per_node);
    else if (key == "link")
      status = rate(value, cluster.link_bytes_per_s);
    else if (key == "cards_per_node")
      status = whole(value, cluster.cards_per_node);
    else if (key == "intra")
      status = rate(value, cluster.intra_bytes_per_s);
    else if (key == "fraction")
      status = number(value, cluster.fraction, 1);
    else if (key == "latency_us")
      status = number(value, cluster.latency_s, 1e-6);
    else if (key == "intra_latency_us")
      status = number(value, cluster.intra_latency_s, 1e-6);
    else if (key == "oversubscription")
      status = number(value, cluster.oversubscription, 1);
    else if (key == "rings")
      status = whole(value, cluster.rings);
    else if (key == "add_s_per_byte")
      status = number(value, cluster.add_s_per_byte, 1);
    else if (key == "server_add_s_per_byte")
      status = number(value, cluster.server_add_s_per_byte, 1);
    else if (key == "server_update_s_per_byte")
      status = number(value, cluster.server_update_s_per_byte, 1);
    else if (key == "worker_update_s_per_byte")
      status = number(value, cluster.worker_update_s_per_byte, 1);
    else if (key == "socket_bytes")
      status = number(value, cluster.socket_bytes, 1);
    else if (key == "burst_bytes")
      status = number(value, cluster.burst_bytes, 1);
    else if (key != "name")
      return Wrong(name, absl::StrCat("it has no field '", key, "'"));
    if (!status.ok()) return Wrong(name, absl::StrCat(key, ": ", status.message()));
  }
  if (absl::Status status = CheckCluster(cluster); !status.ok())
    return Wrong(name, std::string(status.message()));
  return cluster;
}

absl::StatusOr<Cluster> LoadCluster(const std::string& name_or_path) {
  std::vector<std::string> names;
  for (const ClusterPreset& preset : ClusterPresets()) {
    if (name_or_path == preset.cluster.name) return preset.cluster;
    names.push_back(preset.cluster.name);
  }
  if (!absl::StrContains(name_or_path, '/') && !absl::EndsWith(name_or_path, ".json")) {
    return absl::NotFoundError(absl::StrCat("unknown cluster '", name_or_path,
                                            "'; there are: ", absl::StrJoin(names, ", "),
                                            ", or a file of your own (./mine.json)"));
  }
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(name_or_path));
  return ClusterFromJson(name_or_path, text);
}

absl::Status CheckCluster(const Cluster& cluster) {
  const auto wrong = [](const auto&... what) { return absl::InvalidArgumentError(absl::StrCat(what...)); };
  if (cluster.link_bytes_per_s <= 0)
    return wrong("the links' rate is missing; write --link 25gbit, or name a --cluster");
  if (cluster.gpus_per_node < 1 || cluster.gpus_per_node > 1024) {
    return wrong("gpus_per_node is ", cluster.gpus_per_node, "; it takes 1 to 1024");
  }
  if (cluster.gpus_per_node > 1 && cluster.intra_bytes_per_s <= 0) {
    return wrong("nodes of ", cluster.gpus_per_node,
                 " GPUs need the rate of the links inside; write --intra 300gbit");
  }
  if (cluster.cards_per_node < 1 || cluster.cards_per_node > 64) {
    return wrong("cards_per_node is ", cluster.cards_per_node, "; it takes 1 to 64");
  }
  if (cluster.rings < 1 || cluster.rings > 64) return wrong("rings is ", cluster.rings, "; it takes 1 to 64");
  if (!(cluster.fraction > 0 && cluster.fraction <= 1)) {
    return wrong("fraction is ", cluster.fraction, "; it takes above 0 to 1");
  }
  if (!(cluster.oversubscription >= 1 && cluster.oversubscription <= 1000)) {
    return wrong("oversubscription is ", cluster.oversubscription, "; it takes 1 to 1000");
  }
  for (const double seconds :
       {cluster.latency_s, cluster.intra_latency_s, cluster.add_s_per_byte, cluster.server_add_s_per_byte,
        cluster.server_update_s_per_byte, cluster.worker_update_s_per_byte}) {
    if (!(seconds >= 0 && seconds < 1))
      return wrong("a latency or a time a byte is ", seconds, " s; it takes 0 to below 1");
  }
  for (const auto& [name, bytes] :
       {std::pair("burst_bytes", cluster.burst_bytes), std::pair("socket_bytes", cluster.socket_bytes)}) {
    if (!(bytes >= 0 && bytes < 1e12)) return wrong(name, " is ", bytes, "; it takes 0 to below 1e12");
  }
  return absl::OkStatus();
}

double FullSpeed(const Cluster& cluster) {
  constexpr double kProcessToProcess = 1e9;  // bytes/s
  return std::max(kProcessToProcess, 2 * cluster.link_bytes_per_s * cluster.fraction);
}

absl::Status CheckWorkers(const Cluster& cluster, int workers) {
  if (workers < 1) return absl::InvalidArgumentError(absl::StrCat(workers, " workers; it takes at least 1"));
  if (workers <= cluster.gpus_per_node || workers % cluster.gpus_per_node == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      workers, " workers do not fill nodes of ", cluster.gpus_per_node, " GPUs; take a multiple, such as ",
      (workers / cluster.gpus_per_node + 1) * cluster.gpus_per_node, ", or another --gpus_per_node"));
}

Shape ShapeOf(const Cluster& cluster, int workers) {
  const int ranks = std::min(workers, cluster.gpus_per_node);
  return {workers / ranks, ranks};
}

}  // namespace psring
