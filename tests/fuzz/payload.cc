// Frames on a payload connection (--server_wire stream), read by a server if the first byte is even, else by
// a worker. If its second bit is set, the input follows the begin of a valid header.
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <variant>
#include <vector>

#include "ps_server/protocol/row_messages.h"
#include "ps_server/wire/payload_socket.h"
#include "tests/fuzz/input.h"

namespace {

template <typename Message>
void Read(psring::PayloadSocket& socket) {
  static auto& chunk = *new std::vector<std::byte>(psring::kChunkBytes);
  while (socket.may_read()) {
    const auto has_header = socket.ReceiveHeader();
    if (!has_header.ok()) return;
    if (!*has_header) continue;
    const auto complete = socket.ReceivePayload(chunk.data());
    if (!complete.ok()) return;
    if (!*complete) continue;
    Message message;
    if (!psring::FromFields(socket.header().fields, message).ok()) return;
    Message same;
    if (!psring::FromFields(psring::FieldsOf(message), same).ok()) __builtin_trap();
    if constexpr (std::is_same_v<Message, psring::message::ToServer>) {
      // As a server with a table of 100 rows does.
      const psring::Bytes payload(chunk.data(), socket.header().bytes);
      if (psring::FollowsRows(message)) {
        (void)psring::DecodeRows({&payload, 1}, /*rows=*/100, /*width=*/3,
                                 !std::holds_alternative<psring::message::PullRows>(message), /*after=*/-1);
      }
    }
    socket.Next();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  int ends[2];
  if (size == 0 || size > 4096 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) return 0;
  const psring::FileDescriptor peer(ends[1]);
  psring::PayloadSocket socket{psring::MemberSocket(psring::FileDescriptor(ends[0]))};
  const psring::PayloadHeader header;
  if ((data[0] & 2) != 0) (void)send(peer.get(), &header.magic, sizeof header.magic, MSG_NOSIGNAL);
  (void)send(peer.get(), data + 1, size - 1, MSG_NOSIGNAL);
  socket.SetReady(/*readable=*/true, /*writable=*/false);
  if (data[0] % 2 == 0) {
    Read<psring::message::ToServer>(socket);
  } else {
    Read<psring::message::ToWorker>(socket);
  }
  return 0;
}
