// Simulated steps of a strategy for a workload on a cluster. Pure.
//
// All-reduces: buckets are exchanged one after another. An exchange starts when the slowest rank's gradient
// is ready, takes the time of its collective on the cluster (simulator/collective.h), and is followed by the
// bucket's update. With --dp_shard that is an exchange of the workers of one copy and then an all-reduce of
// each shard over the copies, of all shards at once. Servers: simulator/servers.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/workloads/workload.h"
#include "experiments/simulator/cluster.h"
#include "experiments/simulator/collective.h"
#include "experiments/simulator/servers.h"
#include "trainer/strategies/table/cost_model.h"
#include "trainer/strategies/table/strategy_table.h"

namespace psring {

struct PredictOptions {
  BucketSizes buckets;
  ServerPlace place = ServerPlace::kRank0;
  bool pipelined = true;
  bool align_steps = false;  // all workers start each step together; a step ends when the worker is done
  double late_s = 0;         // collectives: measured delay of the slowest worker's gradient after the mean
  uint64_t seed = 1;
  double wire_part = 1;            // bytes sent, relative to float32
  bool reshards = true;            // --reshard forward
  int dp_shard = 0;                // --dp_shard
  bool clips = false;              // all updates wait for the norm of the whole gradient
  bool local_aggregation = false;  // servers: the workers of a machine push one sum (local_exchange.h)
  // Of the computing time between machines; synchronous steps wait for the slowest.
  ComputeVariation variation;
  Delays delays;  // those of a live run in `steps` steps from `first_step`
  int64_t first_step = 0;
  int steps = 0;  // 0: chosen by the simulator
};

// One case to predict.
struct PredictCase {
  StrategyRow strategy;
  int workers = 1;
  int servers = 0;  // 0: the strategy has none
};

// Times in seconds, for one worker's mean step.
struct Prediction {
  double step = 0, compute = 0, exposed = 0, busy = 0, wait = 0;
  double update = 0;                               // of the worker's own optimizer, exposed or not
  double samples_per_s = 0;                        // sum over workers
  double staleness_mean = -1, staleness_max = -1;  // in updates; below 0: unknown or none
  double dropped_share = 0;                        // spare workers: dropped steps / all steps
  // Servers: of all samples, of the worker with the most (of a machine with local aggregation).
  double most_share = 0;
  // Payload per step: of a worker on average, of all servers together.
  double tx_bytes = 0, rx_bytes = 0, server_bytes = 0;
  // Expected computing time of the slowest machine in a synchronous step, relative to the mean.
  double slowest = 1;
  std::string limit;                 // what limits the step: "computing", "links between nodes", ...
  double limit_part = 0;             // the share of the communication time during which `limit` is busy
  std::string method = "simulated";  // or "theory" if the schedule is too large to simulate
};

// InvalidArgument: the simulator does not support the strategy.
absl::Status CheckStrategy(const StrategyRow& strategy);

// One all-reduce of `bytes` by the case's workers. `tokens`: as in SimulateCollective. A schedule that is too
// large to simulate has the time of theory.
absl::StatusOr<CollectiveTime> AllReduceTime(const PredictCase& point, const Cluster& cluster, double bytes,
                                             std::optional<double> tokens = std::nullopt);
// The bytes that a worker sends in it, on average; as many are received.
absl::StatusOr<double> AllReducePayload(const PredictCase& point, const Cluster& cluster, double bytes);

class Predictor {
 public:
  Predictor(Workload workload, const PredictOptions& options);

  const Workload& workload() const { return workload_; }
  const PredictOptions& options() const { return options_; }
  size_t buckets() const { return bucket_bytes_.size(); }

  absl::StatusOr<Prediction> Predict(const PredictCase& point, const Cluster& cluster) const;

  // Seconds of one exchange of `bytes`, without computation.
  absl::StatusOr<double> ExchangeSeconds(const PredictCase& point, const Cluster& cluster,
                                         double bytes) const;

 private:
  struct BucketCost {
    CollectiveTime time;
    double gather_s = 0;  // part of it: half of the exchange of one copy
  };
  absl::StatusOr<BucketCost> Exchange(const PredictCase& point, const Cluster& cluster, double bytes,
                                      double tokens) const;
  absl::StatusOr<std::vector<BucketCost>> BucketCosts(const PredictCase& point, const Cluster& cluster) const;
  Prediction WithoutExchange(const PredictCase& point) const;
  absl::StatusOr<Prediction> AllReduce(const PredictCase& point, const Cluster& cluster) const;
  absl::StatusOr<Prediction> Servers(const PredictCase& point, const Cluster& cluster) const;

  Workload workload_;
  PredictOptions options_;
  std::vector<double> bucket_bytes_, ready_s_;
};

}  // namespace psring
