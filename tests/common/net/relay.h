// Listens in place of a server, for tests: passes connections on to it, and can cut them.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <random>
#include <string>
#include <thread>

#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/net/address.h"
#include "common/net/tcp_socket.h"

namespace psring {

class Relay {
 public:
  // After Cut a connection is cut after at most `most_bytes` of both directions together, and every fourth
  // one within the first 400, in the HTTP/2 preface.
  Relay(const std::string& host, const HostPort& to, size_t most_bytes = SIZE_MAX, uint32_t seed = 0)
      : host_(host),
        to_(to),
        most_bytes_(most_bytes),
        random_(seed),
        listener_(*ListenTcp(host)),
        accepts_([this] { Accept(); }) {}
  ~Relay() {
    stopping_ = true;
    accepts_.join();
    for (std::thread& carrier : carriers_) carrier.join();
  }

  int port() const { return listener_.port; }
  std::string address() const { return PublishedText({host_, port(), to_.token}); }
  int connections() const { return connections_; }
  // The first that has passed, in both directions.
  std::string seen() const {
    MutexLock lock(mutex_);
    return seen_;
  }
  // Whether connections are cut, including existing ones. Initially not.
  void Cut(bool cuts) { cuts_ = cuts; }
  int cuts() const { return done_; }

 private:
  struct Direction {
    int from, to;
    std::string pending = {};
    bool ended = false;
  };
  static constexpr int kLookMs = 20;  // how often the flags are checked
  static constexpr size_t kMaxSeen = 1 << 16;

  void Accept() {
    while (!stopping_) {
      pollfd waiting = {listener_.socket.get(), POLLIN, 0};
      if (poll(&waiting, 1, kLookMs) <= 0) continue;
      FileDescriptor worker(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!worker.valid()) continue;
      absl::StatusOr<FileDescriptor> server =
          ConnectTcp(to_.host, to_.port, MonotonicNow() + absl::Seconds(5));
      if (!server.ok()) continue;
      ++connections_;
      carriers_.emplace_back([this, worker = std::move(worker), server = *std::move(server)]() mutable {
        Carry(worker, server);
      });
    }
  }

  // Until one side closes, or the number of bytes is reached.
  void Carry(FileDescriptor& worker, FileDescriptor& server) {
    Direction directions[] = {{worker.get(), server.get()}, {server.get(), worker.get()}};
    size_t left = SIZE_MAX;
    while (!stopping_ && !(directions[0].ended && directions[1].ended)) {
      if (!cuts_) left = SIZE_MAX;
      if (cuts_ && left == SIZE_MAX) left = Lifetime();
      pollfd waiting[2];
      for (int i = 0; i < 2; ++i) {
        const Direction& its = directions[i];
        if (its.pending.empty()) {
          waiting[i] = {its.ended ? -1 : its.from, POLLIN, 0};
        } else {
          waiting[i] = {its.to, POLLOUT, 0};
        }
      }
      poll(waiting, 2, kLookMs);
      for (int i = 0; i < 2; ++i) {
        if (waiting[i].revents != 0 && !Move(directions[i], left)) return;
      }
      const bool flushed = directions[0].pending.empty() && directions[1].pending.empty();
      if (left == 0 && flushed) return Break(worker, server);
    }
  }
  // False: the connection is broken already.
  bool Move(Direction& its, size_t& left) {
    if (its.pending.empty()) {
      char bytes[1 << 16];
      const ssize_t got = recv(its.from, bytes, sizeof bytes, MSG_DONTWAIT);
      if (got < 0) return errno == EAGAIN || errno == EINTR;
      if (got == 0) {
        its.ended = true;
        return shutdown(its.to, SHUT_WR) == 0;
      }
      const size_t passes = std::min<size_t>(static_cast<size_t>(got), left);
      if (left != SIZE_MAX) left -= passes;
      its.pending.assign(bytes, passes);
      MutexLock lock(mutex_);
      seen_.append(its.pending, 0, kMaxSeen - seen_.size());
    }
    const ssize_t sent = send(its.to, its.pending.data(), its.pending.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    its.pending.erase(0, static_cast<size_t>(sent));
    return true;
  }
  size_t Lifetime() {
    MutexLock lock(mutex_);
    return 1 + random_() % (random_() % 4 == 0 ? 400 : most_bytes_);
  }
  // Closes normally, or with a reset, which discards the data in the kernel.
  void Break(FileDescriptor& worker, FileDescriptor& server) {
    MutexLock lock(mutex_);
    const linger at_once = {.l_onoff = 1, .l_linger = 0};
    for (FileDescriptor* end : {&worker, &server}) {
      if (random_() % 2 == 0) setsockopt(end->get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      *end = FileDescriptor();
    }
    ++done_;
  }

  const std::string host_;
  const HostPort to_;
  const size_t most_bytes_;
  mutable Mutex mutex_;
  std::mt19937 random_ ABSL_GUARDED_BY(mutex_);
  std::string seen_ ABSL_GUARDED_BY(mutex_);
  TcpListener listener_;
  std::atomic<bool> stopping_ = false, cuts_ = false;
  std::atomic<int> connections_ = 0, done_ = 0;
  std::list<std::thread> carriers_;  // only for the accepting thread, until it has ended
  std::thread accepts_;              // last: it uses the other members
};

}  // namespace psring
