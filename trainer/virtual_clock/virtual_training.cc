#include "trainer/virtual_clock/virtual_training.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/io/hash.h"
#include "ps_server/server/inline_server.h"
#include "ring_worker/schedules/schedule_traffic.h"
#include "trainer/step/plan/loss_history.h"
#include "trainer/virtual_clock/logical_workers.h"
#include "trainer/virtual_clock/virtual_clock.h"

namespace psring {
namespace {

constexpr double kMs = 1e-6;  // ns
// The clock's first time; 0 means "never" in a record.
constexpr int64_t kBeginNs = 1'000'000'000;

Topology TopologyOf(const StrategyRow& strategy) {
  if (!strategy.communicates()) return Topology::kAlone;
  if (strategy.uses_group) return Topology::kAllReduce;
  return strategy.number_below_workers ? Topology::kBackupServer : Topology::kServer;
}

class VirtualTraining : public LogicalCluster {
 public:
  VirtualTraining(const TrainingOptions& options, VirtualRun& run) : options_(options), run_(run) {}

  absl::Status Prepare();
  absl::Status Run();
  absl::StatusOr<VirtualOutcome> Collect();

  absl::Status Compute(int worker, int64_t step) override;
  absl::StatusOr<bool> Announce(int worker, int64_t step) override {
    return servers_.front()->Announce(worker, step);
  }
  absl::Status Push(int worker, int64_t step) override;
  absl::StatusOr<std::vector<Answer>> TakeAnswers() override;
  absl::Status Finished(const VirtualStep& step) override;

 private:
  // What is recorded of a worker.
  struct WorkerState {
    double loss = 0;               // of the gradient it has computed
    int64_t samples = 0;           // in it
    int64_t answered_samples = 0;  // in the one before, which was answered
    LossHistory losses;
    double last_loss = 0;  // of the last answered gradient
    RankResult result;
  };

  InlineServer& ServerOf(int worker) {
    return *servers_[topology_ == Topology::kAlone ? static_cast<size_t>(worker) : 0];
  }
  // `worker`'s number at its server.
  int NumberAt(int worker) const { return topology_ == Topology::kAlone ? 0 : worker; }
  Answer AnswerFor(const InlineServer::Answer& answer, int worker) const;
  absl::Status Evaluate(const Answer& answer, int64_t version);
  // Of weights_, at the end of rank 0's last step.
  absl::StatusOr<CurvePoint> Score(int64_t samples, int64_t updates) {
    return logical_->Score(weights_.span(),
                           {.samples = samples,
                            .updates = updates,
                            .wall_s = trained_s_,
                            .train_loss = workers_.front().losses.TakeMean()},
                           run_.on_evaluating);
  }
  uint64_t GradientBytes() const { return logical_->elements() * sizeof(float); }
  RankResult Describe(int worker) const;

  const TrainingOptions& options_;
  VirtualRun& run_;
  std::unique_ptr<LogicalWorkers> logical_;
  Topology topology_ = Topology::kServer;
  bool shares_steps_ = false;
  ScheduleTraffic all_reduce_;
  std::vector<std::unique_ptr<InlineServer>> servers_;  // one; without communication one per worker
  Buffer weights_;                                      // of the worker that computes
  std::vector<WorkerState> workers_;
  int64_t steps_done_ = 0;  // by all workers together, in steps of a worker
  // Rank 0's curve: a point is complete when its weights have arrived.
  double trained_s_ = 0;
  std::optional<CurvePoint> point_;
};

absl::Status VirtualTraining::Prepare() {
  PSRING_ASSIGN_OR_RETURN(const StrategyRow row, FindStrategy(options_.strategy));
  topology_ = TopologyOf(row);
  // In addition to gradients: a server's copies of its answers, or each worker's weights and optimizer.
  const int copies_each = topology_ == Topology::kAlone ? 4 : 1;
  PSRING_ASSIGN_OR_RETURN(
      logical_, LogicalWorkers::Create(options_, run_.workers, run_.data, run_.device, copies_each));
  for (const std::string& warning : logical_->warnings()) run_.on_warning(warning);
  shares_steps_ = row.shares_steps;
  if (topology_ == Topology::kAllReduce) {
    // Other libraries choose their algorithm; most choose a ring.
    PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Schedule> schedule,
                            MakeSchedule(row.backend == "native" ? row.algorithm : "ring",
                                         Collective::kAllReduce, {.ranks = run_.workers}));
    all_reduce_ = TrafficOf(*schedule);
  }
  const bool has_server = row.uses_servers;
  const int servers = topology_ == Topology::kAlone ? run_.workers : 1;
  const ServerJob job = logical_->JobOf(has_server ? row.algorithm : "sync", run_.workers / servers);
  std::vector<float> initial = logical_->InitialWeights();
  const Span weights{initial.data(), initial.size()};
  for (int i = 0; i < servers; ++i) {
    PSRING_ASSIGN_OR_RETURN(servers_.emplace_back(), InlineServer::Start(job, weights, run_.device));
  }
  PSRING_ASSIGN_OR_RETURN(weights_, run_.device.Allocate(GradientBytes()));
  std::memcpy(weights_.data(), initial.data(), GradientBytes());
  for (int worker = 0; worker < run_.workers; ++worker) {
    workers_.push_back({.result = Describe(worker)});
  }
  return absl::OkStatus();
}

absl::Status VirtualTraining::Run() {
  PSRING_ASSIGN_OR_RETURN(const VirtualTimes times, VirtualTimes::Create(options_, all_reduce_.InSequence()));
  VirtualClock clock(topology_, run_.workers, options_.warmup_steps, times, *this);
  return clock.Run();
}

absl::Status VirtualTraining::Compute(int worker, int64_t step) {
  PSRING_ASSIGN_OR_RETURN(workers_[static_cast<size_t>(worker)].loss,
                          logical_->Compute(worker, step, weights_.span()));
  workers_[static_cast<size_t>(worker)].samples = logical_->samples(worker);
  return absl::OkStatus();
}

absl::Status VirtualTraining::Push(int worker, int64_t step) {
  for (const Bucket& bucket : logical_->buckets()) {
    PSRING_RETURN_IF_ERROR(
        ServerOf(worker).Push(NumberAt(worker), step, logical_->samples(worker), bucket.index,
                              logical_->gradient(worker).Slice(bucket.first, bucket.count)));
  }
  return absl::OkStatus();
}

// Answered workers compute their next gradient immediately, on the weights of the answer, so that no copy of
// these weights is needed while they are in transit.
absl::StatusOr<std::vector<LogicalCluster::Answer>> VirtualTraining::TakeAnswers() {
  std::vector<Answer> answers;
  for (size_t s = 0; s < servers_.size(); ++s) {
    for (const InlineServer::Answer& received : servers_[s]->TakeAnswers()) {
      const int worker = topology_ == Topology::kAlone ? static_cast<int>(s) : received.worker;
      Answer answer = AnswerFor(received, worker);
      servers_[s]->CopyWeights(received.worker, weights_.span());
      WorkerState& state = workers_[static_cast<size_t>(worker)];
      state.losses.Add({.step = received.step, .samples = 1, .loss = state.loss});
      state.last_loss = state.loss;
      state.answered_samples = state.samples;
      if (worker == 0) PSRING_RETURN_IF_ERROR(Evaluate(answer, received.version));
      if (!answer.over) PSRING_RETURN_IF_ERROR(Compute(worker, answer.next_step));
      answers.push_back(std::move(answer));
    }
  }
  return answers;
}

LogicalCluster::Answer VirtualTraining::AnswerFor(const InlineServer::Answer& received, int worker) const {
  Answer answer{.worker = worker, .next_step = received.step + 1, .dropped = received.dropped};
  if (received.dropped) answer.next_step = received.version;
  const int64_t total = logical_->plan().total_steps();
  answer.over =
      shares_steps_ ? SharedStepsAreOver(received.version, run_.workers, total) : answer.next_step >= total;
  if (logical_->strategy().uses_servers) answer.staleness = received.staleness;
  return answer;
}

// Rank 0's weights, after every --eval_every steps of all workers' work.
absl::Status VirtualTraining::Evaluate(const Answer& answer, int64_t version) {
  const bool alone = logical_->strategy().asynchronous();
  const int64_t before = steps_done_;
  steps_done_ = alone ? version / run_.workers : answer.next_step;
  const int64_t every = options_.eval_every;
  if (!options_.evaluate || every == 0 || steps_done_ / every == before / every ||
      steps_done_ >= logical_->plan().total_steps()) {
    return absl::OkStatus();
  }
  const int64_t updates = alone ? version : steps_done_;
  PSRING_ASSIGN_OR_RETURN(point_,
                          Score(logical_->plan().SamplesIn(updates, alone ? run_.workers : 1), updates));
  return absl::OkStatus();
}

absl::Status VirtualTraining::Finished(const VirtualStep& step) {
  WorkerState& state = workers_[static_cast<size_t>(step.worker)];
  const bool talks = logical_->strategy().communicates();
  const auto bytes = [&](const std::vector<int64_t>& chunks) {
    if (topology_ != Topology::kAllReduce) return GradientBytes();
    return static_cast<uint64_t>(chunks[static_cast<size_t>(step.worker)]) * GradientBytes() /
           static_cast<uint64_t>(all_reduce_.chunks);
  };
  StepRecord record{.rank = step.worker,
                    .step = step.step,
                    .warmup = step.warmup,
                    .samples = state.answered_samples,
                    .dropped = step.dropped,
                    .begin_ns = kBeginNs + step.begin_ns,
                    .step_ms = kMs * static_cast<double>(step.over_ns - step.begin_ns),
                    .compute_ms = kMs * static_cast<double>(step.compute.own_ns),
                    .delay_ms = kMs * static_cast<double>(step.compute.delay_ns)};
  record.loss = state.last_loss;
  if (talks) {
    record.comm_busy_ms = record.exposed_comm_ms = kMs * static_cast<double>(step.over_ns - step.ready_ns);
    record.payload_tx_bytes = step.dropped ? 0 : bytes(all_reduce_.sent);
    record.payload_rx_bytes = bytes(all_reduce_.received);
    for (const Bucket& bucket : logical_->buckets()) {
      record.buckets.push_back({.bucket = bucket.index,
                                .ready_ns = kBeginNs + step.ready_ns,
                                .begin_ns = kBeginNs + step.ready_ns,
                                .end_ns = kBeginNs + step.over_ns});
    }
  }
  RankResult& result = state.result;
  if (step.dropped) ++result.dropped_gradients;
  if (!step.warmup) {
    if (!step.dropped) result.samples += record.samples;
    result.wall_s += record.step_ms / 1000;
  }
  for (size_t b = 0; b < step.staleness.size() && !step.dropped; ++b) {
    record.buckets[b].staleness = step.staleness[b];
    record.buckets[b].staleness_sum = step.staleness[b];
    ++result.pushes;
    result.staleness_sum += step.staleness[b];
    result.staleness_max = std::max(result.staleness_max, step.staleness[b]);
  }
  PSRING_RETURN_IF_ERROR(run_.on_step(record));
  if (step.worker != 0) return absl::OkStatus();
  trained_s_ += record.step_ms / 1000;
  if (point_) {
    point_->wall_s = trained_s_;
    result.curve.push_back(*point_);
    run_.on_evaluation(*point_);
    point_.reset();
  }
  run_.on_progress(std::min(steps_done_, logical_->plan().total_steps()), logical_->plan().total_steps(),
                   record.loss);
  return absl::OkStatus();
}

RankResult VirtualTraining::Describe(int worker) const {
  const StrategyRow& row = logical_->strategy();
  RankResult result;
  result.rank = worker;
  result.world_size = run_.workers;
  result.strategy = options_.strategy;
  result.device = run_.device.name();
  result.ops = logical_->ops_name();
  result.backend = row.backend;
  result.algorithm = row.algorithm;
  if (row.uses_servers) result.placement = "rank0";
  result.parameters = static_cast<int64_t>(logical_->parameters());
  result.global_batch = logical_->plan().global_batch;
  if (worker == 0) result.flags = TrainingArguments(options_);
  result.optimizer = OptimizerName(logical_->updates().optimizer.kind);
  result.lr = logical_->updates().schedule.base;
  result.steps = logical_->plan().steps;
  for (const Bucket& bucket : logical_->buckets()) {
    result.bucket_elements.push_back(static_cast<int64_t>(bucket.count));
  }
  return result;
}

absl::StatusOr<VirtualOutcome> VirtualTraining::Collect() {
  VirtualOutcome outcome;
  const bool together = topology_ != Topology::kAlone;
  for (int worker = 0; worker < run_.workers; ++worker) {
    WorkerState& state = workers_[static_cast<size_t>(worker)];
    if (worker == 0 || !together) PSRING_RETURN_IF_ERROR(ServerOf(worker).Fetch(weights_.span()));
    state.result.weights_hash = HashBytes(weights_.data(), weights_.bytes());
    state.result.final_loss = state.losses.MeanOfLastTenth();
    state.result.peak_memory_mb = PeakMemoryMb();
    if (worker == 0) {
      const float* weights = weights_.span().floats();
      outcome.weights.assign(weights, weights + weights_.span().count);
      if (options_.evaluate) {
        const StepPlan& plan = logical_->plan();
        const bool alone = logical_->strategy().asynchronous();
        const int64_t updates = plan.total_steps() * (alone ? run_.workers : 1);
        PSRING_ASSIGN_OR_RETURN(const CurvePoint point, Score(plan.total_samples, updates));
        state.result.curve.push_back(point);
        run_.on_evaluation(point);
      }
    }
    outcome.ranks.push_back(state.result);
  }
  if (logical_->strategy().uses_servers) outcome.servers.push_back(servers_.front()->Result());
  return outcome;
}

}  // namespace

absl::StatusOr<VirtualOutcome> RunVirtual(const TrainingOptions& options, VirtualRun& run) {
  VirtualTraining training(options, run);
  PSRING_RETURN_IF_ERROR(training.Prepare());
  PSRING_RETURN_IF_ERROR(training.Run());
  return training.Collect();
}

std::vector<TraceSpan> SpansOf(const StepRecord& record) {
  const auto ns = [](double ms) { return static_cast<int64_t>(ms * 1e6); };
  const int64_t end_ns = record.begin_ns + ns(record.step_ms);
  const int64_t ready_ns = record.buckets.empty() ? end_ns : record.buckets.front().ready_ns;
  std::vector<TraceSpan> spans = {{.kind = SpanKind::kBackward,  // forward is in it
                                   .step = record.step,
                                   .begin_ns = ready_ns - ns(record.compute_ms),
                                   .end_ns = ready_ns}};
  if (record.exposed_comm_ms > 0) {
    spans.push_back(
        {.kind = SpanKind::kExposed, .step = record.step, .begin_ns = ready_ns, .end_ns = end_ns});
  }
  return spans;
}

}  // namespace psring
