// The description of a network to simulate. Pure.
//
// *node*: a machine with GPUs, one worker per GPU; *card*: one of its network interfaces, full duplex. Rank r
// is on node r / gpus_per_node. Rates are bytes/s in one direction.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct Cluster {
  std::string name;  // of a preset, or a file's path, or empty
  int gpus_per_node = 1;
  double link_bytes_per_s = 0;  // of one card; 0: not given yet
  int cards_per_node = 1;
  double intra_bytes_per_s = 0;  // between one GPU and the rest of its node; required if gpus_per_node > 1
  double fraction = 0.9;         // share of the links' rates left after headers, protocol and host costs
  double latency_s = 25e-6;      // of a message between nodes, including software
  double intra_latency_s = 5e-6;
  double oversubscription = 1;    // sum of the cards' rates over the rate of the fabric between nodes
  int rings = 1;                  // parallel rings, each for a part of the buffer; each can use another card
  double add_s_per_byte = 1e-12;  // a worker adds received bytes. V100: 83.9 MB in 85 us
  double server_add_s_per_byte = 0.1e-9;     // a server adds a gradient: one core, or a GPU
  double server_update_s_per_byte = 0.1e-9;  // its optimizer, once per update
  // A server's host receives, copies and sends: per byte and worker, for pushes and for pulls. (The update is
  // once for all workers.)
  double server_worker_s_per_byte = 0;
  double worker_update_s_per_byte = 0;  // a worker's optimizer, for each bucket after its all-reduce
  double socket_bytes = 0;  // buffer of a connection between nodes: up to it, neither end waits for the other
  double connection_bytes_per_s = 0;  // limit of one TCP connection between nodes; 0: none
  double node_loss = 0;               // see WithNodes
  double barrier_s = 0;               // one round of the barrier that ends a synchronous step; 0: no barrier
  double burst_bytes = 0;  // a card passes them at full speed after a pause (a shaper's token bucket)

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
//    "server_worker_s_per_byte": 0, "worker_update_s_per_byte": 0, "connection": "5gbit", "node_loss": 0,
//    "barrier_us": 0, "socket_bytes": 0, "burst_bytes": 0}
// Only link is required. NotFound lists the presets; InvalidArgument names the field.
absl::StatusOr<Cluster> LoadCluster(const std::string& name_or_path);
absl::StatusOr<Cluster> ClusterFromJson(const std::string& name, const std::string& text);

// InvalidArgument: no link rate, no intra rate with several GPUs per node, or a value out of range.
absl::Status CheckCluster(const Cluster& cluster);
// InvalidArgument: the workers do not fill the nodes. Up to gpus_per_node workers share one node; more must
// be a multiple of gpus_per_node.
absl::Status CheckWorkers(const Cluster& cluster, int workers);

// A card's bytes/s during a burst: the larger of 1e9 (between two processes of one host) and twice the card's
// effective rate.
double FullSpeed(const Cluster& cluster);

// The same cluster with the cards' rate reduced for `nodes` communicating nodes: flows collide in the
// switches, which leaves 1/(1 + loss (log2 n - 1)) (flows hashed to paths: Raab & Steger 1998 bound the load
// of the fullest path by O(log n)). The bus bandwidths of a ring on two numbers of nodes determine
// `node_loss`.
Cluster WithNodes(Cluster cluster, int nodes);

// ceil(log2 n) rounds of the dissemination barrier (Hensgen, Finkel & Manber 1988).
double BarrierSeconds(const Cluster& cluster, int nodes);

// The placement of `workers`.
struct Shape {
  int nodes, ranks_per_node;
};
Shape ShapeOf(const Cluster& cluster, int workers);
// Whether groups of `count` adjacent workers fill nodes, or nodes hold whole groups.
bool AlignsWithNodes(const Cluster& cluster, int workers, int count);

}  // namespace psring
