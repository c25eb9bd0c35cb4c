// Silent connections of a stranger to a port, opened again as fast as they are closed, for tests. On
// loopback.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/deadline.h"
#include "common/base/file_descriptor.h"

namespace psring {

class Flood {
 public:
  static constexpr int kOpen = 1500;
  // How long a member's connection may take: well below a second, but not with sanitizers on a busy machine.
  // It takes 5 s if members wait for silent connections.
  static constexpr absl::Duration kMaxDelay = absl::Seconds(3);
  // Keeps kOpen connections and opens again, up to `per_second`, those that the server has closed. Each sends
  // `bytes`. For at most a minute.
  Flood(const std::string& address, int port, std::string bytes = "", int per_second = 2000)
      : thread_([=, this] { Run(address, port, bytes, per_second); }) {}
  ~Flood() {
    stop_ = true;
    thread_.join();
  }
  int opened() const { return opened_; }

 private:
  void Run(const std::string& address, int port, const std::string& bytes, int per_second) {
    sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    inet_pton(AF_INET, address.c_str(), &to.sin_addr);
    std::vector<FileDescriptor> open(kOpen);
    const MonotonicTime begin = MonotonicNow();
    while (!stop_ && MonotonicNow() - begin < absl::Minutes(1)) {
      const double due = absl::ToDoubleSeconds(MonotonicNow() - begin) * per_second + kOpen;
      for (FileDescriptor& socket : open) {
        char byte = 0;
        if (socket.valid() && recv(socket.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) continue;
        if (stop_ || opened_ >= due) break;
        ++opened_;
        socket = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        (void)connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to);
        if (!bytes.empty()) (void)send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  std::atomic<bool> stop_ = false;
  std::atomic<int> opened_ = 0;
  std::thread thread_;
};

}  // namespace psring
