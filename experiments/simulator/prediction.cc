#include "experiments/simulator/prediction.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "ring_worker/schedules/schedule_traffic.h"

namespace psring {
namespace {

constexpr int kDrawnSteps = 200;  // synchronous strategies with jitter

// If there are too many workers to simulate one by one: stragglers with one common factor become a group of
// the first workers.
void GroupStragglers(ServerRun& run) {
  if (!run.delays.jitter.is_zero()) return;
  std::set<double> factors;
  int slow = 0;
  for (const double factor : run.delays.slowness) {
    if (factor == 1) continue;
    factors.insert(factor);
    ++slow;
  }
  if (factors.size() != 1) return;
  run.slow_workers = slow;
  run.slowness = *factors.begin();
  run.delays.slowness.clear();
}

// Sets the limit: the resource that is busy for most of the communication time.
void NameLimit(const std::vector<std::pair<const char*, double>>& parts, Prediction& prediction) {
  const auto most = std::max_element(parts.begin(), parts.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  prediction.limit = most->first;
  prediction.limit_part = most->second;
  // If none is busy for half of the time, latency dominates.
  if (most->second < 0.5) {
    prediction.limit = "latency";
    prediction.limit_part = 1 - most->second;
  }
  if (prediction.exposed < 0.02 * prediction.step) prediction.limit = "computing";
}

// A mean step, if only this part of the steps exchanges.
Prediction MeanStep(const Prediction& exchanging, const Prediction& other, double part) {
  Prediction mean = exchanging;
  for (double Prediction::*const figure :
       {&Prediction::step, &Prediction::compute, &Prediction::exposed, &Prediction::busy, &Prediction::wait,
        &Prediction::update, &Prediction::tx_bytes, &Prediction::rx_bytes, &Prediction::server_bytes}) {
    mean.*figure = part * exchanging.*figure + (1 - part) * other.*figure;
  }
  mean.samples_per_s = 1 / (part / exchanging.samples_per_s + (1 - part) / other.samples_per_s);
  return mean;
}

// A worker's update of its part of a bucket of `bytes`.
double UpdateSeconds(const PredictCase& point, const ShardSplit& split, const Cluster& cluster,
                     double bytes) {
  return (point.strategy.shards_updates ? bytes / split.ranks : bytes) * cluster.worker_update_s_per_byte;
}

// An all-reduce of a part of a bucket's bytes in float32.
struct PartialExchange {
  PredictCase point;
  Cluster cluster;
  double part = 1;
};

// Of a bucket, in their order: with --dp_shard within a copy of the state, then over the copies of each
// shard, where the rings of the shards on a node share its cards.
std::vector<PartialExchange> ExchangesOf(const PredictCase& point, const Cluster& cluster,
                                         const PredictOptions& options) {
  const ShardSplit split = point.strategy.SplitOf(point.workers, options.dp_shard);
  std::vector<PartialExchange> exchanges = {
      {point, cluster, point.strategy.SentPart(options.wire_part, 1, options.reshards)}};
  if (split.copies == 1) return exchanges;
  exchanges.push_back({point, cluster, options.wire_part / split.ranks});
  exchanges[0].point.workers = split.ranks;
  exchanges[1].point.workers = split.copies;
  const int per_node = ShapeOf(cluster, point.workers).ranks_per_node;
  Cluster& seen = exchanges[1].cluster;
  seen.gpus_per_node = std::max(1, per_node / split.ranks);
  // Each has its part of every card, and may use as much of all cards as a single ring.
  const int sharing = std::min(split.ranks, per_node);
  seen.rings *= sharing;
  for (double Cluster::*const shared :
       {&Cluster::link_bytes_per_s, &Cluster::burst_bytes, &Cluster::connection_bytes_per_s}) {
    seen.*shared /= sharing;
  }
  return exchanges;
}

// The cluster as the machines with workers or dedicated servers load it.
Cluster Loaded(const PredictCase& point, const Cluster& cluster, ServerPlace place) {
  const int nodes = ShapeOf(cluster, point.workers).nodes;
  const bool dedicated = point.strategy.uses_servers && place == ServerPlace::kDedicated;
  return WithNodes(cluster, dedicated ? nodes + point.servers : nodes);
}

absl::StatusOr<std::unique_ptr<Schedule>> ScheduleOf(const PredictCase& point, const Cluster& cluster) {
  return MakeSchedule(
      point.strategy.algorithm, Collective::kAllReduce,
      {.ranks = point.workers, .ranks_per_node = ShapeOf(cluster, point.workers).ranks_per_node});
}

// The workers from the servers' perspective: with local aggregation, each machine is one worker, which uses
// all of the machine's cards.
struct ServerView {
  PredictCase point;
  Cluster cluster;
  MachineInside inside = {};
};
ServerView ViewOf(const PredictCase& point, const Cluster& cluster, bool local_aggregation) {
  ServerView view{point, cluster};
  const Shape shape = ShapeOf(cluster, point.workers);
  if (!local_aggregation || shape.ranks_per_node == 1) return view;
  view.point.workers = shape.nodes;
  view.cluster.gpus_per_node = view.cluster.cards_per_node = 1;
  view.cluster.link_bytes_per_s *= cluster.cards_per_node;
  view.cluster.burst_bytes *= cluster.cards_per_node;
  view.inside = {.workers = shape.ranks_per_node,
                 .bytes_per_s = cluster.intra_bytes_per_s,
                 .latency_s = cluster.intra_latency_s,
                 .add_s_per_byte = cluster.add_s_per_byte};
  return view;
}

// A machine is as slow as its slowest worker. InvalidArgument: random delays, which are per worker.
absl::StatusOr<Delays> DelaysOfMachines(const Delays& delays, int workers_per_machine) {
  if (!delays.jitter.is_zero()) {
    return absl::InvalidArgumentError(
        "random delays of single workers are not simulated with local aggregation; use --compute_varies, "
        "which varies between machines");
  }
  Delays machines{.seed = delays.seed};
  for (int worker = 0; worker < delays.slowness.size(); ++worker) {
    if (worker % workers_per_machine == 0) machines.slowness.push_back(1);
    machines.slowness.back() = std::max(machines.slowness.back(), delays.slowness[worker]);
  }
  return machines;
}

// Each machine adds one bucket after another before it pushes the sum, and shares the weights after its pull.
absl::Status AddLocalExchange(const MachineInside& inside, ServerRun& run) {
  PSRING_ASSIGN_OR_RETURN(run.delays, DelaysOfMachines(run.delays, inside.workers));
  double end = 0;
  for (size_t b = 0; b < run.bucket_bytes.size(); ++b) {
    const double bytes = run.bucket_bytes[b];
    end = run.ready_s[b] = std::max(end, run.ready_s[b]) + ReduceSeconds(inside, bytes);
    run.after_pull_s.push_back(GatherSeconds(inside, bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStrategy(const StrategyRow& strategy) {
  const auto wrong = [&](const std::string& why) {
    return absl::InvalidArgumentError(Tr("strategy $0 is not predicted: $1", strategy.name, why));
  };
  if (strategy.has_only_rows_on_servers()) {
    return wrong(Tr("a workload has no tables of rows, without which it is ring"));
  }
  if (strategy.uses_group) {
    if (FindSchedule(strategy.algorithm) != nullptr) return absl::OkStatus();
    return wrong(absl::StrCat("its library chooses the algorithm; name one of ours: ",
                              absl::StrJoin(AlgorithmsFor(Collective::kAllReduce), ", ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<CollectiveTime> AllReduceTime(const PredictCase& point, const Cluster& cluster, double bytes,
                                             std::optional<double> tokens) {
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Schedule> schedule, ScheduleOf(point, cluster));
  const absl::StatusOr<CollectiveTime> time =
      SimulateCollective(*schedule, cluster, bytes, Pipelining(), tokens);
  if (!absl::IsResourceExhausted(time.status())) return time;
  const std::optional<Scheme> scheme = SchemeOf(AllReduceRow(point.strategy.algorithm));
  if (!scheme) return time.status();
  // One link per rank: its share of the node's cards.
  const double link =
      cluster.link_bytes_per_s * cluster.fraction *
      std::min(1.0, double(cluster.cards_per_node) / ShapeOf(cluster, point.workers).ranks_per_node);
  const double seconds = ExchangeSeconds(
      {.scheme = *scheme, .workers = point.workers}, bytes,
      {.latency_s = cluster.latency_s, .bytes_per_s = link, .add_s_per_byte = cluster.add_s_per_byte});
  return CollectiveTime{.seconds = seconds, .mean_s = seconds, .card_busy_s = seconds};
}

absl::StatusOr<double> AllReducePayload(const PredictCase& point, const Cluster& cluster, double bytes) {
  if (std::optional<Scheme> scheme = SchemeOf(point.strategy); scheme) {
    scheme->per_step = 1;  // see MeanStep
    return PayloadBytesPerWorker({.scheme = *scheme, .workers = point.workers}, bytes);
  }
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Schedule> schedule, ScheduleOf(point, cluster));
  return TrafficOf(*schedule).MeanSent() * bytes;
}

Predictor::Predictor(Workload workload, const PredictOptions& options)
    : workload_(std::move(workload)), options_(options) {
  const std::vector<Bucket> buckets = PlanBuckets(LayoutOf(workload_), options_.buckets);
  for (const Bucket& bucket : buckets) bucket_bytes_.push_back(4.0 * bucket.count);
  for (const double ms : BucketReadyMs(workload_, buckets)) ready_s_.push_back(ms / 1e3);
}

// Of a bucket of so many bytes in float32. `tokens`: as in SimulateCollective.
absl::StatusOr<Predictor::BucketCost> Predictor::Exchange(const PredictCase& point, const Cluster& cluster,
                                                          double bytes, double tokens) const {
  std::vector<CollectiveTime> times;
  for (const PartialExchange& of : ExchangesOf(point, cluster, options_)) {
    const double seen_tokens = std::min(tokens, of.cluster.burst_bytes * of.cluster.cards_per_node);
    PSRING_ASSIGN_OR_RETURN(times.emplace_back(),
                            AllReduceTime(of.point, of.cluster, of.part * bytes, seen_tokens));
  }
  return BucketCost{times.size() > 1 ? Both(times[0], times[1]) : times[0], times[0].seconds / 2};
}

// By bucket, without late ranks. If a bucket waits for the previous one, the burst refills only during the
// update between them.
absl::StatusOr<std::vector<Predictor::BucketCost>> Predictor::BucketCosts(const PredictCase& point,
                                                                          const Cluster& cluster) const {
  const ShardSplit split = point.strategy.SplitOf(point.workers, options_.dp_shard);
  const double all = cluster.burst_bytes * cluster.cards_per_node;
  const double rate = cluster.link_bytes_per_s * cluster.fraction * cluster.cards_per_node;
  std::map<std::pair<double, double>, BucketCost> known;  // by bytes and tokens
  std::vector<BucketCost> costs;
  double end = -INFINITY;  // of the previous bucket
  for (size_t b = 0; b < bucket_bytes_.size(); ++b) {
    const double ready = workload_.forward_ms / 1e3 + ready_s_[b];
    const double update =
        b == 0 || options_.clips ? 0 : UpdateSeconds(point, split, cluster, bucket_bytes_[b - 1]);
    const double pause = std::max(ready - end, update);
    const std::pair key(bucket_bytes_[b], std::min(all, pause * rate));
    if (!known.contains(key)) {
      PSRING_ASSIGN_OR_RETURN(known[key], Exchange(point, cluster, key.first, key.second));
    }
    costs.push_back(known[key]);
    end = std::max(ready, end + update) + costs.back().time.seconds;
  }
  return costs;
}

absl::StatusOr<Prediction> Predictor::AllReduce(const PredictCase& point, const Cluster& cluster) const {
  const double n = point.workers;
  const ShardSplit split = point.strategy.SplitOf(point.workers, options_.dp_shard);
  if (split.copies > 1 && !AlignsWithNodes(cluster, point.workers, split.ranks)) {
    return absl::InvalidArgumentError(Tr("--dp_shard $0 and nodes of $1 workers: neither divides the other",
                                         split.ranks, ShapeOf(cluster, point.workers).ranks_per_node));
  }
  double payload = 0;
  for (const PartialExchange& of : ExchangesOf(point, cluster, options_)) {
    PSRING_ASSIGN_OR_RETURN(const double sent,
                            AllReducePayload(of.point, of.cluster, of.part * workload_.bytes()));
    payload += sent;
  }
  Prediction prediction{.tx_bytes = payload, .rx_bytes = payload};
  PSRING_ASSIGN_OR_RETURN(const std::vector<BucketCost> of_buckets, BucketCosts(point, cluster));
  std::vector<double> costs;  // including the update after each bucket
  CollectiveTime sum;
  double update = 0;  // after the last bucket: its own, or all of them when clipping
  double after_norm = 0;
  for (size_t b = 0; b < of_buckets.size(); ++b) {
    const auto& [cost, gather_s] = of_buckets[b];
    const double own = UpdateSeconds(point, split, cluster, bucket_bytes_[b]);
    // The weights of clipped shards, half of an exchange, follow the norm; sharded ones are not sent then.
    const bool follows = point.strategy.shards_updates && !point.strategy.shards_weights;
    const double late = options_.clips && follows ? gather_s : 0;
    after_norm += late;
    update = options_.clips ? update + own : own;
    costs.push_back(cost.seconds - late + (options_.clips ? 0 : own));
    prediction.update += own;
    sum = Both(sum, cost);
    if (cost.classes == 0) prediction.method = "theory";
  }
  if (options_.clips) costs.back() += update + after_norm;
  // With aligned steps, waiting for the last worker is not part of a step.
  const double earlier =
      options_.align_steps ? of_buckets.back().time.seconds - of_buckets.back().time.mean_s : 0;
  // Steps differ only by how long the slowest rank computes.
  const int steps = options_.steps > 0 ? options_.steps : options_.delays.jitter.is_zero() ? 1 : kDrawnSteps;
  const double forward = workload_.forward_ms / 1e3, backward = workload_.backward_ms / 1e3;
  const double slowest = ExpectedMaximum(options_.variation, ShapeOf(cluster, point.workers).nodes);
  prediction.slowest = slowest;
  double period = 0;
  for (int step = 0; step < steps; ++step) {
    // A bucket is ready when the last worker has computed it.
    double computed = 0, mean = 0;
    std::vector<double> ready(ready_s_.size(), 0);
    for (int worker = 0; worker < point.workers; ++worker) {
      const double factor = options_.delays.SlownessOf(worker);
      const double late = options_.delays.JitterSeconds(worker, options_.first_step + step);
      for (size_t b = 0; b < ready.size(); ++b) {
        ready[b] = std::max(ready[b], late + slowest * factor * (forward + ready_s_[b]) + options_.late_s);
      }
      computed = std::max(computed, late + slowest * factor * (forward + backward));
      mean += (late + factor * (forward + backward)) / n;
    }
    const Overlap overlap = OverlapBuckets(ready, costs, computed);
    // The last update follows the last arrival and ends the step.
    const double arrived = std::max(computed, overlap.ends.back() - update);
    period += (computed + overlap.exposed) / steps;
    prediction.step += (computed + std::max(0.0, overlap.exposed - earlier)) / steps;
    prediction.compute += mean / steps;
    prediction.exposed += (arrived - mean) / steps;
    prediction.wait += (computed - mean + options_.late_s) / steps;
    prediction.busy += sum.seconds / steps;
  }
  prediction.samples_per_s = point.workers * workload_.batch / period;
  if (sum.seconds > 0) {
    NameLimit({{"node links", sum.card_busy_s / sum.seconds},
               {"links inside", sum.intra_busy_s / sum.seconds},
               {"fabric", sum.fabric_busy_s / sum.seconds},
               {"adding", sum.adding_s / sum.seconds}},
              prediction);
  }
  return prediction;
}

absl::StatusOr<Prediction> Predictor::Servers(const PredictCase& all, const Cluster& whole) const {
  const auto [point, cluster, inside] = ViewOf(all, whole, options_.local_aggregation);
  const int each = inside.workers;
  const double bytes = workload_.bytes();
  const bool alone = point.strategy.asynchronous();
  const bool drawn = alone || point.strategy.drops_gradients;
  const double slowest =
      drawn ? 1 : ExpectedMaximum(options_.variation, ShapeOf(cluster, point.workers).nodes);
  ServerRun run = {
      .consistency = point.strategy.algorithm,
      .workers = point.workers,
      .servers = point.servers,
      .place = options_.place,
      .pipelined = options_.pipelined,
      .align_steps = options_.align_steps,
      .forward_s = slowest * workload_.forward_ms / 1e3,
      .backward_s = slowest * workload_.backward_ms / 1e3,
      .bucket_bytes = bucket_bytes_,
      .ready_s = ready_s_,
      .pushed_part = options_.wire_part,
      .clips = options_.clips,
      .delays = options_.delays,
      // Identical workers would collide at the server in every step; real ones do not.
      .jitter = drawn && options_.delays.jitter.is_zero() && !options_.variation.any() ? 0.02 : 0,
      .variation = drawn ? options_.variation : ComputeVariation(),
      .seed = options_.seed,
      .warmup_steps = static_cast<int>(options_.first_step),
      .steps = options_.steps};
  for (double& ready : run.ready_s) ready *= slowest;
  if (each > 1) PSRING_RETURN_IF_ERROR(AddLocalExchange(inside, run));
  if (point.workers > kMaxInStep) GroupStragglers(run);
  PSRING_ASSIGN_OR_RETURN(const ServerTime time, SimulateServers(run, cluster));
  Prediction prediction{
      .step = time.step_s,
      .compute = time.compute_s / slowest,
      .exposed = time.exposed_s + (1 - 1 / slowest) * time.compute_s,
      .busy = time.busy_s,
      .wait = time.wait_s + (1 - 1 / slowest) * time.compute_s,
      .samples_per_s = time.worker_steps_per_s * each * workload_.batch,
      .dropped_share = time.dropped_share,
      .most_share = time.most_share,
      .tx_bytes = options_.wire_part * (1 - time.dropped_share) * bytes / each,
      .rx_bytes = bytes / each,
      .server_bytes = point.workers * (1 + options_.wire_part * (1 - time.dropped_share)) * bytes,
      .slowest = slowest};
  if (alone) {
    prediction.staleness_mean = time.staleness_mean;
    prediction.staleness_max = time.staleness_max;
  }
  // Shares of the whole time, converted to shares of the communication time.
  const double part = prediction.busy > 0 ? std::max(1.0, prediction.step / prediction.busy) : 1;
  NameLimit({{"server links", part * time.server_card},
             {"worker links", part * time.worker_card},
             {"fabric", part * time.fabric},
             {"server adds", part * time.server_processor}},
            prediction);
  return prediction;
}

// Workers do not wait for one another.
Prediction Predictor::WithoutExchange(const PredictCase& point) const {
  const double compute = workload_.compute_ms() / 1e3;
  double rate = 0;
  for (int worker = 0; worker < point.workers; ++worker) {
    rate += 1 / (compute * options_.delays.SlownessOf(worker));
  }
  return {.step = point.workers / rate,
          .compute = point.workers / rate,
          .samples_per_s = rate * workload_.batch,
          .limit = "computing"};
}

absl::StatusOr<Prediction> Predictor::Predict(const PredictCase& point, const Cluster& cluster) const {
  PSRING_RETURN_IF_ERROR(CheckStrategy(point.strategy));
  PSRING_RETURN_IF_ERROR(CheckWorkers(cluster, point.workers));
  if (!point.strategy.communicates()) return WithoutExchange(point);
  const Cluster network = Loaded(point, cluster, options_.place);
  PSRING_ASSIGN_OR_RETURN(Prediction prediction,
                          point.strategy.uses_servers ? Servers(point, network) : AllReduce(point, network));
  const double barrier = BarrierSeconds(cluster, ShapeOf(cluster, point.workers).nodes);
  if (barrier > 0 && point.strategy.synchronous) {
    prediction.samples_per_s *= prediction.step / (prediction.step + barrier);
    prediction.step += barrier;
    prediction.exposed += barrier;
  }
  const double exchanging = point.strategy.exchanges_per_step();
  return exchanging < 1 ? MeanStep(prediction, WithoutExchange(point), exchanging) : prediction;
}

absl::StatusOr<double> Predictor::ExchangeSeconds(const PredictCase& all, const Cluster& whole,
                                                  double bytes) const {
  const Cluster network = Loaded(all, whole, options_.place);
  if (all.strategy.uses_group) {
    PSRING_ASSIGN_OR_RETURN(const CollectiveTime time,
                            AllReduceTime(all, network, bytes, whole.burst_bytes * whole.cards_per_node));
    return time.seconds;
  }
  const auto [point, cluster, inside] = ViewOf(all, network, options_.local_aggregation);
  // In pieces, as the client of the servers sends.
  constexpr double kPiece = 1 << 20;
  const double pieces = std::clamp(std::ceil(bytes / kPiece), 1.0, 64.0);
  PSRING_ASSIGN_OR_RETURN(const ServerTime time,
                          SimulateServers({.consistency = "sync",
                                           .workers = point.workers,
                                           .servers = point.servers,
                                           .place = options_.place,
                                           .pipelined = options_.pipelined,
                                           .bucket_bytes = std::vector<double>(pieces, bytes / pieces),
                                           .ready_s = std::vector<double>(pieces, 0)},
                                          cluster));
  return ReduceSeconds(inside, bytes) + time.step_s + GatherSeconds(inside, bytes);
}

}  // namespace psring
