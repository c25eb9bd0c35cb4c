#include "ring_worker/transports/device_work.h"

#include <cstring>
#include <utility>

#include "common/reduce/reduce.h"

namespace psring {

void HostWork::Enqueue(Stream& stream, std::function<absl::Status()> call) { stream.Run(std::move(call)); }

void HostWork::Copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

void HostWork::Scale(Span data, float factor) { cpu::Scale(data.type, data.count, data.data, factor); }

absl::StatusOr<Buffer> HostWork::Allocate(size_t bytes) { return MakeCpuDevice()->AllocateShared(bytes); }

}  // namespace psring
