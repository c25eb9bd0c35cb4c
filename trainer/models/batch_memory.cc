#include "trainer/models/batch_memory.h"

#include <cstring>

#include "common/base/check.h"
#include "common/base/deadline.h"

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
    if (device.host_reads_memory()) return absl::OkStatus();
    PSRING_ASSIGN_OR_RETURN(tensor.next, device.Allocate(max_batch * tensor.sample_bytes));
    return absl::OkStatus();
  };
  for (const TensorSpec& input : samples.inputs) {
    PSRING_RETURN_IF_ERROR(add(input.count()));
    m.host_inputs_.push_back(m.tensors_.back().on_host());
  }
  PSRING_RETURN_IF_ERROR(add(static_cast<size_t>(samples.labels)));
  PSRING_ASSIGN_OR_RETURN(m.score_, DeviceValue<BatchScore>::Create(device));
  if (!device.host_reads_memory()) m.uploads_ = device.NewStream(StreamKind::kCompute, "uploads");
  return m;
}

size_t BatchMemory::bytes() const {
  size_t bytes = sizeof(BatchScore);
  for (const Tensor& tensor : tensors_) bytes += tensor.memory.bytes() + tensor.next.bytes();
  return bytes;
}

void BatchMemory::GatherOnHost(const Dataset& data, const std::vector<int64_t>& indices) {
  data.Gather(indices, host_inputs_, static_cast<int32_t*>(tensors_.back().on_host()));
}

absl::Status BatchMemory::Prefetch(const Dataset& data, const std::vector<int64_t>& indices) {
  PSRING_CHECK(uploads());
  PSRING_RETURN_IF_ERROR(uploaded_.Wait(MonotonicNow() + kStuck));
  GatherOnHost(data, indices);
  uploads_->WaitFor(taken_);
  for (const Tensor& tensor : tensors_) {
    uploads_->Copy(tensor.next.data(), tensor.host.data(), indices.size() * tensor.sample_bytes);
  }
  uploaded_ = uploads_->Record();
  prefetched_of_ = &data;
  prefetched_ = indices;
  return absl::OkStatus();
}

absl::StatusOr<Batch> BatchMemory::Load(const Dataset& data, const std::vector<int64_t>& indices,
                                        Stream& stream) {
  if (prefetched_of_ == &data && prefetched_ == indices) return TakePrefetched(stream);
  PSRING_RETURN_IF_ERROR(uploaded_.Wait(MonotonicNow() + kStuck));
  GatherOnHost(data, indices);
  return Upload(static_cast<int>(indices.size()), stream);
}

Batch BatchMemory::TakePrefetched(Stream& stream) {
  stream.WaitFor(uploaded_);
  for (const Tensor& tensor : tensors_) {
    stream.Copy(tensor.memory.data(), tensor.next.data(), prefetched_.size() * tensor.sample_bytes);
  }
  taken_ = stream.Record();
  prefetched_of_ = nullptr;
  return OfSize(static_cast<int>(prefetched_.size()));
}

absl::StatusOr<Batch> BatchMemory::Load(const Batch& gathered, Stream& stream) {
  PSRING_RETURN_IF_ERROR(uploaded_.Wait(MonotonicNow() + kStuck));
  for (size_t i = 0; i < tensors_.size() && gathered.size > 0; ++i) {
    std::memcpy(tensors_[i].on_host(), i < host_inputs_.size() ? gathered.inputs[i] : gathered.labels,
                static_cast<size_t>(gathered.size) * tensors_[i].sample_bytes);
  }
  return Upload(gathered.size, stream);
}

Batch BatchMemory::Upload(int size, Stream& stream) {
  if (!uploads() || size == 0) return OfSize(size);  // the host has written the device's memory
  for (const Tensor& tensor : tensors_) {
    stream.Copy(tensor.memory.data(), tensor.host.data(), static_cast<size_t>(size) * tensor.sample_bytes);
  }
  uploaded_ = stream.Record();
  return OfSize(size);
}

Batch BatchMemory::OfSize(int size) const {
  Batch batch{.size = size, .labels = static_cast<const int32_t*>(tensors_.back().memory.data())};
  for (size_t i = 0; i < host_inputs_.size(); ++i) batch.inputs[i] = tensors_[i].memory.data();
  return batch;
}

}  // namespace psring
