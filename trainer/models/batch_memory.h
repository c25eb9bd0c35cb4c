// Copies batches to the device and scores back.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/device/host_view.h"
#include "trainer/data/dataset.h"
#include "trainer/models/model.h"

namespace psring {

// One thread and one stream at a time.
class BatchMemory {
 public:
  // For batches of up to `max_batch` samples.
  static absl::StatusOr<BatchMemory> Create(const SampleSpec& samples, int max_batch, Device& device);

  // Samples `indices`, on the device in stream order. Waits until the previous batch has left the host.
  absl::StatusOr<Batch> Load(const Dataset& data, const std::vector<int64_t>& indices, Stream& stream);

  // The same of samples that are already in host memory.
  absl::StatusOr<Batch> Load(const GatheredBatch& gathered, Stream& stream);

  // On the device.
  BatchScore* score() { return score_.on_device(); }
  void ClearScore(Stream& stream) { score_.Zero(stream); }
  void DownloadScore(Stream& stream) { score_.Download(stream); }
  // Of the last DownloadScore, after Synchronize.
  BatchScore downloaded_score() const { return score_.on_host(); }

 private:
  // A tensor of the batch, and its copy on the host if the host cannot write the device's memory.
  struct Tensor {
    size_t sample_bytes = 0;
    Buffer memory = {}, host = {};
    void* on_host() const { return host.data() != nullptr ? host.data() : memory.data(); }
  };

  Batch Upload(int size, Stream& stream);

  std::vector<Tensor> tensors_;  // the inputs, then the labels
  std::vector<void*> host_inputs_;
  Event uploaded_;
  DeviceValue<BatchScore> score_;
};

}  // namespace psring
