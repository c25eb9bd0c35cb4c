// Clipping of this rank's gradient, such as the sum over all ranks, by its norm over all parameters.
#pragma once

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/device/device.h"
#include "common/device/host_view.h"
#include "common/ops/gradient_norm.h"
#include "common/ops/ops.h"

namespace psring {

// Per step: Begin, Add for each bucket, End, then Factor. Without clipping all of them do nothing.
class NormClipping {
 public:
  // `clip_norm` 0: no clipping.
  static absl::StatusOr<NormClipping> Create(double clip_norm, Device& device) {
    NormClipping clipping;
    clipping.clip_norm_ = clip_norm;
    PSRING_ASSIGN_OR_RETURN(clipping.sum_of_squares_, DeviceValue<double>::Create(device));
    return clipping;
  }

  bool active() const { return clip_norm_ > 0; }

  void Begin(Stream& stream) const {
    if (active()) sum_of_squares_.Zero(stream);
  }
  void Add(ConstSpan gradient, Ops& ops, Stream& stream) const {
    if (active()) ops.AddSquares(gradient, sum_of_squares_.on_device(), stream);
  }
  void End(Stream& stream) const {
    if (active()) sum_of_squares_.Download(stream);
  }

  // The factor of the mean gradient, after the stream of End was synchronized. `samples`: in the gradient.
  absl::StatusOr<double> Factor(int64_t samples) const {
    return active() ? ClipFactor(clip_norm_, sum_of_squares_.on_host(), samples) : 1.0;
  }

 private:
  double clip_norm_ = 0;
  DeviceValue<double> sum_of_squares_;
};

}  // namespace psring
