#include "trainer/step/memory_need.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/device/counting_device.h"
#include "trainer/models/batch_memory.h"

namespace psring {
namespace {

constexpr double kMiB = 1 << 20;

std::string Readable(size_t bytes) {
  const double mib = static_cast<double>(bytes) / kMiB;
  return mib < 1024 ? absl::StrFormat("%.1f MiB", mib) : absl::StrFormat("%.2f GiB", mib / 1024);
}

}  // namespace

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
               model.PieceBytes(max_batch) + model.ExchangeBytes(max_batch);
  const size_t parameters = model.parameters().count();
  const size_t gradients = 1 + (options.reference_workers > 1 ? 1 : 0) + (options.micro_batches > 1 ? 1 : 0);
  const auto or_all = [](size_t elements, size_t all) { return elements > 0 ? elements : all; };
  // The gradients of tables are rows.
  const size_t tables = on_rank.has_tables ? model.parameters().table_elements() : 0;
  need.gradients = or_all(on_rank.gradient_elements, gradients * parameters) * sizeof(float);
  need.parameters = need.gradients + (or_all(on_rank.weight_elements, parameters) + tables +
                                      model.parameters().initial_buffers().size()) *
                                         sizeof(float);
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

absl::Status CheckMemory(const MemoryNeed& need, const Device::Memory& memory, int max_batch,
                         const std::string& device) {
  if (need.total() <= memory.free) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      device, ": training needs at least ", Readable(need.total()), " of memory (weights and gradients ",
      Readable(need.parameters), ", optimizer ", Readable(need.optimizer), ", activations of ", max_batch,
      " samples ", Readable(need.batch), "), and ", Readable(memory.free), " of ", Readable(memory.total),
      " are free; use a smaller --batch or network",
      need.recomputes || need.recompute_saves == 0
          ? ""
          : absl::StrCat(", --recompute, which saves ", Readable(need.recompute_saves)),
      device == "cpu" ? "" : ", or --device cpu"));
}

std::string RecomputeNote(const MemoryNeed& need, int max_batch) {
  return absl::StrCat("--recompute: activations of ", max_batch, " samples need ", Readable(need.batch),
                      " instead of ", Readable(need.batch + need.recompute_saves));
}

}  // namespace psring
