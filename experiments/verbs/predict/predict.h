// psring predict: simulates training steps on other machines and networks, also of pipelines (--pp),
// and searches layouts (--layouts).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/translate.h"
#include "experiments/costs/machine_profile.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/progress.h"
#include "experiments/layouts/layout_price.h"
#include "experiments/simulator/pipeline.h"
#include "experiments/simulator/prediction.h"

namespace CLI {
class App;
}

namespace psring {

struct Manifest;

struct RawPredictFlags {
  std::string workload, strategies, servers = "1", workers;  // empty: the default, which depends on `pp`
  std::string cluster, link, intra, latency, intra_latency;
  std::string connection, barrier, device, network = "auto", system = "auto", calibrate, fit;
  std::optional<int> gpus_per_node, cards_per_node, rings;
  std::optional<double> fraction, oversubscription, server_add_ns, server_update_ns, server_worker_ns,
      node_loss, window_mb;
  std::string server_placement = "dedicated", ps_schedule = "pipelined", straggler = "none",
              jitter_ms = "none", overlap = "backward", wire = "float32", compute_varies = "none", profile,
              server_wire, out;
  double bucket_mb = 25, compute_speedup = 1, partition_mb = 0;
  bool local_aggregation = false, exchange_only = false, published = false;
  int batch = 0;
  uint64_t seed = 1;
  int pp = 0, micro_batches = 0;  // 0: not given
  std::string program, boundary, cuts;
  int copy_streams = 0;  // of 1 and 2; 0: not given
  std::string layouts, memory;
  bool sequence_parallel = false;
  int dp_shard = 0;              // not given
  std::string context_parallel;  // of --layouts; empty: not given
};

struct PredictFlags {
  Workload workload;
  std::vector<std::string> strategies;  // names, not yet checked
  std::vector<int> servers, workers;    // ascending, distinct
  bool servers_per_node = false;        // as many servers as machines with workers; `servers` is empty
  bool published = false;               // check the published systems instead
  Cluster cluster;
  PredictOptions options;
  double memory_bytes = 0;                // --layouts: of a device; 0: no layouts are searched
  bool sequence_parallel = false;         // --layouts
  LayoutChoice layouts = {};              // which --layouts considers
  std::optional<PipelineCase> pipeline;   // --pp; `workload` is then of one micro-batch
  std::optional<MachineProfile> profile;  // of a measured machine
  double rdma = 0;                        // RdmaShare, or as --network
  std::string system = "auto";            // source of the constants: auto, none, or a PublishedSystem's name
  std::set<std::string> given;            // constants set by flags, which override those of published systems
  std::optional<double> window_mb;        // of a TCP connection
  std::string calibrate;                  // a run's folder or its summary.csv; empty: predict
  std::string server_wire;                // of its servers: grpc or stream
  bool workload_given = false;
  std::vector<std::string> fitted;  // with calibrate; empty: those of the family
  std::vector<std::string> files;   // input files among the flags
  std::string out;
  std::vector<std::string> command_line;
};

CLI::App* AddPredict(CLI::App& app, RawPredictFlags& raw);

// InvalidArgument or NotFound, with a message of one line.
absl::StatusOr<PredictFlags> UnderstandPredict(const RawPredictFlags& raw,
                                               const std::vector<std::string>& command_line);

// Of a run that begins now, without its ID. NotFound: a program of psring.
absl::StatusOr<Manifest> BeginManifest(const PredictFlags& flags);

// Predicts every case, writes the run folder and prints the report. Returns the exit code.
int RunPredict(const PredictFlags& flags, const Interrupt& interrupt, Display& display);

}  // namespace psring
