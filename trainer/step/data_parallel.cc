#include "trainer/step/data_parallel.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace psring {

absl::StatusOr<std::unique_ptr<DataParallel>> DataParallel::Create(
    const DataParallelOptions& options, Device& device, Ops& ops,
    const std::function<absl::StatusOr<Parts>()>& make) {
  PSRING_CHECK(options.replicas > 0);
  auto made = std::unique_ptr<DataParallel>(new DataParallel(options, ops));
  const size_t output_bytes = size_t(options.max_batch) * options.classes * SizeOf(ops.activations());
  PSRING_ASSIGN_OR_RETURN(made->outputs_, device.Allocate(output_bytes));
  PSRING_ASSIGN_OR_RETURN(made->output_gradient_, device.Allocate(output_bytes));
  for (int r = 0; r < options.replicas; ++r) {
    Replica& replica = made->replicas_.emplace_back();
    PSRING_ASSIGN_OR_RETURN(replica.parts, make());
    if (r == 0) continue;
    const size_t bytes = replica.parts.model->parameters().count() * sizeof(float);
    PSRING_ASSIGN_OR_RETURN(replica.weights, device.Allocate(bytes));
    PSRING_ASSIGN_OR_RETURN(replica.gradient, device.Allocate(bytes));
    PSRING_ASSIGN_OR_RETURN(
        replica.inputs, device.Allocate(size_t(options.max_share) * options.sample_elements * sizeof(float)));
    replica.lane = device.NewStream(StreamKind::kBackground, absl::StrCat("replica ", r));
  }
  // The other replicas' inputs, and all outputs with their gradients.
  made->figures_.device0_extra_mb =
      static_cast<double>(2 * output_bytes + size_t(options.max_batch - options.max_share) *
                                                 options.sample_elements * sizeof(float)) /
      (1 << 20);
  return made;
}

std::pair<int, int> DataParallel::ShareOf(int batch, size_t replica) const {
  const int r = static_cast<int>(replica), each = batch / options_.replicas, more = batch % options_.replicas;
  return {r * each + std::min(r, more), each + (r < more ? 1 : 0)};
}

void DataParallel::OnAll(Stream& stream, const std::function<void(Replica&, Stream&)>& work) {
  const Event begin = stream.Record();
  for (size_t r = 1; r < replicas_.size(); ++r) {
    Replica& replica = replicas_[r];
    replica.lane->WaitFor(begin);
    work(replica, *replica.lane);
  }
  work(replicas_[0], stream);
  for (size_t r = 1; r < replicas_.size(); ++r) stream.WaitFor(replicas_[r].lane->Record());
}

void DataParallel::Charge(double& ms, Stream& stream) {
  stream.Run([this, &ms] {
    const int64_t now = options_.clock();
    ms += 1e-6 * static_cast<double>(now - charged_ns_);
    charged_ns_ = now;
    return absl::OkStatus();
  });
}

ConstSpan DataParallel::Outputs(ConstSpan weights, const Batch& batch, Stream& stream) {
  PSRING_CHECK(batch.size <= options_.max_batch);
  stream.Run([this] {
    charged_ns_ = options_.clock();
    return absl::OkStatus();
  });
  for (size_t r = 0; r < replicas_.size(); ++r) {
    Replica& replica = replicas_[r];
    const auto [first, count] = ShareOf(batch.size, r);
    const size_t elements = size_t(count) * options_.sample_elements;
    replica.batch = {.size = count,
                     .inputs = batch.inputs.Slice(size_t(first) * options_.sample_elements, elements),
                     .labels = batch.labels + first};
    if (r == 0) continue;
    const Span own = replica.inputs.span().Slice(0, elements);
    stream.Copy(own.data, replica.batch.inputs.data, own.bytes());
    replica.batch.inputs = own;
    figures_.inputs_bytes += own.bytes();
  }
  Charge(figures_.inputs_ms, stream);
  for (size_t r = 1; r < replicas_.size(); ++r) {
    stream.Copy(replicas_[r].weights.data(), weights.data, weights.bytes());
    figures_.weights_bytes += weights.bytes();
  }
  Charge(figures_.weights_ms, stream);
  OnAll(stream, [&](Replica& replica, Stream& own) {
    const ConstSpan read = replica.lane == nullptr ? weights : ConstSpan(replica.weights.span());
    replica.outputs = replica.parts.model->Outputs(read, replica.batch, own);
  });
  Charge(figures_.compute_ms, stream);
  const Span gathered = outputs_.span(ops_.activations()).Slice(0, size_t(batch.size) * options_.classes);
  for (size_t r = 0; r < replicas_.size(); ++r) {
    const ConstSpan outputs = replicas_[r].outputs;
    if (outputs.count == 0)
      continue;  // an empty share of a short batch, or a recorded workload, which computes nothing
    const Span place = gathered.Slice(size_t(ShareOf(batch.size, r).first) * options_.classes, outputs.count);
    stream.Copy(place.data, outputs.data, outputs.bytes());
    if (r > 0) figures_.outputs_bytes += outputs.bytes();
  }
  Charge(figures_.outputs_ms, stream);
  return gathered;
}

Span DataParallel::OutputGradient(int batch) {
  return output_gradient_.span(ops_.activations()).Slice(0, size_t(batch) * options_.classes);
}

void DataParallel::Forward(ConstSpan weights, const Batch& batch, BatchScore* score, Stream& stream) {
  const ConstSpan outputs = Outputs(weights, batch, stream);
  if (replicas_[0].outputs.count > 0) {
    ops_.families().loss->SoftmaxCrossEntropy(batch.size, options_.classes, outputs, batch.labels,
                                              OutputGradient(batch.size), &score->loss_sum, &score->correct,
                                              stream);
  }
  Charge(figures_.loss_ms, stream);
}

void DataParallel::Backward(ConstSpan weights, const Batch& batch, Span gradient, Stream& stream,
                            const GradientReady& ready) {
  stream.Run([this] {
    charged_ns_ = options_.clock();
    return absl::OkStatus();
  });
  const ConstSpan output_gradient = OutputGradient(batch.size);
  for (size_t r = 0; r < replicas_.size(); ++r) {
    Replica& replica = replicas_[r];
    if (replica.outputs.count == 0) continue;
    const ConstSpan share =
        output_gradient.Slice(size_t(ShareOf(batch.size, r).first) * options_.classes, replica.outputs.count);
    stream.Copy(replica.parts.model->OutputGradient(replica.batch.size).data, share.data, share.bytes());
    if (r > 0) figures_.output_gradients_bytes += share.bytes();
  }
  Charge(figures_.output_gradients_ms, stream);
  OnAll(stream, [&](Replica& replica, Stream& own) {
    const bool first = replica.lane == nullptr;
    replica.parts.model->Backward(first ? weights : ConstSpan(replica.weights.span()), replica.batch,
                                  first ? gradient : replica.gradient.span(), own, [](ReadyRange) {});
  });
  Charge(figures_.compute_ms, stream);
  for (size_t r = 1; r < replicas_.size(); ++r) {
    ops_.Add(gradient, replicas_[r].gradient.span(), stream);
    figures_.gradients_bytes += gradient.bytes();
  }
  Charge(figures_.gradients_ms, stream);
  ready({0, gradient.count});
}

DataParallelFigures DataParallel::Take() {
  DataParallelFigures taken = figures_;
  figures_ = {.device0_extra_mb = taken.device0_extra_mb};
  taken.replicas = options_.replicas;
  return taken;
}

}  // namespace psring
