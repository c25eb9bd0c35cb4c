// Copies batches to the device and scores back.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/device/host_view.h"
#include "trainer/data/data.h"
#include "trainer/models/model.h"

namespace psring {

// One thread and one stream at a time.
class BatchMemory {
 public:
  // For batches of up to `max_batch` images of `data`'s size.
  static absl::StatusOr<BatchMemory> Create(const Dataset& data, int max_batch, Device& device);

  // Samples `indices`, on the device in stream order. Waits until the previous batch has left the host.
  absl::StatusOr<Batch> Load(const Dataset& data, const std::vector<int64_t>& indices, Stream& stream);

  // On the device.
  BatchScore* score() { return score_.on_device(); }
  void ClearScore(Stream& stream) { score_.Zero(stream); }
  void DownloadScore(Stream& stream) { score_.Download(stream); }
  // Of the last DownloadScore, after Synchronize.
  BatchScore downloaded_score() const { return score_.on_host(); }

 private:
  Buffer inputs_, labels_, host_inputs_, host_labels_;
  Event uploaded_;
  DeviceValue<BatchScore> score_;
};

}  // namespace psring
