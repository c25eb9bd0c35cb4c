// Frames on a rank's TCP connection. If the first byte is odd, the input follows a valid header.
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ring_worker/transports/frame_stream.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  int ends[2];
  if (size == 0 || size > 4096 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) return 0;
  const psring::FileDescriptor peer(ends[1]);
  psring::FrameStream stream(0, 1, psring::MemberSocket(psring::FileDescriptor(ends[0])));
  std::vector<float> to(100), own(100, 1);
  std::vector<std::byte> window(psring::kWindowBytes + sizeof(float));
  psring::IncomingFrame& frame = stream.in().PushBack();
  frame.to = {to.data(), to.size()};
  frame.base = data[0] % 4 < 2 ? nullptr : reinterpret_cast<const std::byte*>(own.data());
  frame.expected = {};
  frame.expected.bytes = frame.to.bytes();
  frame.received = 0;
  if (data[0] % 2 == 1) (void)send(peer.get(), &frame.expected, sizeof frame.expected, MSG_NOSIGNAL);
  (void)send(peer.get(), data + 1, size - 1, MSG_NOSIGNAL);
  stream.SetReady(/*readable=*/true, /*writable=*/false);
  while (stream.may_read()) {
    const auto moved = stream.Read(window);
    if (!moved.ok() || moved->complete) break;
  }
  return 0;
}
