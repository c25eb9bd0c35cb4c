// What is measured: combinations of collective, backend, algorithm, transport and buffers, and a single call.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/device/device.h"
#include "common/kernels/reduce.h"
#include "ring_worker/groups/process_group.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {

// The kind of memory of a combination's buffers.
enum class BufferKind : uint8_t {
  kPrivate,  // from malloc, as in other benchmarks
  kHuge,     // private, on huge pages if the kernel provides them: Device::Allocate
  kShared,   // registered with the group, so that peers may read it in place: Device::AllocateShared
};
inline constexpr BufferKind kBufferKinds[] = {BufferKind::kPrivate, BufferKind::kHuge, BufferKind::kShared};
const char* Name(BufferKind kind);  // "private", "huge", "shared"

struct Combination {
  Collective collective = Collective::kAllReduce;
  std::string backend = "native";
  std::string algorithm;  // empty: the backend's default
  std::string transport = "auto";
  BufferKind buffers = BufferKind::kPrivate;
};

// "all_reduce/native/ring/shm/shared"; the third field may be empty.
absl::StatusOr<Combination> ParseCombination(const std::string& text);
std::string ToString(const Combination& combination);
// For display: "all_reduce, native ring over shm, shared buffers".
std::string Describe(const Combination& combination);

// The element count of a call and of a rank's larger buffer, derived from `bytes` as in nccl-tests. Parts of
// a reduce-scatter, an all-gather or an all-to-all are multiples of 16 bytes, so the size may be smaller,
// down to 0.
struct CallShape {
  size_t count = 0;     // of the smaller buffer; of a block of an all-to-all
  size_t elements = 0;  // of the larger buffer
};
CallShape ShapeOf(Collective collective, DType type, size_t bytes, int ranks);

enum class Placement { kOutOfPlace, kInPlace };

// A rank's memory for one kind of buffers.
struct CallBuffers {
  void* send = nullptr;
  void* receive = nullptr;  // in place, this is the input as well
};

// One call, finished when the stream is. A broadcast out of place is, at its root, a copy and then the
// broadcast.
struct Call {
  Collective collective = Collective::kAllReduce;
  Placement placement = Placement::kOutOfPlace;
  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  CallShape shape;
  CallBuffers buffers;
};
absl::Status Enqueue(const Call& call, ProcessGroup& group, Stream& stream);

// What this build can measure, as one JSON object: backends with their algorithms, and the names of
// collectives.
std::string DescribeJson();

}  // namespace psring
