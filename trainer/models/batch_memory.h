// Copies batches to the device and scores back.
#pragma once

#include <cstdint>
#include <memory>
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

  // Whether batches are uploaded: the host cannot write the device's memory.
  bool uploads() const { return uploads_ != nullptr; }
  // Only if uploads(): uploads the samples that the next Load will probably ask for, while the device
  // computes. Waits until the previous batch has left the host.
  absl::Status Prefetch(const Dataset& data, const std::vector<int64_t>& indices);

  // Samples `indices`, on the device in stream order. Waits until the previous batch has left the host.
  absl::StatusOr<Batch> Load(const Dataset& data, const std::vector<int64_t>& indices, Stream& stream);

  // The same of samples that are already in host memory.
  absl::StatusOr<Batch> Load(const Batch& gathered, Stream& stream);

  size_t bytes() const;  // of the device's memory

  // On the device.
  BatchScore* score() { return score_.on_device(); }
  void ClearScore(Stream& stream) { score_.Zero(stream); }
  void DownloadScore(Stream& stream) { score_.Download(stream); }
  // Of the last DownloadScore, after Synchronize.
  BatchScore downloaded_score() const { return score_.on_host(); }

 private:
  // A tensor of the batch. If the host cannot write the device's memory, also its copy on the host, and where
  // the next batch is uploaded: a recorded step reads each batch at the same place.
  struct Tensor {
    size_t sample_bytes = 0;
    Buffer memory = {}, host = {}, next = {};
    void* on_host() const { return host.data() != nullptr ? host.data() : memory.data(); }
  };

  void GatherOnHost(const Dataset& data, const std::vector<int64_t>& indices);
  Batch Upload(int size, Stream& stream);
  Batch TakePrefetched(Stream& stream);
  Batch OfSize(int size) const;

  std::vector<Tensor> tensors_;  // the inputs, then the labels
  std::vector<void*> host_inputs_;
  Event uploaded_;  // the last batch has left the host
  DeviceValue<BatchScore> score_;
  // The prefetched batch; no data: none.
  const Dataset* prefetched_of_ = nullptr;
  std::vector<int64_t> prefetched_;
  Event taken_;                      // the last prefetched batch
  std::unique_ptr<Stream> uploads_;  // null unless uploads(). Last: its work uses the above
};

}  // namespace psring
