// A TCP proxy on loopback for one connection, which stops after a number of bytes to the server.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <thread>

#include "common/base/deadline.h"
#include "common/net/address.h"
#include "common/net/tcp_socket.h"
#include "tests/eventually.h"

namespace psring {

class StoppingProxy {
 public:
  // To the server at `address`. After `bytes` from the worker nothing reaches the server any more.
  StoppingProxy(const std::string& address, size_t bytes)
      : token_(ParseAddress(address)->token),
        server_(*Connect(address)),
        forwards_([this, bytes] { Forward(bytes); }) {}
  ~StoppingProxy() {
    Close();
    forwards_.join();
    if (returns_.joinable()) returns_.join();
  }

  std::string address() const { return PublishedText({"127.0.0.1", listener_.port, token_}); }
  // False: the bytes have not come within a minute.
  bool AwaitStop() const {
    return Eventually([this] { return stopped_.load(); });
  }
  // Closes the connection to the server.
  void Close() {
    shutdown(listener_.socket.get(), SHUT_RDWR);
    shutdown(server_.get(), SHUT_RDWR);
  }

 private:
  static absl::StatusOr<FileDescriptor> Connect(const std::string& address) {
    const HostPort to = *ParseAddress(address);
    return ConnectTcp(to.host, to.port, MonotonicNow() + absl::Seconds(5));
  }
  static void AwaitInput(int fd) {
    pollfd waiting = {fd, POLLIN, 0};
    while (poll(&waiting, 1, -1) < 0 && errno == EINTR) {
    }
  }
  void Forward(size_t bytes) {
    AwaitInput(listener_.socket.get());
    worker_ = FileDescriptor(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!worker_.valid()) return;
    returns_ = std::thread([this] { Copy(server_.get(), worker_.get(), SIZE_MAX); });
    Copy(worker_.get(), server_.get(), bytes);
    stopped_ = true;
  }
  static void Copy(int from, int to, size_t bytes) {
    char buffer[1 << 16];
    while (bytes > 0) {
      AwaitInput(from);
      const ssize_t got = recv(from, buffer, std::min(bytes, sizeof(buffer)), 0);
      if (got <= 0) return;
      if (!WriteAll(to, buffer, static_cast<size_t>(got), MonotonicTime::InfiniteFuture()).ok()) return;
      bytes -= static_cast<size_t>(got);
    }
  }

  const std::string token_;
  TcpListener listener_ = *ListenTcp("127.0.0.1");
  FileDescriptor server_, worker_;
  std::atomic<bool> stopped_ = false;
  std::thread returns_, forwards_;  // last: they use the above
};

}  // namespace psring
