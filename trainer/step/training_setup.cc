// How a rank's training is put together: model, memory, strategy, buckets.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/cuda/cuda_sharing.h"
#include "common/devices/make_ops.h"
#include "trainer/models/replayed_model.h"
#include "trainer/step/memory_need.h"
#include "trainer/step/training.h"

namespace psring {

absl::StatusOr<std::unique_ptr<Training>> Training::Create(const TrainingOptions& options, Worker& worker) {
  auto training = std::unique_ptr<Training>(new Training(options, worker));
  Training& t = *training;
  const Dataset& data = worker.data.train;
  Device& device = worker.device;

  // All that can be refused is refused before anything is allocated.
  PSRING_ASSIGN_OR_RETURN(t.strategy_row_, FindStrategy(options.strategy));
  PSRING_ASSIGN_OR_RETURN(const ModelRow model_row, ModelOf(options));
  PSRING_RETURN_IF_ERROR(CheckStrategy(options, *t.strategy_row_, worker.world_size));
  PSRING_RETURN_IF_ERROR(CheckDevice(options, device));
  PSRING_ASSIGN_OR_RETURN(t.plan_, PlanSteps(options, data.count(), worker.world_size));
  PSRING_ASSIGN_OR_RETURN(const UpdatePlan updates,
                          PlanUpdates(options, *t.strategy_row_, model_row, t.plan_, data.count()));
  t.updates_ = updates;

  if (worker.rank == 0) {
    for (const std::string& warning : PlanWarnings(*t.strategy_row_, updates)) worker.on_warning(warning);
  }

  PSRING_ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(options.precision));
  const int max_batch = std::max(options.batch * options.replicas, kEvaluationBatch);
  t.compute_ = device.NewStream(StreamKind::kCompute, "compute");
  PSRING_ASSIGN_OR_RETURN(t.ops_, MakeOps(device, options.threads, precision));
  if (precision == Precision::kBFloat16 && device.host_reads_memory() && worker.rank == 0 &&
      BFloat16Support() == BFloat16::kEmulated) {
    worker.on_warning(
        "--precision bfloat16 on a CPU without AVX512-BF16: it is emulated, and slower than float32");
  }
  if (const std::optional<Device::Memory> memory = device.memory()) {
    const bool has_server = t.strategy_row_->needs == Needs::kParameterServer;
    PSRING_ASSIGN_OR_RETURN(const MemoryNeed need,
                            MemoryNeedOf(options, model_row, data, max_batch,
                                         has_server ? nullptr : &updates.optimizer, device, *t.ops_));
    PSRING_RETURN_IF_ERROR(CheckMemory(need, *memory, max_batch, device.name()));
  }
  PSRING_RETURN_IF_ERROR(t.MakeModel(model_row, max_batch));
  const size_t parameters = t.model_->parameters().count();
  if (options.evaluate && worker.rank == 0) {
    PSRING_RETURN_IF_ERROR(CheckSnapshots(options.eval_every, t.plan_.total_steps(), parameters));
  }
  // A parameter server on this host works in these buffers itself.
  t.server_shares_ = t.strategy_row_->needs == Needs::kParameterServer && options.transport != "tcp";
  const size_t bytes = parameters * sizeof(float);
  PSRING_ASSIGN_OR_RETURN(t.weights_,
                          t.server_shares_ ? device.AllocateShared(bytes) : device.Allocate(bytes));
  PSRING_RETURN_IF_ERROR(t.AllocateGradient(bytes));
  if (worker.group != nullptr && worker.rank == 0 && !worker.group->info().through_host.empty()) {
    worker.on_note(
        absl::StrCat("gradients go through pinned host memory: ", worker.group->info().through_host));
  }
  if (options.micro_batches > 1) {
    PSRING_ASSIGN_OR_RETURN(t.worker_gradient_, device.Allocate(bytes));
  }
  if (options.accumulate > 1) {
    PSRING_ASSIGN_OR_RETURN(t.micro_gradient_, device.Allocate(bytes));
  }
  PSRING_ASSIGN_OR_RETURN(t.host_weights_, AllocateHostSide(device, t.weights_));
  PSRING_ASSIGN_OR_RETURN(t.batches_, BatchMemory::Create(data, max_batch, device));

  t.buckets_ = PlanBuckets(t.model_->parameters(), t.BucketSizesAsked());
  if (t.strategy_row_->needs == Needs::kParameterServer) PSRING_RETURN_IF_ERROR(t.PlanBucketsByTrial());
  t.result_.ddp.bucket_bytes = BytesOf(t.buckets_);
  PSRING_ASSIGN_OR_RETURN(const DType wire, ParseDType(options.wire));
  // Asynchronous workers never go back.
  const bool goes_back = t.strategy_row_->needs == Needs::kParameterServer && t.strategy_row_->synchronous &&
                         ServerReturns(options, ServersOf(options, worker.world_size));
  const int64_t kept_every = goes_back ? options.checkpoint_every : 0;
  PSRING_ASSIGN_OR_RETURN(t.strategy_,
                          t.strategy_row_->make({.algorithm = AlgorithmOf(*t.strategy_row_, options.strategy),
                                                 .rank = worker.rank,
                                                 .world_size = worker.world_size,
                                                 .device = device,
                                                 .ops = *t.ops_,
                                                 .compute = *t.compute_,
                                                 .buckets = t.buckets_,
                                                 .optimizer = updates.optimizer,
                                                 .schedule = updates.schedule,
                                                 .trace = worker.trace,
                                                 .timeout = absl::Seconds(options.timeout_s),
                                                 .threads = options.threads,
                                                 .group = worker.group,
                                                 .client = worker.client,
                                                 .deterministic = options.deterministic,
                                                 .serial = options.ps_schedule == "serial",
                                                 .clip_norm = options.clip_norm,
                                                 .staleness_lr = options.staleness_lr == "inverse",
                                                 .wire = wire,
                                                 .cuda_graph = options.cuda_graph,
                                                 .shares_process = options.ranks_per_process > 1,
                                                 .kept_every = kept_every,
                                                 .on_note = worker.on_note}));
  t.shares_steps_ = AlgorithmOf(*t.strategy_row_, options.strategy) == "async";
  t.stamps_.reserve(static_cast<size_t>(options.micro_batches * options.accumulate));
  t.pipeline_.emplace(t.buckets_, *t.compute_, *t.strategy_);

  PSRING_ASSIGN_OR_RETURN(t.delay_, ComputeDelay::Create(options, worker.rank, MonotonicNanos));
  if (t.delay_->active() && device.name() != "cpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("--straggler and --jitter_ms are for --device cpu, where computing is done when a call "
                     "returns; this is ",
                     device.name()));
  }

  t.sampler_.emplace(
      SamplerOptions{.count = data.count(),
                     .rank = worker.rank,
                     .world_size = worker.world_size,
                     .batch = options.batch,
                     .micro_batches = options.micro_batches * options.replicas * options.accumulate,
                     .seed = options.seed,
                     .drop_last = options.drop_last == "true"});
  if (worker.resume != nullptr) PSRING_RETURN_IF_ERROR(t.PlanResumption());
  return training;
}

absl::Status Training::MakeModel(const ModelRow& row, int max_batch) {
  const Dataset& data = worker_.data.train;
  Device& device = worker_.device;
  if (!strategy_row_->replicates) {
    PSRING_ASSIGN_OR_RETURN(model_, row.make(data, max_batch, device, *ops_));
    return absl::OkStatus();
  }
  if (device.name() != "cpu") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--strategy dp is for --device cpu, whose replicas are threads; this is ", device.name()));
  }
  const int max_share = (max_batch + options_.replicas - 1) / options_.replicas;
  const DataParallelOptions options{.replicas = options_.replicas,
                                    .max_batch = max_batch,
                                    .max_share = max_share,
                                    .sample_elements = static_cast<size_t>(data.image_size()),
                                    .classes = data.classes,
                                    .clock = [this] { return worker_.trace.Now(); }};
  PSRING_ASSIGN_OR_RETURN(
      std::unique_ptr<DataParallel> made,
      DataParallel::Create(options, device, *ops_, [&]() -> absl::StatusOr<DataParallel::Parts> {
        DataParallel::Parts parts;
        PSRING_ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(options_.precision));
        PSRING_ASSIGN_OR_RETURN(parts.ops, MakeOps(device, options_.threads, precision));
        PSRING_ASSIGN_OR_RETURN(parts.model, row.make(data, max_share, device, *parts.ops));
        return parts;
      }));
  replicas_ = made.get();
  model_ = std::move(made);
  return absl::OkStatus();
}

// For a parameter server on a GPU of this host; empty where there can be none, or the driver does not share.
std::string Training::OnGpu(const Buffer& memory) const {
  if (!server_shares_ || worker_.device.gpu() < 0) return "";
  return ExportMemory(worker_.device, memory).value_or("");
}

// What is sent lies in memory that peers of this host may read in place: the server, or the ranks of the
// group.
absl::Status Training::AllocateGradient(size_t bytes) {
  const bool group_shares = worker_.group != nullptr && worker_.registered != nullptr;
  PSRING_ASSIGN_OR_RETURN(own_gradient_, server_shares_ || group_shares ? worker_.device.AllocateShared(bytes)
                                                                        : worker_.device.Allocate(bytes));
  const bool through_host = worker_.group != nullptr && !worker_.group->info().on_gpu;
  if (through_host || worker_.client != nullptr) {
    PSRING_ASSIGN_OR_RETURN(host_gradient_, AllocateHostSide(worker_.device, own_gradient_));
  }
  Buffer& seen = host_gradient_.data() != nullptr ? host_gradient_ : own_gradient_;
  gradient_ = HostView::Of(own_gradient_, host_gradient_);
  gradient_fd_ = seen.shared_fd();
  if (!group_shares) return absl::OkStatus();
  worker_.registered->push_back(std::move(seen));
  return worker_.group->Register(worker_.registered->back());
}

std::vector<int64_t> Training::BytesOf(const std::vector<Bucket>& buckets) {
  std::vector<int64_t> bytes;
  for (const Bucket& bucket : buckets) bytes.push_back(static_cast<int64_t>(bucket.count * sizeof(float)));
  return bytes;
}

}  // namespace psring
