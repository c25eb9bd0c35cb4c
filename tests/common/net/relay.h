// A stranger that listens in place of a server and passes connections on to it, for tests.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <string>
#include <thread>

#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/net/address.h"
#include "common/net/tcp_socket.h"
#include "tests/write_all.h"

namespace psring {

// One connection after the other.
class Relay {
 public:
  Relay(const std::string& host, const HostPort& to)
      : listener_(*ListenTcp(host)), to_(to), thread_([this] { Run(); }) {}
  ~Relay() {
    stop_ = true;
    thread_.join();
  }
  int port() const { return listener_.port; }
  int connections() const { return connections_; }
  // What has passed, in both directions.
  std::string seen() const {
    MutexLock lock(mutex_);
    return seen_;
  }

 private:
  static constexpr int kLookMs = 10;  // how often stop_ is checked

  void Run() {
    while (!stop_) {
      pollfd waiting = {listener_.socket.get(), POLLIN, 0};
      if (poll(&waiting, 1, kLookMs) <= 0) continue;
      const FileDescriptor client(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const auto server = ConnectTcp(to_.host, to_.port, MonotonicNow() + absl::Seconds(5));
      if (!client.valid() || !server.ok()) continue;
      ++connections_;
      const int ends[] = {client.get(), server->get()};
      while (!stop_ && Pass(ends)) continue;
    }
  }
  // False: one end has closed.
  bool Pass(const int (&ends)[2]) {
    pollfd waiting[] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}};
    if (poll(waiting, 2, kLookMs) <= 0) return true;
    for (int from = 0; from < 2; ++from) {
      if (waiting[from].revents == 0) continue;
      char bytes[4096];
      const ssize_t got = recv(ends[from], bytes, sizeof bytes, MSG_DONTWAIT);
      if (got <= 0) return false;
      {
        MutexLock lock(mutex_);
        seen_.append(bytes, static_cast<size_t>(got));
      }
      const MonotonicTime deadline = MonotonicNow() + absl::Seconds(5);
      if (!WriteAll(ends[1 - from], bytes, static_cast<size_t>(got), deadline).ok()) return false;
    }
    return true;
  }

  const TcpListener listener_;
  const HostPort to_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> connections_ = 0;
  mutable Mutex mutex_;
  std::string seen_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace psring
