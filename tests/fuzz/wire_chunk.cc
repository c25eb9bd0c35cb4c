// Messages between workers and a parameter server. The first byte says where the message is cut into slices.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ps_server/wire/wire.h"
#include "tests/fuzz/input.h"

namespace {

template <typename Message>
void Decode(const uint8_t* data, size_t size, size_t cut) {
  const grpc::Slice slices[] = {grpc::Slice(data, cut), grpc::Slice(data + cut, size - cut)};
  grpc::ByteBuffer bytes(slices, 2);
  psring::Received<Message> received;
  if (received.Decode(bytes).ok())
    psring::CopyPieces(received.payload(), std::vector<std::byte>(size).data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t cut = std::min<size_t>(data[0], size - 1);
  Decode<psring::message::ToServer>(data + 1, size - 1, cut);
  Decode<psring::message::ToWorker>(data + 1, size - 1, cut);
  return 0;
}
