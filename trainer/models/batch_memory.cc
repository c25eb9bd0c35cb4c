#include "trainer/models/batch_memory.h"

#include <cstring>

#include "absl/time/clock.h"
#include "common/base/check.h"

namespace psring {
namespace {

// A stream without progress for this time has failed.
constexpr absl::Duration kStuck = absl::Minutes(10);

}  // namespace

absl::StatusOr<BatchMemory> BatchMemory::Create(const SampleSpec& samples, int max_batch, Device& device) {
  BatchMemory m;
  const auto add = [&](size_t elements) -> absl::Status {
    Tensor& tensor = m.tensors_.emplace_back(Tensor{.sample_bytes = 4 * elements});
    PSRING_ASSIGN_OR_RETURN(tensor.memory, device.Allocate(max_batch * tensor.sample_bytes));
    PSRING_ASSIGN_OR_RETURN(tensor.host, AllocateHostSide(device, tensor.memory));
    return absl::OkStatus();
  };
  for (const TensorSpec& input : samples.inputs) {
    PSRING_RETURN_IF_ERROR(add(input.count()));
    m.host_inputs_.push_back(m.tensors_.back().on_host());
  }
  PSRING_RETURN_IF_ERROR(add(static_cast<size_t>(samples.labels)));
  PSRING_ASSIGN_OR_RETURN(m.score_, DeviceValue<BatchScore>::Create(device));
  return m;
}

absl::StatusOr<Batch> BatchMemory::Load(const Dataset& data, const std::vector<int64_t>& indices,
                                        Stream& stream) {
  PSRING_RETURN_IF_ERROR(uploaded_.Wait(absl::Now() + kStuck));
  data.Gather(indices, host_inputs_, static_cast<int32_t*>(tensors_.back().on_host()));
  return Upload(static_cast<int>(indices.size()), stream);
}

absl::StatusOr<Batch> BatchMemory::Load(const GatheredBatch& gathered, Stream& stream) {
  PSRING_RETURN_IF_ERROR(uploaded_.Wait(absl::Now() + kStuck));
  for (size_t i = 0; i < tensors_.size() && gathered.size > 0; ++i) {
    std::memcpy(tensors_[i].on_host(), i < host_inputs_.size() ? gathered.inputs[i] : gathered.labels,
                static_cast<size_t>(gathered.size) * tensors_[i].sample_bytes);
  }
  return Upload(gathered.size, stream);
}

Batch BatchMemory::Upload(int size, Stream& stream) {
  Batch batch{.size = size, .labels = static_cast<const int32_t*>(tensors_.back().memory.data())};
  bool uploads = false;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    if (i < host_inputs_.size()) batch.inputs[i] = tensor.memory.data();
    if (tensor.host.data() == nullptr || size == 0) continue;
    stream.Copy(tensor.memory.data(), tensor.host.data(), static_cast<size_t>(size) * tensor.sample_bytes);
    uploads = true;
  }
  if (uploads) uploaded_ = stream.Record();
  return batch;
}

}  // namespace psring
