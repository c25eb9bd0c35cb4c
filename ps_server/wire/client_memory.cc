#include "ps_server/wire/client_memory.h"

#include "common/base/check.h"

namespace psring {
namespace {

absl::StatusOr<ClientMemory::Area> AreaOf(const SharedSpan& callers, size_t bytes) {
  ClientMemory::Area area{.bytes = bytes};
  if (callers.fd >= 0) {
    area.data = static_cast<std::byte*>(callers.span.data);
    area.bytes = callers.span.bytes();
    area.fd = callers.fd;
    return area;
  }
  PSRING_ASSIGN_OR_RETURN(area.mirror, SharedMemory::Create(bytes));
  area.data = area.mirror.data();
  area.fd = area.mirror.fd();
  return area;
}

}  // namespace

std::optional<uint64_t> ClientMemory::Area::PlaceOf(ConstSpan span, size_t mirrored) const {
  if (mirror.data() != nullptr) return mirrored;
  const auto* begin = static_cast<const std::byte*>(span.data);
  if (begin < data || begin + span.bytes() > data + bytes) return std::nullopt;
  return static_cast<uint64_t>(begin - data);
}

absl::StatusOr<ClientMemory> ClientMemory::Create(const SharedSpan& gradients, const SharedSpan& weights,
                                                  size_t bytes) {
  ClientMemory memory;
  PSRING_ASSIGN_OR_RETURN(memory.gradients, AreaOf(gradients, bytes));
  PSRING_ASSIGN_OR_RETURN(memory.weights, AreaOf(weights, bytes));
  const bool both =
      !gradients.on_gpu.empty() && !weights.on_gpu.empty() && gradients.fd >= 0 && weights.fd >= 0;
  memory.gradients_on_gpu = both ? gradients.on_gpu : "";
  memory.weights_on_gpu = both ? weights.on_gpu : "";
  return memory;
}

absl::StatusOr<HandedOver> ClientMemory::HandOver(const std::string& offer, absl::Time deadline) const {
  return HandOverMemory(offer,
                        {.gradients_fd = gradients.fd,
                         .gradients_bytes = gradients.bytes,
                         .weights_fd = weights.fd,
                         .weights_bytes = weights.bytes,
                         .gradients_on_gpu = gradients_on_gpu,
                         .weights_on_gpu = weights_on_gpu},
                        deadline);
}

}  // namespace psring
