// Sends each bucket's gradient to the servers and receives updated weights. The optimizer is on the servers.
#include <algorithm>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/base/mutex.h"
#include "ps_server/client/ps_client.h"
#include "trainer/strategies/error_feedback.h"
#include "trainer/strategies/strategies.h"

namespace psring {
namespace {

class ParameterServerStrategy : public SyncStrategy, public StrategyBarrier, public Residuals {
 public:
  explicit ParameterServerStrategy(const StrategyContext& context)
      : context_(context),
        servers_(context_.servers),
        client_(*servers_.client),
        ready_ns_(context.buckets.size()),
        arrivals_(context.device.NewStream(StreamKind::kCompute, "arrivals")) {}

  ~ParameterServerStrategy() override {
    lane_.reset();  // after the pushes that it holds
    // Exchanges in flight write into the weights and into this object.
    if (!AllArrived()) {
      client_.Abort(absl::CancelledError("the worker has stopped"));
      (void)WaitForReplies(absl::Seconds(5));
    }
  }

  absl::StatusOr<int64_t> Start(const TrainingState& initial) override {
    state_ = initial;
    if (initial.weights.host.count == 0 && !context_.buckets.empty()) PSRING_RETURN_IF_ERROR(BeginCounting());
    const TrainingState& state = state_;
    state_.weights.Download(context_.compute);
    PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    ServerJob job = JobOf(context_);
    job.start_step = state.step;
    job.start_samples = state.samples;
    job.start_beyond = state.beyond;
    job.row_arrays = state.row_arrays;
    SharedSpan sent{state.gradient.host, state.gradient_fd, state.gradient_on_gpu};
    if (context_.wire != DType::kFloat32) {
      PSRING_ASSIGN_OR_RETURN(feedback_, ErrorFeedback::Create(context_.wire, state.gradient.host.count,
                                                               /*shared=*/state.gradient_fd >= 0, *host_));
      sent = {feedback_->encoded(), feedback_->encoded_fd()};
      if (state.residual.count > 0) feedback_->Load(state.residual);
      if (servers_.kept_every > 0) feedback_->Keep(state.step);
    }
    WorkerBuffers memory{.weights = state.weights.host,
                         .shared_gradients = sent,
                         .shared_weights = {state.weights.host, state.weights_fd, state.weights_on_gpu}};
    if (state.has_slots) memory.slots = state.slots;
    PSRING_RETURN_IF_ERROR(client_.Start(context_.rank, job, memory, MonotonicNow() + servers_.timeout));
    on_gpu_ = client_.status().payload == "cuda_ipc";
    PSRING_RETURN_IF_ERROR(UploadWeights());
    return std::max(state.step, client_.status().start_step);
  }

  // Without a deadline: a running server names the missing workers, and the client detects a lost server.
  absl::StatusOr<std::optional<int64_t>> Await(BarrierPoint point) override {
    PSRING_ASSIGN_OR_RETURN(const std::optional<int64_t> back,
                            client_.Barrier(static_cast<int>(point), MonotonicTime::InfiniteFuture()));
    if (back.has_value()) PSRING_RETURN_IF_ERROR(GoBackTo(*back));
    return back;
  }

  absl::Status BeginStep(const StepInfo& info) override {
    info_ = info;
    if (feedback_.has_value()) {
      if (servers_.kept_every > 0 && info.step % servers_.kept_every == 0) feedback_->Keep(info.step);
      feedback_->BeginStep(info.step);
    }
    traffic_before_ = client_.status().traffic;
    MutexLock lock(mutex_);
    records_.assign(context_.buckets.size(), {});
    next_step_ = info.step + 1;
    dropped_ = false;
    went_back_ = false;
    return error_;
  }

  void GradientReady(absl::Span<const Bucket> buckets, Event ready) override {
    for (const Bucket& bucket : buckets) Send(bucket, ready);
  }

  absl::StatusOr<StepReport> FinishStep() override {
    context_.compute.Stamp(backward_ns_);
    if (only_counts()) GradientReady(context_.buckets, context_.compute.Record());
    if (lane_ != nullptr) PSRING_RETURN_IF_ERROR(lane_->Synchronize());
    // Longer than the client's own deadline, which names the push and pauses while it looks for a server.
    PSRING_RETURN_IF_ERROR(WaitForReplies(3 * servers_.timeout + absl::Seconds(5)));
    std::optional<int64_t> went_back_to;
    {
      MutexLock lock(mutex_);
      if (went_back_) went_back_to = next_step_;
      context_.compute.WaitFor(arrivals_->Record());
    }
    context_.compute.Stamp(arrived_ns_);
    if (went_back_to.has_value()) PSRING_RETURN_IF_ERROR(GoBackTo(*went_back_to));
    PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    StepReport report{.traffic = client_.status().traffic - traffic_before_,
                      .exposed_ns = arrived_ns_ - backward_ns_};
    MutexLock lock(mutex_);
    for (BucketRecord& record : records_) record.ready_ns = ready_ns_[static_cast<size_t>(record.bucket)];
    report.buckets = std::move(records_);
    report.dropped = dropped_;
    if (dropped_ || went_back_to.has_value()) report.next_step = next_step_;
    report.version = version_;
    return report;
  }

  absl::Status Collect(Span weights) override {
    const MonotonicTime deadline = MonotonicNow() + servers_.timeout;
    if (servers_.asynchronous) {
      // This rank's weights lack the others' pushes after its last exchange.
      PSRING_RETURN_IF_ERROR(FetchWeights());
    }
    if (!only_counts() && weights.data != state_.weights.device.data) {
      context_.compute.Copy(weights.data, state_.weights.device.data, weights.bytes());
      PSRING_RETURN_IF_ERROR(context_.compute.Synchronize());
    }
    return client_.Leave(deadline);
  }

  absl::StatusOr<bool> Save(Span weights, const std::vector<Span>& slots) override {
    const MonotonicTime deadline = MonotonicNow() + servers_.timeout;
    if (only_counts()) return client_.Read({.values = counting_weights_.span()}, deadline);
    PSRING_ASSIGN_OR_RETURN(bool of_this_step, client_.Read({.values = weights}, deadline));
    for (size_t i = 0; i < slots.size() && of_this_step; ++i) {
      PSRING_ASSIGN_OR_RETURN(of_this_step,
                              client_.Read({.values = slots[i], .slot = static_cast<int>(i) + 1}, deadline));
    }
    return of_this_step;
  }

  // Empty before Start.
  ConstSpan ResidualBefore(int64_t step) const override {
    return feedback_.has_value() ? feedback_->Before(step) : ConstSpan();
  }

  void Abort(absl::Status why) override { client_.Abort(std::move(why)); }

 private:
  // For a model that has only tables: the weights and the gradient of its CountingBucket, which stay 0. It
  // has no state of the optimizer.
  absl::Status BeginCounting() {
    PSRING_ASSIGN_OR_RETURN(counting_weights_, ZeroBucket());
    PSRING_ASSIGN_OR_RETURN(counting_gradient_, ZeroBucket());
    state_.weights = HostView::Of(counting_weights_.span());
    state_.gradient = HostView::Of(counting_gradient_.span());
    state_.weights_fd = counting_weights_.shared_fd();
    state_.gradient_fd = counting_gradient_.shared_fd();
    state_.has_slots = false;
    return absl::OkStatus();
  }
  absl::StatusOr<Buffer> ZeroBucket() {
    PSRING_ASSIGN_OR_RETURN(Buffer zeros, host_->AllocateShared(CountingBucket().count * sizeof(float)));
    std::fill_n(zeros.span().floats(), zeros.span().count, 0);
    return zeros;
  }
  bool only_counts() const { return counting_weights_.data() != nullptr; }

  ConstSpan GradientOf(const Bucket& bucket) const {
    return state_.gradient.host.Slice(bucket.first, bucket.count);
  }

  absl::Status UploadWeights() {
    state_.weights.Upload(context_.compute);
    return context_.compute.Synchronize();
  }

  // All weights, as the server has them now.
  absl::Status FetchWeights() {
    PSRING_RETURN_IF_ERROR(client_.Fetch(state_.weights.host, MonotonicNow() + servers_.timeout));
    return UploadWeights();
  }

  // The server has restarted with the weights of an earlier step.
  absl::Status GoBackTo(int64_t step) {
    if (feedback_.has_value() && !feedback_->GoBackTo(step)) {
      servers_.on_note(absl::StrCat("worker ", context_.rank, " returns to step ", step,
                                    ", for which its rounding errors were not kept; they restart at zero"));
    }
    return FetchWeights();
  }

  void Send(const Bucket& bucket, Event ready) {
    {
      MutexLock lock(mutex_);
      records_[bucket.index].bucket = bucket.index;
    }
    context_.compute.Stamp(ready_ns_[static_cast<size_t>(bucket.index)]);
    // On a CPU the gradient is already complete and needs no thread that waits for it. Once a lane exists,
    // all buckets use it, in order.
    if (lane_ == nullptr && state_.gradient.is_one() && ready.Happened()) return Push(bucket);
    if (lane_ == nullptr) lane_ = context_.device.NewStream(StreamKind::kBackground, "push");
    lane_->WaitFor(ready);
    if (!on_gpu_) state_.gradient.Slice(bucket.first, bucket.count).Download(*lane_);
    lane_->Run([this, bucket] {
      Push(bucket);
      return absl::OkStatus();
    });
  }

  void Push(const Bucket& bucket) {
    {
      MutexLock lock(mutex_);
      records_[bucket.index].begin_ns = context_.trace.Now();
      ++in_flight_;  // not earlier: a lane that has failed pushes nothing more
    }
    ConstSpan gradient = GradientOf(bucket);
    if (feedback_.has_value()) gradient = feedback_->Encode(bucket.first, gradient);
    client_.PushPull({.bucket = bucket.index,
                      .step = info_.step,
                      .samples = info_.samples,
                      .gradient = gradient,
                      .weights = state_.weights.host.Slice(bucket.first, bucket.count)},
                     [this, index = bucket.index](absl::StatusOr<ExchangeResult> result) {
                       Arrived(index, std::move(result));
                     });
  }

  // On a thread of the client.
  void Arrived(int index, absl::StatusOr<ExchangeResult> result) {
    const int64_t now = context_.trace.Now();
    const Bucket& bucket = context_.buckets[static_cast<size_t>(index)];
    if (result.ok() && result->dropped && feedback_.has_value()) {
      feedback_->TakeBack(bucket.first, bucket.count);
    }
    MutexLock lock(mutex_);
    if (result.ok()) {
      if (!result->on_gpu) state_.weights.Slice(bucket.first, bucket.count).Upload(*arrivals_);
      BucketRecord& record = records_[index];
      record.end_ns = now;
      if (index == 0) version_ = result->version;
      if (result->dropped || result->went_back) {
        (result->dropped ? dropped_ : went_back_) = true;
        next_step_ = result->version;
      } else {
        record.staleness = result->staleness;
        record.staleness_sum = result->staleness;
        if (!result->server_staleness.empty()) {
          record.pushes = static_cast<int64_t>(result->server_staleness.size());
          record.staleness_sum =
              std::accumulate(result->server_staleness.begin(), result->server_staleness.end(), int64_t{0});
        }
      }
      context_.trace.Add({.kind = SpanKind::kCommunication,
                          .step = info_.step,
                          .bucket = index,
                          .begin_ns = record.begin_ns,
                          .end_ns = now});
    } else if (error_.ok()) {
      error_ = result.status();
    }
    --in_flight_;
    changed_.NotifyAll();
  }

  bool AllArrived() {
    MutexLock lock(mutex_);
    return in_flight_ == 0;
  }

  // Waits until no exchange is in flight; returns the first error.
  absl::Status WaitForReplies(absl::Duration timeout) {
    const MonotonicTime deadline = MonotonicNow() + timeout;
    MutexLock lock(mutex_);
    while (in_flight_ > 0) {
      if (changed_.WaitUntil(mutex_, deadline) || in_flight_ == 0) continue;
      std::vector<int> missing;
      for (const BucketRecord& record : records_) {
        if (record.end_ns == 0) missing.push_back(record.bucket);
      }
      return DeadlineExceeded("waited ", absl::FormatDuration(timeout),
                              " for the parameter server's reply to bucket ", absl::StrJoin(missing, ", "));
    }
    return error_;
  }

  const StrategyContext context_;
  const ServerUse& servers_;
  PsClient& client_;
  const std::unique_ptr<Device> host_ = MakeCpuDevice();  // the client sends from its memory
  Buffer counting_weights_, counting_gradient_;           // see BeginCounting
  TrainingState state_;
  bool on_gpu_ = false;                    // the server reads gradients from the GPU
  std::optional<ErrorFeedback> feedback_;  // for gradients that are sent in 16 bits
  StepInfo info_;
  Traffic traffic_before_;
  // The compute stream writes into these until it is synchronized.
  std::vector<int64_t> ready_ns_;  // by bucket
  int64_t backward_ns_ = 0;        // backward was done
  int64_t arrived_ns_ = 0;         // the weights were in place for the next step

  Mutex mutex_;
  CondVar changed_;
  std::vector<BucketRecord> records_ ABSL_GUARDED_BY(mutex_);  // by bucket
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  bool dropped_ ABSL_GUARDED_BY(mutex_) = false;    // this step's gradient
  bool went_back_ ABSL_GUARDED_BY(mutex_) = false;  // the server restarted from an earlier step
  int64_t next_step_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;  // of bucket 0
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  // Copies weights from the host to the device; used by the client's threads.
  const std::unique_ptr<Stream> arrivals_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<Stream> lane_;  // last: its work uses the above
};

}  // namespace

ServerJob JobOf(const StrategyContext& context) {
  size_t parameters = 0;
  for (const Bucket& bucket : context.buckets) parameters += bucket.count;
  const ServerUse& servers = context.servers;
  return {.workers = context.world_size,
          .consistency = servers.consistency,
          .deterministic = servers.deterministic,
          .serial = servers.serial,
          .clip_norm = context.update.clip_norm,
          .staleness_lr = servers.staleness_lr,
          .wire = context.wire,
          .parameters = static_cast<int64_t>(parameters),
          .buckets = context.buckets,
          .tables = context.tables,
          .table_seed = context.seed,
          .optimizer = context.update.optimizer,
          .schedule = context.update.schedule};
}

absl::StatusOr<Strategy> MakeParameterServer(const StrategyContext& context) {
  PSRING_CHECK(context.servers.client != nullptr);
  auto made = std::make_unique<ParameterServerStrategy>(context);
  Strategy strategy{.barrier = made.get()};
  if (context.wire != DType::kFloat32) strategy.residuals = made.get();
  strategy.sync = std::move(made);
  return strategy;
}

}  // namespace psring
