#include "ring_worker/bench/bench_case.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/json_text.h"

namespace psring {

const char* Name(BufferKind kind) {
  constexpr const char* kNames[] = {"private", "huge", "shared"};
  return kNames[static_cast<size_t>(kind)];
}

absl::StatusOr<Combination> ParseCombination(const std::string& text) {
  const std::vector<std::string> fields = absl::StrSplit(text, '/');
  if (fields.size() != 5) {
    return InvalidArgument("'", text, "' is not COLLECTIVE/BACKEND/ALGORITHM/TRANSPORT/private|huge|shared");
  }
  Combination combination;
  PSRING_ASSIGN_OR_RETURN(combination.collective, ParseCollective(fields[0]));
  combination.backend = fields[1];
  combination.algorithm = fields[2];
  combination.transport = fields[3];
  for (const BufferKind kind : kBufferKinds) {
    combination.buffers = kind;
    if (fields[4] == Name(kind)) return combination;
  }
  return InvalidArgument("'", fields[4], "' is not a kind of buffers; the kinds are private|huge|shared");
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

absl::Status Enqueue(const Call& call, ProcessGroup& group, Stream& stream) {
  const bool in_place = call.placement == Placement::kInPlace;
  const size_t rank = static_cast<size_t>(group.rank());
  const Span receive{call.buffers.receive, call.shape.elements, call.type};
  const Span send{in_place ? call.buffers.receive : call.buffers.send, call.shape.elements, call.type};
  switch (call.collective) {
    case Collective::kAllReduce:
      return group.AllReduce(send, receive, call.op, stream);
    case Collective::kReduceScatter: {
      const Span out = receive.Slice(in_place ? rank * call.shape.count : 0, call.shape.count);
      return group.ReduceScatter(send, out, call.op, stream);
    }
    case Collective::kAllGather:
      return group.AllGather(send.Slice(rank * call.shape.count, call.shape.count), receive, stream);
    case Collective::kBroadcast:
      if (!in_place && group.rank() == call.root && receive.bytes() > 0) {
        stream.Copy(receive.data, send.data, receive.bytes());
      }
      return group.Broadcast(receive, call.root, stream);
    case Collective::kAllToAll:
      return group.AllToAll(send, receive, stream);
  }
  return absl::OkStatus();
}

std::string DescribeJson() {
  using Json = nlohmann::ordered_json;
  Json json = {{"collectives", Json::array()}, {"backends", Json::array()}};
  for (const Collective collective : kCollectives) json["collectives"].push_back(Name(collective));
  for (const BackendRow& row : Backends()) {
    Json algorithms = Json::object();
    for (const Collective collective : kCollectives) {
      algorithms[Name(collective)] = row.algorithms(collective);
    }
    json["backends"].push_back({{"name", row.name},
                                {"summary", row.summary},
                                {"available", row.available()},
                                {"missing", row.missing},
                                {"algorithms", algorithms},
                                {"transports", row.transports}});
  }
  return JsonText(json, 2);
}

}  // namespace psring
