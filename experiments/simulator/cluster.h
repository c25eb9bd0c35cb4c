// A network as it is described: what we do not own and want to know about. Pure.
//
// *node*: a machine with GPUs, one worker each; *card*: one of its links to the other nodes, full duplex.
// Rank r stands on node r / gpus_per_node. Rates in bytes a second of one direction.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct Cluster {
  std::string name;  // a preset's, a file's path, or empty
  int gpus_per_node = 1;
  double link_bytes_per_s = 0;  // of one card; 0: not said yet
  int cards_per_node = 1;
  double intra_bytes_per_s = 0;  // of one GPU to the others of its node; needed where gpus_per_node > 1
  double fraction = 0.9;         // of the links' rates that a program gets: headers, the protocol, the host
  double latency_s = 25e-6;      // a message between nodes, software included
  double intra_latency_s = 5e-6;
  double oversubscription = 1;  // cards' rates together over what the fabric between nodes carries
  int rings = 1;  // rings side by side, each with its part of the buffer: so many cards are used at once
  double add_s_per_byte = 1e-12;             // a worker adding what it receives. V100: 83.9 MB in 85 us
  double server_add_s_per_byte = 0.1e-9;     // a server adding a gradient: one core, or a GPU's figure
  double server_update_s_per_byte = 0.1e-9;  // its optimizer's step, once an update
  double worker_update_s_per_byte = 0;       // a worker's own one, bucket by bucket behind an all-reduce
  double socket_bytes = 0;  // that a connection between nodes holds: neither end waits for the other
  double burst_bytes = 0;   // that a card passes after a pause as if it had no limit: a shaper's token bucket

  bool operator==(const Cluster&) const = default;
};

struct ClusterPreset {
  Cluster cluster;
  std::string summary;
};
const std::vector<ClusterPreset>& ClusterPresets();

// A preset's name, or the path of a JSON file (what holds a '/' or ends in ".json"):
//   {"gpus_per_node": 8, "link": "100gbit", "cards_per_node": 4, "intra": "1200gbit", "fraction": 0.9,
//    "latency_us": 25, "intra_latency_us": 5, "oversubscription": 1, "rings": 4,
//    "add_s_per_byte": 1e-12, "server_add_s_per_byte": 1e-10, "server_update_s_per_byte": 1e-10,
//    "worker_update_s_per_byte": 0, "socket_bytes": 0, "burst_bytes": 0}
// All but link are optional. NotFound lists the presets; InvalidArgument names the field.
absl::StatusOr<Cluster> LoadCluster(const std::string& name_or_path);
absl::StatusOr<Cluster> ClusterFromJson(const std::string& name, const std::string& text);

// InvalidArgument in one line: no link, no intra where a node has several GPUs, figures out of range.
absl::Status CheckCluster(const Cluster& cluster);
// And workers that do not fill its nodes: fewer than one node's GPUs stand on one node; else they must be a
// multiple.
absl::Status CheckWorkers(const Cluster& cluster, int workers);

// A card's speed while a burst lasts, against its own: what two cores move from one process to another.
double FullSpeed(const Cluster& cluster);

// How `workers` stand on it.
struct Shape {
  int nodes, ranks_per_node;
};
Shape ShapeOf(const Cluster& cluster, int workers);

}  // namespace psring
