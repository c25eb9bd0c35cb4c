#include "trainer/models/data_parallel.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace psring {

absl::StatusOr<std::unique_ptr<DataParallel>> DataParallel::Create(
    const DataParallelOptions& options, Device& device, Ops& ops,
    const std::function<absl::StatusOr<Parts>()>& make) {
  PSRING_CHECK(options.replicas > 0);
  auto made = std::unique_ptr<DataParallel>(new DataParallel(options, ops));
  size_t input_bytes = 0;  // of a sample
  for (const TensorSpec& input : options.samples.inputs) input_bytes += 4 * input.count();
  for (int r = 0; r < options.replicas; ++r) {
    Replica& replica = made->replicas_.emplace_back();
    PSRING_ASSIGN_OR_RETURN(replica.parts, make());
    if (r == 0) continue;
    const size_t bytes = replica.parts.model->parameters().count() * sizeof(float);
    PSRING_ASSIGN_OR_RETURN(replica.weights, device.Allocate(bytes));
    PSRING_ASSIGN_OR_RETURN(replica.gradient, device.Allocate(bytes));
    for (const TensorSpec& input : options.samples.inputs) {
      PSRING_ASSIGN_OR_RETURN(replica.inputs.emplace_back(),
                              device.Allocate(size_t(options.max_share) * 4 * input.count()));
    }
    replica.lane = device.NewStream(StreamKind::kBackground, absl::StrCat("replica ", r));
  }
  // The other replicas' inputs, and all outputs, which their gradients overwrite.
  made->figures_.device0_extra_mb =
      static_cast<double>(size_t(options.max_batch) * made->OutputElements() * SizeOf(ops.activations()) +
                          size_t(options.max_batch - options.max_share) * input_bytes) /
      (1 << 20);
  return made;
}

absl::StatusOr<Activations> DataParallel::NewActivations(int max_batch, Keep keep, Device& device) const {
  PSRING_CHECK(max_batch <= options_.max_batch);
  Activations made{.max_batch = max_batch, .keep = keep};
  const size_t count = size_t(max_batch) * OutputElements();
  PSRING_ASSIGN_OR_RETURN(made.memory, device.Allocate(count * SizeOf(ops_.activations())));
  made.values.push_back(made.memory.span(ops_.activations()));
  for (const Replica& replica : replicas_) {
    PSRING_ASSIGN_OR_RETURN(made.replicas.emplace_back(),
                            replica.parts.model->NewActivations(options_.max_share, keep, device));
  }
  return made;
}

std::pair<int, int> DataParallel::ShareOf(int batch, size_t replica) const {
  const int r = static_cast<int>(replica), each = batch / options_.replicas, more = batch % options_.replicas;
  return {r * each + std::min(r, more), each + (r < more ? 1 : 0)};
}

absl::Status DataParallel::OnAll(Stream& stream, const std::function<absl::Status(Replica&, Stream&)>& work) {
  const Event begin = stream.Record();
  for (size_t r = 1; r < replicas_.size(); ++r) {
    Replica& replica = replicas_[r];
    replica.lane->WaitFor(begin);
    replica.status = work(replica, *replica.lane);
  }
  replicas_[0].status = work(replicas_[0], stream);
  for (size_t r = 1; r < replicas_.size(); ++r) stream.WaitFor(replicas_[r].lane->Record());
  for (const Replica& replica : replicas_) PSRING_RETURN_IF_ERROR(replica.status);
  return absl::OkStatus();
}

Span DataParallel::PlaceOf(const Activations& activations, int batch, size_t replica) const {
  const auto [first, count] = ShareOf(batch, replica);
  return activations.values[0].Slice(size_t(first) * OutputElements(), size_t(count) * OutputElements());
}

void DataParallel::Charge(double* ms, Stream& stream) {
  stream.Run([this, ms] {
    const int64_t now = options_.clock();
    if (ms != nullptr) *ms += 1e-6 * static_cast<double>(now - charged_ns_);
    charged_ns_ = now;
    return absl::OkStatus();
  });
}

ModelState DataParallel::StateOf(const Replica& replica, const ModelState& all) {
  if (replica.lane == nullptr) return all;
  ModelState own = all;
  own.weights = replica.weights.span();
  if (all.mode == PassMode::kTraining) own.buffers = {};
  if (all.sample_seeds != nullptr) own.sample_seeds = all.sample_seeds + replica.first;
  return own;
}

absl::StatusOr<Span> DataParallel::ForwardUnit(LayerRange /*unit*/, const ModelState& state,
                                               const Batch& batch, Activations& activations, Stream& stream) {
  PSRING_CHECK(batch.size <= activations.max_batch);
  Charge(nullptr, stream);
  for (size_t r = 0; r < replicas_.size(); ++r) {
    Replica& replica = replicas_[r];
    const auto [first, count] = ShareOf(batch.size, r);
    replica.first = first;
    replica.batch = {.size = count,
                     .labels = batch.labels + static_cast<std::ptrdiff_t>(first) * options_.samples.labels};
    for (size_t i = 0; i < options_.samples.inputs.size(); ++i) {
      const size_t bytes = 4 * options_.samples.inputs[i].count();
      const void* input = static_cast<const std::byte*>(batch.inputs[i]) + size_t(first) * bytes;
      if (r > 0) {
        stream.Copy(replica.inputs[i].data(), input, size_t(count) * bytes);
        input = replica.inputs[i].data();
        figures_.inputs_bytes += size_t(count) * bytes;
      }
      replica.batch.inputs[i] = input;
    }
  }
  Charge(&figures_.inputs_ms, stream);
  for (size_t r = 1; r < replicas_.size(); ++r) {
    stream.Copy(replicas_[r].weights.data(), state.weights.data, state.weights.bytes());
    figures_.weights_bytes += state.weights.bytes();
  }
  Charge(&figures_.weights_ms, stream);
  PSRING_RETURN_IF_ERROR(OnAll(stream, [&](Replica& replica, Stream& own) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(replica.outputs,
                            replica.parts.model->Outputs(StateOf(replica, state), replica.batch,
                                                         OwnOf(replica, activations), own));
    return absl::OkStatus();
  }));
  Charge(&figures_.compute_ms, stream);
  for (size_t r = 0; r < replicas_.size(); ++r) {
    const ConstSpan outputs = replicas_[r].outputs;
    if (outputs.count == 0)
      continue;  // an empty share of a short batch, or a recorded workload, which computes nothing
    stream.Copy(PlaceOf(activations, batch.size, r).data, outputs.data, outputs.bytes());
    if (r > 0) figures_.outputs_bytes += outputs.bytes();
  }
  Charge(&figures_.outputs_ms, stream);
  return activations.values[0].Slice(0, size_t(batch.size) * OutputElements());
}

absl::Status DataParallel::Loss(const Batch& batch, Activations& activations, BatchScore* score,
                                Stream& stream) {
  const Span outputs = activations.values[0].Slice(0, size_t(batch.size) * OutputElements());
  if (replicas_[0].outputs.count > 0) {
    ops_.families().loss->SoftmaxCrossEntropy(batch.size * options_.samples.labels, options_.samples.classes,
                                              outputs, batch.labels, outputs, &score->loss_sum,
                                              &score->correct, stream);
  }
  Charge(&figures_.loss_ms, stream);
  return absl::OkStatus();
}

absl::Status DataParallel::BackwardUnit(LayerRange /*unit*/, const ModelState& state, const Batch& batch,
                                        Activations& activations, Span gradient, Stream& stream) {
  Charge(nullptr, stream);
  for (size_t r = 0; r < replicas_.size(); ++r) {
    const Span own = replicas_[r].outputs;
    if (own.count == 0) continue;
    stream.Copy(own.data, PlaceOf(activations, batch.size, r).data, own.bytes());
    if (r > 0) figures_.output_gradients_bytes += own.bytes();
  }
  Charge(&figures_.output_gradients_ms, stream);
  PSRING_RETURN_IF_ERROR(OnAll(stream, [&](Replica& replica, Stream& own) {
    return replica.parts.model->Backward(StateOf(replica, state), replica.batch, OwnOf(replica, activations),
                                         replica.lane == nullptr ? gradient : replica.gradient.span(), own);
  }));
  Charge(&figures_.compute_ms, stream);
  for (size_t r = 1; r < replicas_.size(); ++r) {
    ops_.Add(gradient, replicas_[r].gradient.span(), stream);
    figures_.gradients_bytes += gradient.bytes();
  }
  Charge(&figures_.gradients_ms, stream);
  return absl::OkStatus();
}

DataParallelFigures DataParallel::Take() {
  DataParallelFigures taken = figures_;
  figures_ = {.device0_extra_mb = taken.device0_extra_mb};
  taken.replicas = options_.replicas;
  return taken;
}

}  // namespace psring
