#include "trainer/memory/memory_need.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/device/counting_device.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "trainer/layers/tensor_axis.h"
#include "trainer/models/batch_memory.h"

namespace psring {
namespace {

constexpr double kMiB = 1 << 20;

}  // namespace

std::string MebibytesText(size_t bytes) {
  const double mib = static_cast<double>(bytes) / kMiB;
  return mib < 1024 ? absl::StrFormat("%.1f MiB", mib) : absl::StrFormat("%.2f GiB", mib / 1024);
}

absl::StatusOr<MemoryNeed> MemoryNeedOf(const TrainingOptions& options, const Model& model,
                                        const SampleSpec& samples, int max_batch, const StateOnRank& on_rank,
                                        Device& device) {
  MemoryNeed need;
  CountingDevice batch(device), state(device), all(device), unit_inputs(device);
  const bool divides = on_rank.divides_backward;
  PSRING_RETURN_IF_ERROR(
      model.NewActivations(max_batch, divides ? Keep::kForWeights : Keep::kAll, all).status());
  PSRING_RETURN_IF_ERROR(model.NewActivations(max_batch, Keep::kUnitInputs, unit_inputs).status());
  need.recomputes = options.recompute;
  need.recompute_saves = divides ? 0 : on_rank.slots * (all.bytes() - unit_inputs.bytes());
  PSRING_RETURN_IF_ERROR(BatchMemory::Create(samples, max_batch, batch).status());
  need.batch = on_rank.slots * (batch.bytes() + (need.recomputes ? unit_inputs : all).bytes()) +
               TensorAxis::ReservedBytes(model.PieceBytes(max_batch)) + model.ExchangeBytes(max_batch);
  const size_t parameters = model.parameters().count();
  const size_t gradients =
      1 + (options.reference_workers > 1 ? 1 : 0) + (options.micro_batches > on_rank.updates ? 1 : 0);
  const auto or_all = [](size_t elements, size_t all) { return elements > 0 ? elements : all; };
  // The gradients of tables are rows.
  const size_t tables = on_rank.has_tables ? model.parameters().table_elements() : 0;
  need.gradients = or_all(on_rank.gradient_elements, gradients * parameters) * sizeof(float);
  need.parameters =
      need.gradients + (or_all(on_rank.weight_elements, parameters) + on_rank.older_versions * parameters +
                        tables + model.parameters().initial_buffers().size()) *
                           sizeof(float);
  need.units = on_rank.unit_elements * sizeof(float);
  if (on_rank.optimizer != nullptr) {
    const size_t shards = static_cast<size_t>(on_rank.shards), own = (parameters + shards - 1) / shards;
    PSRING_RETURN_IF_ERROR(Optimizer::Create(*on_rank.optimizer, state, own + tables).status());
  }
  need.optimizer = state.bytes();
  return need;
}

MemoryFigures ByClass(const MemoryNeed& need) {
  return {.params_mb = static_cast<double>(need.parameters - need.gradients) / kMiB,
          .grads_mb = static_cast<double>(need.gradients) / kMiB,
          .optimizer_mb = static_cast<double>(need.optimizer) / kMiB,
          .activations_mb = static_cast<double>(need.batch) / kMiB};
}

absl::StatusOr<std::vector<MemoryShare>> SharesOf(const MemoryNeed& need, const std::string& limit,
                                                  const Device& device, const ShareMemory& share) {
  std::vector<MemoryShare> shares;
  if (limit == "none") return shares;
  if (!limit.empty()) {
    PSRING_ASSIGN_OR_RETURN(const size_t bytes, ParseByteSize(limit));
    shares.push_back({{.free = bytes, .total = bytes}, 1, need.total(), true});
  }
  // Read before the others may allocate.
  const std::optional<Device::Memory> memory = device.memory();
  PSRING_ASSIGN_OR_RETURN(const MemoryUse use, share(need.total()));
  if (memory.has_value()) shares.push_back({*memory, use.ranks, use.bytes, false});
  return shares;
}

absl::Status CheckMemory(const MemoryNeed& need, const MemoryShare& share, int max_batch,
                         const std::string& device, const std::string& remedy) {
  if (share.needed <= share.memory.free) return absl::OkStatus();
  const std::string classes =
      Tr("parameters $0, gradients $1, optimizer $2, activations of $3 samples $4$5",
         MebibytesText(need.parameters - need.gradients), MebibytesText(need.gradients),
         MebibytesText(need.optimizer), max_batch, MebibytesText(need.batch),
         need.units == 0 ? "" : Tr("; $0 of it are buffers for complete units", MebibytesText(need.units)));
  const std::string free = share.is_limit ? Tr("--memory allows $0", MebibytesText(share.memory.free))
                                          : Tr("$0 of $1 are free", MebibytesText(share.memory.free),
                                               MebibytesText(share.memory.total));
  const std::string all = share.ranks == 1
                              ? ""
                              : Tr(" for this one of the $0 workers that share it, which need $1 together",
                                   share.ranks, MebibytesText(share.needed));
  return ResourceExhausted(
      Tr("$0: training needs at least $1 of memory ($2)$3, and $4; use a smaller --batch or network", device,
         MebibytesText(need.total()), classes, all, free),
      need.recomputes || need.recompute_saves == 0
          ? ""
          : Tr(", --recompute, which saves $0", MebibytesText(need.recompute_saves)),
      device == "cpu" ? "" : Tr(", or --device cpu"), remedy);
}

std::string RecomputeNote(const MemoryNeed& need, int max_batch) {
  return absl::StrCat("--recompute: activations of ", max_batch, " samples need ", MebibytesText(need.batch),
                      " instead of ", MebibytesText(need.batch + need.recompute_saves));
}

}  // namespace psring
