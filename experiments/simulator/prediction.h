// From a question (which model, which cluster, which strategies) to simulated steps. Pure.
//
// All-reduces: buckets go one after the other, each as long as its collective takes on the cluster
// (simulator/collective.h), and none before the slowest rank's gradient is ready; a bucket's update stands
// behind it, before the next one. Servers: simulator/servers.h.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "common/workloads/workload.h"
#include "experiments/simulator/cluster.h"
#include "experiments/simulator/servers.h"
#include "experiments/theory/catalog.h"
#include "experiments/theory/cost_model.h"

namespace psring {

struct PredictOptions {
  BucketSizes buckets;
  ServerPlace place = ServerPlace::kRank0;
  bool pipelined = true;
  bool align_steps =
      false;  // all workers begin every step together; then a step is from there to a worker's end
  double late_s =
      0;  // collectives: by how much the slowest worker's gradient is later than the mean's, measured
  uint64_t seed = 1;
  double wire_part = 1;  // of a gradient's bytes that travel: 1/2 in 16 bits
  bool clips = false;    // all updates wait for the norm of the whole gradient
  Delays delays;         // times that a live run sleeps; of its steps `first_step` on, `steps` of them
  int64_t first_step = 0;
  int steps = 0;  // 0: enough
};

// One point of the question.
struct PredictCase {
  StrategyInfo strategy;
  int workers = 1;
  int servers = 0;  // 0: the strategy has none
};

// Times in s, of one worker's mean step.
struct Prediction {
  double step = 0, compute = 0, exposed = 0, busy = 0, wait = 0;
  double update = 0;         // of the workers' own updates, whether or not anything waits for them
  double samples_per_s = 0;  // of all workers
  double staleness_mean = -1, staleness_max = -1;  // below 0: none
  double dropped_share = 0;                        // spare workers: of all steps
  double tx_bytes = 0, rx_bytes = 0,
         server_bytes = 0;  // payload a step: of a worker on average, of all servers together
  std::string limit;        // what the step is made of, or waits for: "computing", "links between nodes", ...
  double limit_part = 0;    // how much of the communication's time that works
  std::string method;       // "simulated", or "theory" where the schedule is too large to simulate
};

// InvalidArgument: what the simulator cannot do, in one line.
absl::Status CheckStrategy(const StrategyInfo& strategy);

class Predictor {
 public:
  Predictor(Workload workload, const PredictOptions& options);

  const Workload& workload() const { return workload_; }
  const PredictOptions& options() const { return options_; }
  size_t buckets() const { return bucket_bytes_.size(); }

  absl::StatusOr<Prediction> Predict(const PredictCase& point, const Cluster& cluster);

  // Seconds of one exchange of `bytes` in one piece, nothing computed beside it.
  absl::StatusOr<double> ExchangeSeconds(const PredictCase& point, const Cluster& cluster,
                                         double bytes) const;

 private:
  struct Cost {
    double seconds, mean;  // until the last rank is done, until one is on average
    double card, intra, fabric, adding;
    bool theory;
  };
  // `tokens`: what is left of a burst when it begins.
  absl::StatusOr<Cost> CollectiveCost(const std::string& algorithm, int workers, const Cluster& cluster,
                                      double bytes, double tokens) const;
  absl::StatusOr<std::vector<Cost>> BucketCosts(const PredictCase& point, const Cluster& cluster) const;
  absl::StatusOr<Prediction> AllReduce(const PredictCase& point, const Cluster& cluster) const;
  absl::StatusOr<Prediction> Servers(const PredictCase& point, const Cluster& cluster) const;

  Workload workload_;
  PredictOptions options_;
  std::vector<double> bucket_bytes_, ready_s_;
};

}  // namespace psring
