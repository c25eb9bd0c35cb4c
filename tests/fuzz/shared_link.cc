// Entries that a rank of this host writes into shared memory.
#include "ring_worker/transports/shared_link.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "common/base/deadline.h"
#include "tests/fuzz/input.h"

namespace {

// Rank 1's end of a link to rank 0, which has registered 4096 bytes as region 0.
struct Link {
  Link() {
    const psring::MonotonicTime deadline = psring::MonotonicNow() + absl::Seconds(10);
    int ends[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) __builtin_trap();
    peer = psring::UnixSocket(psring::FileDescriptor(ends[0]));
    psring::UnixSocket socket((psring::FileDescriptor(ends[1])));
    if (!theirs.Offer(peer).ok() || !peer.Send("4096 0", {region.fd()}, deadline).ok()) __builtin_trap();
    psring::SharedArena adopted = *psring::SharedArena::Adopt(2, socket, deadline);
    link = std::make_unique<psring::SharedLink>(1, 0, mine, std::move(adopted), std::move(socket), false);
  }
  psring::SharedMemory region = *psring::SharedMemory::Create(4096);
  psring::SharedArena theirs = *psring::SharedArena::Create(2, eventfd(0, EFD_NONBLOCK));
  psring::SharedArena mine = *psring::SharedArena::Create(2, eventfd(0, EFD_NONBLOCK));
  psring::UnixSocket peer;
  std::unique_ptr<psring::SharedLink> link;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  struct {
    uint64_t offset, expected, bytes;
    int32_t region;
    uint32_t call;
  } input;
  if (size < sizeof input) return 0;
  std::memcpy(&input, data, sizeof input);
  if (input.region > 0) input.region = 0;  // for another one the link would wait
  static Link& one = *new Link;
  psring::SharedArena::Entry& entry = one.theirs.channel(1).cells[0].entry;
  entry.offset = input.offset;
  entry.bytes = input.call % 2 == 0 ? input.expected : input.bytes;
  entry.call = input.call / 2;
  entry.region = input.region;
  psring::FrameHeader expected;
  expected.bytes = input.expected;
  const auto payload = one.link->Payload(expected, 0);
  if (!payload.ok()) return 0;
  unsigned sum = 0;
  for (uint64_t i = 0; i < expected.bytes; ++i) sum += static_cast<unsigned>((*payload)[i]);
  static volatile unsigned used = 0;
  used = sum;
  return 0;
}
