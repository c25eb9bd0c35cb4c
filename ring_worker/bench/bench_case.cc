#include "ring_worker/bench/bench_case.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"

namespace psring {

const char* Name(BufferKind kind) {
  switch (kind) {
    case BufferKind::kPrivate:
      return "private";
    case BufferKind::kHuge:
      return "huge";
    case BufferKind::kShared:
      return "shared";
  }
  return "?";
}

absl::StatusOr<BufferKind> ParseBufferKind(const std::string& name) {
  for (const BufferKind kind : kBufferKinds) {
    if (name == Name(kind)) return kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is not a kind of buffers; the kinds are private|huge|shared"));
}

absl::StatusOr<Combination> ParseCombination(const std::string& text) {
  const std::vector<std::string> fields = absl::StrSplit(text, '/');
  if (fields.size() != 5) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not COLLECTIVE/BACKEND/ALGORITHM/TRANSPORT/private|huge|shared"));
  }
  Combination combination;
  PSRING_ASSIGN_OR_RETURN(combination.collective, ParseCollective(fields[0]));
  combination.backend = fields[1];
  combination.algorithm = fields[2];
  combination.transport = fields[3];
  PSRING_ASSIGN_OR_RETURN(combination.buffers, ParseBufferKind(fields[4]));
  return combination;
}

std::string ToString(const Combination& combination) {
  return absl::StrCat(Name(combination.collective), "/", combination.backend, "/", combination.algorithm, "/",
                      combination.transport, "/", Name(combination.buffers));
}

std::string Describe(const Combination& combination) {
  return absl::StrCat(Name(combination.collective), ", ", combination.backend,
                      combination.algorithm.empty() ? "" : " ", combination.algorithm, " over ",
                      combination.transport, ", ", Name(combination.buffers), " buffers");
}

CallShape ShapeOf(Collective collective, DType type, size_t bytes, int ranks) {
  const size_t elements = bytes / SizeOf(type);
  if (collective == Collective::kAllReduce || collective == Collective::kBroadcast) {
    return {elements, elements};
  }
  const size_t step = 16 / SizeOf(type);
  const size_t part = elements / static_cast<size_t>(ranks) / step * step;
  return {part, part * static_cast<size_t>(ranks)};
}

absl::Status Run(const Call& call, ProcessGroup& group, Stream& stream) {
  PSRING_RETURN_IF_ERROR(Enqueue(call, group, stream));
  return stream.Synchronize();
}

absl::Status Enqueue(const Call& call, ProcessGroup& group, Stream& stream) {
  const bool in_place = call.placement == Placement::kInPlace;
  const size_t rank = static_cast<size_t>(group.rank());
  const Span receive{call.buffers.receive, call.shape.elements, call.type};
  const Span send{in_place ? call.buffers.receive : call.buffers.send, call.shape.elements, call.type};
  switch (call.collective) {
    case Collective::kAllReduce:
      PSRING_RETURN_IF_ERROR(group.AllReduce(send, receive, call.op, stream));
      break;
    case Collective::kReduceScatter: {
      const Span out = receive.Slice(in_place ? rank * call.shape.count : 0, call.shape.count);
      PSRING_RETURN_IF_ERROR(group.ReduceScatter(send, out, call.op, stream));
      break;
    }
    case Collective::kAllGather:
      PSRING_RETURN_IF_ERROR(
          group.AllGather(send.Slice(rank * call.shape.count, call.shape.count), receive, stream));
      break;
    case Collective::kBroadcast:
      if (!in_place && group.rank() == call.root && receive.bytes() > 0) {
        stream.Copy(receive.data, send.data, receive.bytes());
      }
      PSRING_RETURN_IF_ERROR(group.Broadcast(receive, call.root, stream));
      break;
  }
  return absl::OkStatus();
}

}  // namespace psring
