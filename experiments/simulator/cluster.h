// The description of a network to simulate. Pure.
//
// *node*: a machine with GPUs, one worker each; *card*: one of its links to the other nodes, full duplex.
// Rank r is on node r / gpus_per_node. Rates are bytes/s in one direction.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct Cluster {
  std::string name;  // a preset's, a file's path, or empty
  int gpus_per_node = 1;
  double link_bytes_per_s = 0;  // of one card; 0: not given yet
  int cards_per_node = 1;
  double intra_bytes_per_s = 0;  // from one GPU to the others of its node; required if gpus_per_node > 1
  double fraction = 0.9;         // share of the links' rates that a program gets: headers, protocol, host
  double latency_s = 25e-6;      // of a message between nodes, including software
  double intra_latency_s = 5e-6;
  double oversubscription = 1;    // sum of the cards' rates over the rate of the fabric between nodes
  int rings = 1;                  // parallel rings, each with its part of the buffer; each can use a card
  double add_s_per_byte = 1e-12;  // a worker that adds received bytes. V100: 83.9 MB in 85 us
  double server_add_s_per_byte = 0.1e-9;     // a server that adds a gradient: one core, or a GPU
  double server_update_s_per_byte = 0.1e-9;  // its optimizer, once per update
  // A server's host for each byte that a worker pushes or pulls (receive, copy, send): unlike the update, it
  // is not shared by the workers.
  double server_worker_s_per_byte = 0;
  double worker_update_s_per_byte = 0;  // a worker's optimizer, for each bucket after its all-reduce
  double socket_bytes = 0;  // buffered by a connection between nodes, so that neither end waits for the other
  double connection_bytes_per_s = 0;      // most of one TCP connection between nodes; 0: no cap
  double sender_loss = 0, node_loss = 0;  // simulator/contention.h
  double barrier_s = 0;    // one round of the barrier that ends a synchronous step; 0: there is none
  double burst_bytes = 0;  // that a card passes at full speed after a pause: a shaper's token bucket

  bool operator==(const Cluster&) const = default;
};

struct ClusterPreset {
  Cluster cluster;
  std::string summary;
};
const std::vector<ClusterPreset>& ClusterPresets();

// The name of a preset, or the path of a JSON file (contains '/' or ends in ".json"):
//   {"gpus_per_node": 8, "link": "100gbit", "cards_per_node": 4, "intra": "1200gbit", "fraction": 0.9,
//    "latency_us": 25, "intra_latency_us": 5, "oversubscription": 1, "rings": 4,
//    "add_s_per_byte": 1e-12, "server_add_s_per_byte": 1e-10, "server_update_s_per_byte": 1e-10,
//    "server_worker_s_per_byte": 0, "worker_update_s_per_byte": 0, "connection": "5gbit", "sender_loss": 0,
//    "node_loss": 0, "barrier_us": 0, "socket_bytes": 0, "burst_bytes": 0}
// Only link is required. NotFound lists the presets; InvalidArgument names the field.
absl::StatusOr<Cluster> LoadCluster(const std::string& name_or_path);
absl::StatusOr<Cluster> ClusterFromJson(const std::string& name, const std::string& text);

// InvalidArgument in one line: no link, no intra with several GPUs per node, values out of range.
absl::Status CheckCluster(const Cluster& cluster);
// Likewise: workers that do not fill the nodes. Fewer workers than GPUs per node share one node; more must be
// a multiple.
absl::Status CheckWorkers(const Cluster& cluster, int workers);

// A card's bytes/s during a burst: the rate between two processes of one host.
double FullSpeed(const Cluster& cluster);

// The placement of `workers`.
struct Shape {
  int nodes, ranks_per_node;
};
Shape ShapeOf(const Cluster& cluster, int workers);

}  // namespace psring
