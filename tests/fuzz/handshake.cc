// The handshake of common/net/authentication.h. The first byte chooses: bytes for a server, bytes for a
// client, or changes of what a client and a server that have the secret send each other.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "common/base/deadline.h"
#include "common/net/authentication.h"
#include "tests/fuzz/input.h"

namespace {

using State = psring::ServerHandshake::State;
constexpr size_t kHello = 64, kOpening = 8, kAnswer = 48, kProof = 32;
constexpr char kBegin[] = "psring\2\3";

const psring::Credentials& Member() {
  static const psring::Credentials credentials = {
      .secret = *psring::JobSecret::FromHex("00112233445566778899aabbccddeeff"),
      .purpose = psring::Purpose::kMesh};
  return credentials;
}

psring::MonotonicTime Soon() { return psring::MonotonicNow() + absl::Seconds(10); }

std::pair<psring::FileDescriptor, psring::FileDescriptor> Pair() {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) __builtin_trap();
  return {psring::FileDescriptor(ends[0]), psring::FileDescriptor(ends[1])};
}

void Send(const psring::FileDescriptor& to, const std::string& bytes) {
  (void)send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// Fewer at the end of the connection.
std::string Read(const psring::FileDescriptor& from, size_t bytes) {
  std::string text(bytes, 0);
  size_t got = 0;
  while (got < bytes) {
    if (!psring::AwaitSocket(from.get(), POLLIN, Soon(), "it").ok()) __builtin_trap();
    const ssize_t n = recv(from.get(), text.data() + got, bytes - got, 0);
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  return text.substr(0, got);
}

// In pieces of `step` bytes.
void ToServer(const std::string& bytes, size_t step) {
  auto [stranger, end] = Pair();
  psring::ServerHandshake server(std::move(end));
  psring::SeenNonces seen;
  for (size_t at = 0; at < bytes.size(); at += step) {
    Send(stranger, bytes.substr(at, step));
    const State state = server.Advance(Member(), seen);
    if (state == State::kAuthenticated || state == State::kReport) __builtin_trap();
  }
  shutdown(stranger.get(), SHUT_WR);
  if (server.Advance(Member(), seen) != State::kRejected) __builtin_trap();
}

void ToClient(const std::string& bytes) {
  auto [client, stranger] = Pair();
  Send(stranger, bytes);
  shutdown(stranger.get(), SHUT_WR);
  if (psring::AuthenticateTo(client.get(), Member(), "it", Soon()).ok()) __builtin_trap();
}

// Each two bytes of `changes` are a place in the messages and what it is combined with.
void Between(const std::string& changes) {
  auto [member, relay] = Pair();
  auto [relayed, end] = Pair();
  std::thread client([socket = std::move(member)]() mutable {
    const psring::FileDescriptor own = std::move(socket);  // closed at the end
    (void)psring::AuthenticateTo(own.get(), Member(), "it", Soon());
  });
  std::string mask(kHello + kOpening + kAnswer + kProof, 0);
  for (size_t i = 0; i + 1 < changes.size(); i += 2) {
    char& byte = mask[static_cast<uint8_t>(changes[i]) % mask.size()];
    byte = static_cast<char>(byte ^ changes[i + 1]);
  }
  const auto changed = [&](std::string message, size_t from) {
    for (size_t i = 0; i < message.size(); ++i) message[i] = static_cast<char>(message[i] ^ mask[from + i]);
    return message;
  };
  State state = State::kPending;
  {
    psring::ServerHandshake server(std::move(end));
    psring::SeenNonces seen;
    Send(relayed, changed(Read(relay, kHello), 0));
    state = server.Advance(Member(), seen);
    if (state == State::kPending) {
      Send(relay, changed(Read(relayed, kOpening), kHello));
      Send(relay, changed(Read(relayed, kAnswer), kHello + kOpening));
      Send(relayed, changed(Read(relay, kProof), kHello + kOpening + kAnswer));
      state = server.Advance(Member(), seen);
    }
  }
  relay = psring::FileDescriptor();
  client.join();
  const bool is_honest = std::all_of(mask.begin(), mask.end(), [](char byte) { return byte == 0; });
  if ((state == State::kAuthenticated) != is_honest) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 4096) return 0;
  const std::string bytes = psring::TextOf(data + 2, size - 2);
  const std::string begin = data[0] % 8 < 4 ? "" : std::string(kBegin, sizeof kBegin - 1);
  switch (data[0] % 4) {
    case 0:
      ToServer(begin + bytes, 1 + data[1] % 64);
      break;
    case 1:
      ToClient(begin + bytes);
      break;
    default:
      Between(bytes);
  }
  return 0;
}
