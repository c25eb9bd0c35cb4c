// Functions of the tests of TLS.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/net/tcp_socket.h"
#include "common/net/tls.h"
#include "common/net/tls/member_socket.h"
#include "tests/test_secret.h"
#include "tests/write_all.h"

namespace psring {

constexpr absl::Duration kPatience = absl::Seconds(60);
using Context = std::shared_ptr<TlsContext>;

inline MonotonicTime Soon() { return MonotonicNow() + kPatience; }

inline Context Auto(const JobSecret& secret = TestSecret(), int64_t rekey_bytes = int64_t{1} << 36) {
  auto context = TlsContext::Make("auto", secret, rekey_bytes).value();
  return context;
}

struct TcpPair {
  FileDescriptor client, server;
};

inline TcpPair MakeTcpPair() {
  const TcpListener listener = *ListenTcp("127.0.0.1");
  TcpPair ends;
  ends.client = *ConnectTcp("127.0.0.1", listener.port, Soon());
  EXPECT_TRUE(AwaitSocket(listener.socket.get(), POLLIN, Soon(), "the client").ok());
  ends.server =
      FileDescriptor(accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  return ends;
}

// The server's handshake.
inline absl::StatusOr<TlsHandshake> EncryptFrom(FileDescriptor socket, const Context& context) {
  TlsHandshake handshake(context, TlsHandshake::Role::kServer, std::move(socket));
  while (true) {
    PSRING_ASSIGN_OR_RETURN(const bool complete, handshake.Advance());
    if (complete) return handshake;
    PSRING_RETURN_IF_ERROR(AwaitSocket(handshake.socket(), handshake.events(), Soon(), "the client"));
  }
}

inline void Write(MemberSocket& to, const std::string& text) {
  const absl::Status written = SendAll(to, text.data(), text.size(), Soon());
  EXPECT_TRUE(written.ok()) << written;
}

inline void Write(const FileDescriptor& to, const std::string& text) {
  const absl::Status written = WriteAll(to.get(), text.data(), text.size(), Soon());
  EXPECT_TRUE(written.ok()) << written;
}

// What arrives until `bytes` have, or until the end; `end`: then its error.
inline std::string Read(MemberSocket& from, size_t bytes = SIZE_MAX, absl::Status* end = nullptr) {
  std::string text;
  std::vector<char> piece(100'000);
  while (text.size() < bytes) {
    const auto got = from.Receive(piece.data(), std::min(piece.size(), bytes - text.size()));
    if (!got.ok() && end != nullptr) *end = got.status();
    if (!got.ok()) break;
    text.append(piece.data(), *got);
    if (*got == 0 && !AwaitSocket(from.fd(), POLLIN, Soon(), "data").ok()) break;
  }
  return text;
}

inline std::string Read(const FileDescriptor& from, size_t bytes = SIZE_MAX) {
  MemberSocket plain{FileDescriptor(from.get())};
  const std::string text = Read(plain, bytes);
  (void)plain.TakeDescriptor().release();
  return text;
}

inline size_t CountIn(const char* folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}
inline size_t Threads() { return CountIn("/proc/self/task"); }
inline size_t Descriptors() { return CountIn("/proc/self/fd"); }

}  // namespace psring
