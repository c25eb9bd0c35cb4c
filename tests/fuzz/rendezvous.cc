// Calls of clients of a rendezvous store. A call: a byte for its kind, one for the member, two for the length
// of its message, and the message.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/rendezvous/rendezvous_store.h"
#include "proto/rendezvous.pb.h"
#include "tests/fuzz/input.h"

namespace {

using psring::MemberId;

constexpr absl::Duration kLong = absl::Hours(1);

struct Calls {
  int64_t begun = 0, ended = 0;
  std::vector<psring::RendezvousStore::CallId> ids;
};

void Check(const absl::Status& status) {
  // A longer one does not fit into gRPC's metadata.
  if (status.message().size() > 3 * psring::kMaxKeyBytes) __builtin_trap();
}

void Call(psring::RendezvousStore& store, uint8_t kind, uint8_t who, const std::string& message,
          std::vector<MemberId>& members, Calls& calls) {
  const MemberId& member = members[who % members.size()];
  const auto done = [&calls](const auto& result) {
    ++calls.ended;
    Check(result.status());
  };
  switch (kind % 7) {
    case 0: {
      psring::proto::JoinRequest request;
      if (!request.ParseFromString(message)) return;
      const absl::StatusOr<MemberId> joined =
          store.Join({.rank = request.rank(), .world_size = request.world_size(), .name = request.process()});
      if (joined.ok()) members.push_back(*joined);
      return Check(joined.status());
    }
    case 1:
      return store.Leave(member);
    case 2: {
      psring::proto::SetRequest request;
      if (request.ParseFromString(message)) Check(store.Set(request.key(), request.value()));
      return;
    }
    case 3: {
      psring::proto::GetRequest request;
      if (!request.ParseFromString(message)) return;
      ++calls.begun;
      calls.ids.push_back(store.Get(request.key(), request.whom(),
                                    request.timeout_ms() > 0 ? kLong : absl::ZeroDuration(), done));
      return;
    }
    case 4: {
      psring::proto::ExchangeRequest request;
      if (!request.ParseFromString(message)) return;
      ++calls.begun;
      calls.ids.push_back(store.Exchange(who < 128 ? member : request.member(), request.name(),
                                         request.value(),
                                         request.timeout_ms() > 0 ? kLong : absl::ZeroDuration(),
                                         {request.ranks().begin(), request.ranks().end()}, done));
      return;
    }
    case 5:  // a client disconnects
      if (!calls.ids.empty()) store.Cancel(calls.ids[who % calls.ids.size()]);
      return;
    default:  // the end of its Attend
      store.Lose(member);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Calls calls;
  psring::RendezvousStore store("rank", {.keys = 8, .bytes = 4096, .waiting = 2});
  std::vector<MemberId> members = {"", MemberId(16, '\0')};
  while (size >= 4) {
    const size_t length = std::min<size_t>(size - 4, data[2] | data[3] << 8);
    Call(store, data[0], data[1], psring::TextOf(data + 4, length), members, calls);
    data += 4 + length;
    size -= 4 + length;
  }
  for (const MemberId& member : members) store.Lose(member);
  if (!store.WaitUntilEmpty(absl::ZeroDuration())) __builtin_trap();
  store.Close(absl::UnavailableError("closed"));
  if (calls.ended != calls.begun) __builtin_trap();
  return 0;
}
