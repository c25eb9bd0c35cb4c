#include "trainer/virtual_clock/logical_workers.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/device_factory/make_ops.h"
#include "trainer/models/replayed_model.h"
#include "trainer/step/evaluation.h"

namespace psring {
namespace {

constexpr double kShareOfMemory = 0.8;  // the rest is for the data and other processes

}  // namespace

absl::Status CheckCopiesFit(int workers, uint64_t bytes_each, uint64_t available) {
  const double needed = static_cast<double>(workers) * static_cast<double>(bytes_each);
  const double usable = kShareOfMemory * static_cast<double>(available);
  if (needed <= usable) return absl::OkStatus();
  const int most = static_cast<int>(usable / static_cast<double>(bytes_each));
  return absl::ResourceExhaustedError(
      absl::StrFormat("%d logical workers need %.1f GiB, and %.1f GiB of memory are free; %s", workers,
                      needed / (1 << 30), static_cast<double>(available) / (1 << 30),
                      most >= 1 ? absl::StrCat("use at most --workers ", most, ", or a smaller --model")
                                : "choose a smaller --model"));
}

absl::StatusOr<std::unique_ptr<LogicalWorkers>> LogicalWorkers::Create(const TrainingOptions& options,
                                                                       int workers, const DataSplits& data,
                                                                       Device& device, int copies_each) {
  auto made = std::unique_ptr<LogicalWorkers>(new LogicalWorkers(options, data));
  LogicalWorkers& w = *made;
  PSRING_ASSIGN_OR_RETURN(w.strategy_, FindStrategy(options.strategy));
  PSRING_ASSIGN_OR_RETURN(const ModelRow model_row, ModelOf(options));
  PSRING_RETURN_IF_ERROR(CheckStrategy(options, w.strategy_, workers));
  if (options.wire != "float32") {
    return InvalidArgument(
        "--wire ", options.wire,
        ": logical workers push float32; rounding errors of a 16-bit wire cannot be reproduced");
  }
  PSRING_ASSIGN_OR_RETURN(w.plan_, PlanSteps(options, data.train.count(), workers, data.train.spec().labels));
  PSRING_ASSIGN_OR_RETURN(w.updates_, PlanUpdates(options, w.strategy_, model_row, w.plan_));
  w.warnings_ = PlanWarnings(w.updates_);
  if (std::string rounded = RoundingNote(options, w.plan_); !rounded.empty())
    w.warnings_.push_back(std::move(rounded));
  PSRING_ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(options.precision));
  w.compute_ = device.NewStream(StreamKind::kCompute, "compute");
  PSRING_ASSIGN_OR_RETURN(w.ops_, MakeOps(device, options.threads, precision));
  PSRING_ASSIGN_OR_RETURN(w.model_, model_row.make(data.train.spec(), *w.ops_));
  PSRING_ASSIGN_OR_RETURN(w.evaluation_batch_,
                          EvaluationBatch(*w.model_, data.train.spec(), options.batch, device));
  const int max_batch = std::max(options.batch, w.evaluation_batch_);
  if (!w.model_->parameters().tables().empty()) {
    return InvalidArgument(options.clock == "virtual" ? "--clock virtual" : "a replay",
                           " does not support the tables of ", options.model,
                           ", whose rows it does not exchange");
  }
  PSRING_ASSIGN_OR_RETURN(w.activations_, w.model_->NewActivations(max_batch, KeepOf(options), device));
  if (w.updates_.optimizer.kind == OptimizerKind::kAdamW) {
    w.updates_.optimizer.no_decay = WithoutDecay(w.model_->parameters());
  }
  w.buffers_ = w.model_->parameters().initial_buffers();
  if (!w.buffers_.empty()) w.warnings_.push_back(StatisticsNote(options, w.strategy_, workers));
  const uint64_t bytes = w.elements() * sizeof(float);
  const std::optional<Device::Memory> memory = device.memory();
  PSRING_RETURN_IF_ERROR(CheckCopiesFit(
      workers, bytes * static_cast<uint64_t>(1 + copies_each) + static_cast<uint64_t>(data.train.count()) * 8,
      memory.has_value() ? memory->free : UINT64_MAX));
  PSRING_ASSIGN_OR_RETURN(w.batches_, BatchMemory::Create(data.train.spec(), max_batch, device));
  w.buckets_ = PlanBuckets(w.model_->parameters(), BucketSizesOf(options));
  w.next_step_.resize(static_cast<size_t>(workers));
  w.samples_.resize(static_cast<size_t>(workers));
  for (int worker = 0; worker < workers; ++worker) {
    PSRING_ASSIGN_OR_RETURN(w.gradients_.emplace_back(), device.Allocate(bytes));
    w.samplers_.emplace_back(SamplerOptions{.count = data.train.count(),
                                            .rank = worker,
                                            .world_size = workers,
                                            .batch = options.batch,
                                            .micro_batches = options.micro_batches,
                                            .predictions = data.train.spec().labels,
                                            .seed = options.seed,
                                            .drop_last = options.drop_last == "true"});
  }
  if (options.micro_batches > 1) {
    PSRING_ASSIGN_OR_RETURN(w.micro_gradient_, device.Allocate(bytes));
  }
  return made;
}

absl::StatusOr<double> LogicalWorkers::Compute(int worker, int64_t step, ConstSpan weights) {
  const size_t w = static_cast<size_t>(worker);
  if (step != next_step_[w]) samplers_[w].SeekTo(step);
  const SampledStep drawn = samplers_[w].Next();
  next_step_[w] = step + 1;
  samples_[w] = drawn.samples;
  batches_->ClearScore(*compute_);
  bool first = true;
  for (const std::vector<int64_t>& indices : drawn.batches) {
    PSRING_ASSIGN_OR_RETURN(const Batch batch, batches_->Load(data_.train, indices, *compute_));
    std::vector<uint64_t> seeds;
    if (options_.dropout > 0) seeds = SampleSeeds(options_.seed, drawn.epoch, indices);
    const ModelState state{.weights = weights,
                           .buffers = worker == 0 ? buffers() : Span{},
                           .sample_seeds = seeds.empty() ? nullptr : seeds.data()};
    PSRING_RETURN_IF_ERROR(model_->Forward(state, batch, activations_, batches_->score(), *compute_));
    const Span to = first ? gradients_[w].span() : micro_gradient_.span();
    PSRING_RETURN_IF_ERROR(model_->Backward(state, batch, activations_, to, *compute_));
    if (!first) ops_->Add(gradients_[w].span(), to, *compute_);
    first = false;
  }
  batches_->DownloadScore(*compute_);
  PSRING_RETURN_IF_ERROR(compute_->Synchronize());
  const double loss =
      batches_->downloaded_score().loss_sum / static_cast<double>(std::max<int64_t>(1, drawn.samples));
  if (std::isfinite(loss)) return loss;
  return absl::OutOfRangeError(absl::StrCat("worker ", worker, ", step ", step,
                                            ": training diverged: the loss is not finite; a lower --lr or "
                                            "--momentum may help"));
}

absl::StatusOr<CurvePoint> LogicalWorkers::Score(
    ConstSpan weights, CurvePoint point, const std::function<void(int64_t done, int64_t planned)>& on_batch) {
  const int64_t planned = data_.test.predictions();
  PSRING_ASSIGN_OR_RETURN(
      const BatchScore score,
      Evaluate(*model_, weights, buffers(), data_.test, evaluation_batch_, activations_, *batches_, *compute_,
               /*rows=*/nullptr, [&](int64_t done) { on_batch(done, planned); }));
  point.test_loss = score.loss_sum / static_cast<double>(data_.test.predictions());
  point.test_accuracy = static_cast<double>(score.correct) / static_cast<double>(data_.test.predictions());
  return point;
}

ServerJob LogicalWorkers::JobOf(const std::string& consistency, int workers) const {
  return {.workers = workers,
          .consistency = consistency,
          .deterministic = options_.deterministic,
          .clip_norm = options_.clip_norm,
          .staleness_lr = options_.staleness_lr == "inverse",
          .parameters = static_cast<int64_t>(elements()),
          .buckets = buckets_,
          .optimizer = updates_.optimizer,
          .schedule = updates_.schedule};
}

}  // namespace psring
