#include "trainer/models/batch_memory.h"

#include "absl/time/clock.h"
#include "common/base/check.h"

namespace psring {
namespace {

// A stream without progress for this time has failed.
constexpr absl::Duration kStuck = absl::Minutes(10);

}  // namespace

absl::StatusOr<BatchMemory> BatchMemory::Create(const Dataset& data, int max_batch, Device& device) {
  BatchMemory m;
  PSRING_ASSIGN_OR_RETURN(m.inputs_, device.Allocate(max_batch * data.image_size() * sizeof(float)));
  PSRING_ASSIGN_OR_RETURN(m.labels_, device.Allocate(max_batch * sizeof(int32_t)));
  PSRING_ASSIGN_OR_RETURN(m.host_inputs_, AllocateHostSide(device, m.inputs_));
  PSRING_ASSIGN_OR_RETURN(m.host_labels_, AllocateHostSide(device, m.labels_));
  PSRING_ASSIGN_OR_RETURN(m.score_, DeviceValue<BatchScore>::Create(device));
  return m;
}

absl::StatusOr<Batch> BatchMemory::Load(const Dataset& data, const std::vector<int64_t>& indices,
                                        Stream& stream) {
  PSRING_RETURN_IF_ERROR(uploaded_.Wait(absl::Now() + kStuck));
  const HostView inputs = HostView::Of(inputs_, host_inputs_).Slice(0, indices.size() * data.image_size());
  int32_t* const labels = static_cast<int32_t*>(labels_.data());
  int32_t* const host_labels =
      host_labels_.data() != nullptr ? static_cast<int32_t*>(host_labels_.data()) : labels;
  GatherBatch(data, indices, inputs.host.floats(), host_labels);
  if (!inputs.is_one()) {
    inputs.Upload(stream);
    stream.Copy(labels, host_labels, indices.size() * sizeof(int32_t));
    uploaded_ = stream.Record();
  }
  return Batch{.size = static_cast<int>(indices.size()), .inputs = inputs.device, .labels = labels};
}

}  // namespace psring
