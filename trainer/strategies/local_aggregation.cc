#include "trainer/strategies/local_aggregation.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/text/translate.h"
#include "ps_server/client/ps_client.h"
#include "trainer/strategies/staging.h"

namespace psring {

namespace {

// After the deadlines of servers and clients.
constexpr absl::Duration kLater = absl::Seconds(5);

// The leader's view of the job: its machine is one worker.
StrategyContext ContextOfLeader(const StrategyContext& of_rank, const MachineRanks& machine,
                                Stream& compute) {
  return {.rank = machine.number,
          .world_size = of_rank.world_size / of_rank.group->size(),
          .device = of_rank.device,
          .ops = of_rank.ops,
          .compute = compute,
          .trace = of_rank.trace,
          .threads = of_rank.threads,
          .buckets = of_rank.buckets,
          .update = of_rank.update,
          .wire = of_rank.wire,
          .servers = of_rank.servers};
}

class LocalAggregation : public SyncStrategy, public StrategyBarrier {
 public:
  // `leader`: the exchange with the servers, over `exchange`; empty on other ranks.
  LocalAggregation(const StrategyContext& context, MachineRanks machine, std::unique_ptr<Stream> exchange,
                   Strategy leader)
      : context_(context),
        machine_(std::move(machine)),
        group_(*context.group),
        staging_(context.device, group_),
        records_(context.buckets.size()),
        summed_ns_(context.buckets.size()),
        exchange_(std::move(exchange)),
        leader_(std::move(leader)),
        lane_(context.device.NewStream(StreamKind::kBackground, "local sum")) {}

  absl::StatusOr<int64_t> Start(const TrainingState& state) override {
    state_ = state;
    if (machine_.leads) {
      PSRING_ASSIGN_OR_RETURN(const int64_t first, leader_.sync->Start(state));
      if (first != state.step) return Restarted();
    }
    PSRING_RETURN_IF_ERROR(ShareWeights());
    return state.step;
  }

  absl::StatusOr<std::optional<int64_t>> Await(BarrierPoint point) override {
    if (machine_.leads) {
      PSRING_ASSIGN_OR_RETURN(const std::optional<int64_t> back, leader_.barrier->Await(point));
      if (back.has_value()) return Restarted();
    }
    PSRING_RETURN_IF_ERROR(group_.Barrier(*lane_));
    PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    return std::nullopt;
  }

  absl::Status BeginStep(const StepInfo& info) override {
    info_ = info;
    traffic_before_ = group_.traffic();
    if (!machine_.leads) return absl::OkStatus();
    StepInfo of_machine = info;
    of_machine.samples = info.machine_samples;
    return leader_.sync->BeginStep(of_machine);
  }

  // The sum of a bucket, then the leader's push of it, on the lane.
  void GradientReady(absl::Span<const Bucket> buckets, Event ready) override {
    lane_->WaitFor(ready);
    for (const Bucket& bucket : buckets) {
      BucketRecord& record = records_[static_cast<size_t>(bucket.index)];
      record = {.bucket = bucket.index};
      const HostView gradient = state_.gradient.Slice(bucket.first, bucket.count);
      context_.compute.Stamp(record.ready_ns);
      staging_.ToGroup(gradient, *lane_);
      lane_->Stamp(record.begin_ns);
      const Span seen = staging_.Seen(gradient);
      const absl::Status enqueued = group_.AllReduce(seen, seen, ReduceOp::kSum, *lane_);
      if (!enqueued.ok()) lane_->Run([enqueued] { return enqueued; });
      staging_.FromGroup(gradient, *lane_);
      lane_->Stamp(summed_ns_[static_cast<size_t>(bucket.index)]);
      // Not before the sum is complete: nothing is pushed if it fails.
      if (!machine_.leads) continue;
      lane_->Run([this, bucket] {
        leader_.sync->GradientReady({&bucket, 1}, Event());
        return absl::OkStatus();
      });
    }
  }

  absl::StatusOr<StepReport> FinishStep() override {
    context_.compute.Stamp(backward_ns_);
    // Wait for both even if one fails: their work uses memory that a failed step releases.
    const absl::Status summed = lane_->Synchronize(), computed = context_.compute.Synchronize();
    PSRING_RETURN_IF_ERROR(summed);
    PSRING_RETURN_IF_ERROR(computed);
    StepReport report;
    if (machine_.leads) {
      PSRING_ASSIGN_OR_RETURN(report, leader_.sync->FinishStep());
      if (report.next_step >= 0) return Restarted();
    }
    PSRING_RETURN_IF_ERROR(ShareWeights());
    for (const BucketRecord& of_leader : report.buckets) {
      BucketRecord& record = records_[static_cast<size_t>(of_leader.bucket)];
      record.staleness = of_leader.staleness;
      record.staleness_sum = of_leader.staleness_sum;
      record.pushes = of_leader.pushes;
    }
    for (size_t b = 0; b < records_.size(); ++b) {
      records_[b].end_ns = shared_ns_;
      AddSpan(records_[b].bucket, records_[b].begin_ns, summed_ns_[b]);
    }
    AddSpan(-1, share_ns_, shared_ns_);
    report.buckets = records_;
    report.traffic = report.traffic + (group_.traffic() - traffic_before_);
    report.exposed_ns = std::max<int64_t>(0, shared_ns_ - backward_ns_);
    return report;
  }

  absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) override {
    return leader_.sync->Save(weights, slots);  // by rank 0, which leads
  }

  absl::Status Collect(Span weights) override {
    if (machine_.leads) return leader_.sync->Collect(weights);
    if (weights.data == state_.weights.device.data) return absl::OkStatus();
    context_.compute.Copy(weights.data, state_.weights.device.data, weights.bytes());
    return context_.compute.Synchronize();
  }

  void Abort(absl::Status why) override {
    if (machine_.leads) leader_.sync->Abort(why);
    group_.Abort(std::move(why));
  }

 private:
  // The leader's weights on all ranks of the machine.
  absl::Status ShareWeights() {
    lane_->Stamp(share_ns_);
    PSRING_RETURN_IF_ERROR(staging_.Broadcast(state_.weights, *lane_));
    lane_->Stamp(shared_ns_);
    return lane_->Synchronize();
  }

  static absl::Status Restarted() {
    return absl::UnavailableError(
        "a parameter server was restarted, which --local_aggregation does not support");
  }

  void AddSpan(int bucket, int64_t begin_ns, int64_t end_ns) {
    context_.trace.Add({.kind = SpanKind::kCommunication,
                        .step = info_.step,
                        .bucket = bucket,
                        .begin_ns = begin_ns,
                        .end_ns = end_ns});
  }

  const StrategyContext context_;
  const MachineRanks machine_;
  ProcessGroup& group_;
  const Staging staging_;
  TrainingState state_;
  StepInfo info_;
  Traffic traffic_before_;
  // Streams write into these until they are synchronized.
  std::vector<BucketRecord> records_;  // by bucket
  std::vector<int64_t> summed_ns_;     // by bucket
  int64_t backward_ns_ = 0;            // backward was done
  int64_t share_ns_ = 0, shared_ns_ = 0;
  const std::unique_ptr<Stream> exchange_;  // used by leader_
  Strategy leader_;
  const std::unique_ptr<Stream> lane_;  // last: its work uses the above
};

}  // namespace

MachineRanks MachineOf(int rank, int per_machine) {
  PSRING_CHECK(per_machine > 0);
  MachineRanks machine{.number = rank / per_machine, .leads = rank % per_machine == 0};
  machine.ranks.resize(static_cast<size_t>(per_machine));
  std::iota(machine.ranks.begin(), machine.ranks.end(), machine.number * per_machine);
  return machine;
}

GroupOptions MachineGroupOptions(const TrainingOptions& options, int gpu) {
  return {.backend = "native",
          .algorithm = options.deterministic ? "star" : "direct",
          .timeout = absl::Seconds(options.timeout_s) + kLater,
          .gpu = gpu};
}

absl::Status CheckLocalAggregation(const TrainingOptions& options, const StrategyRow& strategy) {
  if (!options.local_aggregation || strategy.can_aggregate()) return absl::OkStatus();
  return absl::InvalidArgumentError(Tr(
      "--local_aggregation is for ps-sync, where all workers of a machine take the same step; omit it for $0",
      options.strategy));
}

absl::StatusOr<Strategy> MakeLocalAggregation(const StrategyContext& context) {
  PSRING_CHECK(context.group != nullptr && context.world_size % context.group->size() == 0);
  MachineRanks machine = MachineOf(context.rank, context.group->size());
  PSRING_CHECK(machine.leads == (context.servers.client != nullptr));
  std::unique_ptr<Stream> exchange;
  Strategy leader;
  if (machine.leads) {
    exchange = context.device.NewStream(StreamKind::kCompute, "exchange");
    PSRING_ASSIGN_OR_RETURN(leader, MakeParameterServer(ContextOfLeader(context, machine, *exchange)));
  }
  auto made =
      std::make_unique<LocalAggregation>(context, std::move(machine), std::move(exchange), std::move(leader));
  Strategy strategy{.barrier = made.get()};
  strategy.sync = std::move(made);
  return strategy;
}

}  // namespace psring
