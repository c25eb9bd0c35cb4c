#include "trainer/main/describe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cuda/cuda_device.h"
#include "common/device/memory_limit.h"
#include "common/device_factory/make_device.h"
#include "common/device_factory/make_ops.h"
#include "trainer/data/data.h"
#include "trainer/main/resume.h"
#include "trainer/memory/layout_memory.h"
#include "trainer/models/model_stages.h"
#include "trainer/models/replayed_model.h"
#include "trainer/pipeline/model_part.h"
#include "trainer/programs/pipeline_flags.h"
#include "trainer/step/evaluation.h"
#include "trainer/step/plan/training_plan.h"
#include "trainer/strategies/group_options.h"
#include "trainer/strategies/strategies.h"

namespace psring {
namespace {

using Json = nlohmann::ordered_json;

// Both: "process_group+parameter_server".
std::string NeedsText(const StrategyRow& row) {
  if (!row.communicates()) return "nothing";
  return absl::StrCat(row.uses_group ? "process_group" : "", row.uses_group && row.uses_servers ? "+" : "",
                      row.uses_servers ? "parameter_server" : "");
}

// Of the default data.
ParameterLayout LayoutOf(const ModelRow& row) {
  const std::unique_ptr<Ops> ops = MakeOneDnnOps(/*threads=*/1);
  auto model = row.make(TypicalSpec(row.default_data, row.size.context), *ops);
  PSRING_CHECK(model.ok());
  return (*model)->parameters();
}

// ResourceExhausted: the ranks of this host's devices do not have the memory for `workers` of them. Otherwise
// the error with which CutModel rejects their stages or shares.
absl::StatusOr<MemoryNeed> CheckMemoryOf(const TrainingOptions& options, const MemoryQuestion& question) {
  PSRING_ASSIGN_OR_RETURN(const StrategyRow strategy, FindStrategy(options.strategy));
  PSRING_ASSIGN_OR_RETURN(const MemoryNeed need, MostNeeded(options, strategy, question));
  const int gpus = CudaDeviceCount();
  // A limited address space is that of a process.
  const int on_host =
      AddressSpace().has_value() ? std::min(options.ranks_per_process, question.workers) : question.workers;
  const int sharers = question.device.gpu() < 0 ? on_host
                      : options.oversubscribe   ? (question.workers + gpus - 1) / gpus
                                                : 1;
  PSRING_ASSIGN_OR_RETURN(const std::vector<MemoryShare> shares,
                          SharesOf(need, options.memory, question.device, [sharers](size_t bytes) {
                            return MemoryUse{sharers, static_cast<size_t>(sharers) * bytes};
                          }));
  PSRING_RETURN_IF_ERROR(CheckShares(need, shares, options, question,
                                     [&](const TrainingOptions& layout, const StrategyRow& row) {
                                       return CheckLayout(layout, row, question.workers);
                                     }));
  return need;
}

// The numbers of ranks that can divide the matrices of the model (--tp), 1 first.
std::vector<int> TensorRanks(int heads, const MakeModel& make) {
  std::vector<int> possible = {1};
  for (int ranks = 2; ranks <= heads; ++ranks) {
    if (heads % ranks == 0 && make({.ranks = ranks}).ok()) possible.push_back(ranks);
  }
  return possible;
}

}  // namespace

std::string DescribeAsJson() {
  Json strategies = Json::array(), models = Json::array(), data = Json::array();
  for (const StrategyRow& row : StrategyRows()) {
    strategies.push_back({{"name", row.name},
                          {"summary", row.summary},
                          {"aliases", row.aliases},
                          {"also_called", row.also_called},
                          {"resembles", row.resembles},
                          {"needs", NeedsText(row)},
                          {"backend", row.backend},
                          {"algorithm", row.algorithm},
                          {"transport", row.transport},
                          {"synchronous", row.synchronous},
                          {"single_process", row.single_process},
                          {"replicates", row.replicates},
                          {"shares_steps", row.shares_steps},
                          {"drops_gradients", row.drops_gradients},
                          {"default_momentum", row.default_momentum},
                          {"number", row.number_letter},
                          {"number_meaning", row.number_meaning},
                          {"number_least", row.number_least},
                          {"number_below_workers", row.number_below_workers},
                          {"number_optional", row.number_optional}});
  }
  for (const ModelRow& row : Models()) {
    const ParameterLayout layout = LayoutOf(row);
    models.push_back({{"name", row.name},
                      {"summary", row.summary},
                      {"default_lr", row.default_lr},
                      {"default_async_lr", row.default_async_lr},
                      {"parameters", layout.parameters()},  // without tables
                      {"has_tables", !layout.tables().empty()}});
  }
  for (const DataRow& row : DataRows()) data.push_back({{"name", row.name}, {"summary", row.summary}});
  return Json{{"strategies", strategies}, {"models", models}, {"data", data}}.dump(2);
}

absl::StatusOr<std::string> CheckAsJson(const TrainingOptions& options, int world_size) {
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, MakeDevice(options.device));
  PSRING_RETURN_IF_ERROR(CheckDevice(options, *device));
  PSRING_ASSIGN_OR_RETURN(const ModelRow row, ModelOf(options));
  PSRING_ASSIGN_OR_RETURN(const DataSplits data, DataOf(options));
  PSRING_ASSIGN_OR_RETURN(const StepPlan steps, PlanSteps(options, data.train.count(),
                                                          std::max(1, world_size / ReplicaRanks(options)),
                                                          data.train.spec().labels));
  PSRING_ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(options.precision));
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, MakeOps(*device, /*threads=*/1, precision));
  const MakeModel make = [&](const TensorPlace& at) -> absl::StatusOr<std::unique_ptr<Model>> {
    if (at.ranks == 1) return row.make(data.train.spec(), *ops);
    PSRING_ASSIGN_OR_RETURN(const ModelRow::Make share, MakerOfPart(row, options.dropout, at));
    return share(data.train.spec(), *ops);
  };
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, make({}));
  PSRING_ASSIGN_OR_RETURN(const int evaluation_batch,
                          EvaluationBatch(*model, data.train.spec(), options.batch, *device));
  PSRING_ASSIGN_OR_RETURN(const StrategyRow trained, FindStrategy(options.strategy));
  PSRING_ASSIGN_OR_RETURN(const UpdatePlan own, PlanUpdates(options, trained, row, steps));
  PSRING_ASSIGN_OR_RETURN(
      const MemoryNeed need,
      CheckMemoryOf(options, {.row = row,
                              .samples = data.train.spec(),
                              .optimizer = own.optimizer,
                              .workers = world_size,
                              .max_batch = std::max(options.batch * options.replicas, evaluation_batch),
                              .ops = *ops,
                              .device = *device}));
  PSRING_RETURN_IF_ERROR(CheckSyncBatchNorm(options, model->parameters()));
  PSRING_ASSIGN_OR_RETURN(const std::optional<CheckpointBytes> resume,
                          ReadResume(options, [](const std::string&) {}));
  if (resume.has_value()) {
    PSRING_RETURN_IF_ERROR(Prefixed(DecodeCheckpoint(*resume, model->parameters()).status(), "--resume: "));
  }
  Json updates = Json::array();
  const auto add = [&](const std::string& name, const UpdatePlan& plan, const absl::Status& refused) {
    const bool has_momentum = plan.optimizer.kind == OptimizerKind::kMomentum;
    updates.push_back({{"strategy", name},
                       {"optimizer", OptimizerName(plan.optimizer.kind)},
                       {"lr", plan.schedule.base},
                       {"momentum", has_momentum ? plan.optimizer.momentum : 0},
                       {"warnings", PlanWarnings(plan)},
                       {"refused", std::string(refused.message())}});
  };
  for (const StrategyRow& strategy : StrategyRows()) {
    PSRING_ASSIGN_OR_RETURN(const UpdatePlan plan, PlanUpdates(options, strategy, row, steps));
    absl::Status refused = CheckGroup(strategy, options);
    if (refused.ok()) refused = CheckSyncBatchNorm(options, strategy);
    if (refused.ok()) refused = CheckTables(options, strategy, plan.optimizer, model->parameters());
    add(strategy.name, plan, refused);
  }
  PSRING_ASSIGN_OR_RETURN(const StrategyRow replicas, FindStrategy("ring"));
  PSRING_ASSIGN_OR_RETURN(const UpdatePlan stale, PlanUpdates(WithoutFlush(options), replicas, row, steps));
  add(kWithoutFlush, stale, absl::OkStatus());
  std::vector<int64_t> bucket_elements;
  for (const Bucket& bucket : PlanBuckets(model->parameters(), BucketSizesOf(options))) {
    bucket_elements.push_back(static_cast<int64_t>(bucket.count));
  }
  return Json{{"samples", data.train.predictions()},
              {"test_samples", data.test.predictions()},
              {"predictions", data.train.spec().labels},
              {"data_hash", absl::StrCat(data.train.Hash(), data.test.Hash())},
              {"parameters", model->parameters().parameters()},
              {"bucket_elements", bucket_elements},
              {"cuts", TrainableCuts(*model)},
              {"cut_points", model->CutPoints()},
              {"tensor_ranks", TensorRanks(row.size.heads, make)},
              {"device", device->name()},
              {"memory_bytes", need.total()},
              {"free_bytes", device->memory().value_or(Device::Memory()).free},
              {"updates", updates}}
      .dump(2);
}

}  // namespace psring
