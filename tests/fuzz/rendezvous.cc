// Calls of clients of a rendezvous store. A call: a byte for its kind, one for the member, two for the length
// of its message, and the message.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/rendezvous/rendezvous_service.h"
#include "tests/fuzz/input.h"

namespace {

using psring::MemberId;

void Check(const grpc::Status& status) {
  // A longer one does not fit into gRPC's metadata.
  if (status.error_message().size() > 3 * psring::kMostKeyBytes) __builtin_trap();
}

// Calls that would wait return at once.
template <typename Request>
void DoNotWait(Request& request) {
  if (request.timeout_ms() > 0) request.set_timeout_ms(0);
}

void Call(psring::RendezvousStore& store, uint8_t kind, uint8_t who, const std::string& message,
          std::vector<MemberId>& members) {
  psring::RendezvousService service(store);
  grpc::ServerContext context;
  const MemberId& member = members[who % members.size()];
  switch (kind % 6) {
    case 0: {
      psring::proto::JoinRequest request;
      psring::proto::JoinReply reply;
      if (!request.ParseFromString(message)) return;
      const grpc::Status status = service.Join(&context, &request, &reply);
      if (status.ok()) members.push_back(reply.member());
      return Check(status);
    }
    case 1: {
      psring::proto::LeaveRequest request;
      psring::proto::LeaveReply reply;
      if (!request.ParseFromString(message)) return;
      if (who < 128) request.set_member(member);
      return Check(service.Leave(&context, &request, &reply));
    }
    case 2: {
      psring::proto::SetRequest request;
      psring::proto::SetReply reply;
      if (request.ParseFromString(message)) Check(service.Set(&context, &request, &reply));
      return;
    }
    case 3: {
      psring::proto::GetRequest request;
      psring::proto::GetReply reply;
      if (!request.ParseFromString(message)) return;
      DoNotWait(request);
      return Check(service.Get(&context, &request, &reply));
    }
    case 4: {
      psring::proto::ExchangeRequest request;
      psring::proto::ExchangeReply reply;
      if (!request.ParseFromString(message)) return;
      if (who < 128) request.set_member(member);
      DoNotWait(request);
      return Check(service.Exchange(&context, &request, &reply));
    }
    default:  // the end of its Attend
      store.Lose(member);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  psring::RendezvousStore store("rank", {.keys = 8, .bytes = 4096, .waiting = 1});
  std::vector<MemberId> members = {"", MemberId(16, '\0')};
  while (size >= 4) {
    const size_t length = std::min<size_t>(size - 4, data[2] | data[3] << 8);
    Call(store, data[0], data[1], psring::TextOf(data + 4, length), members);
    data += 4 + length;
    size -= 4 + length;
  }
  for (const MemberId& member : members) store.Lose(member);
  if (!store.WaitUntilEmpty(absl::ZeroDuration())) __builtin_trap();
  return 0;
}
