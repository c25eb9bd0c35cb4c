// Emulates the link of one machine inside the program, for hosts where the kernel cannot: a rate in each
// direction and a latency for outgoing data. All connections of the process share the link, so that a server
// experiences the incast of its workers.
//
// The shaper inserts a socket between a connection and its user. One thread moves the bytes, limited by two
// token buckets and serving the connections in turn. A payload byte is charged as on an Ethernet link with
// full frames: 1514 bytes for 1448.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/deadline.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "common/base/poll_waker.h"
#include "common/net/tls/member_socket.h"

namespace CLI {
class App;
}

namespace psring {

struct LinkShape {
  double bits_per_s = 0;    // in each direction; 0: no limit
  int64_t burst_bytes = 0;  // sent without delay after a pause
  double latency_s = 0;     // added to outgoing data

  bool shapes() const { return bits_per_s > 0 || latency_s > 0; }
};

class LinkShaper;

// The local end of a connection.
struct LinkEnd {
  LinkShaper* shaper = nullptr;  // for connections to other machines; null: none
  std::string source = {};       // this machine's address; empty: the system chooses
};

// The flags by which a launcher describes a process's link (link_flags.cc).
void AddLinkFlags(CLI::App& app, LinkShape& shape);

// Null if `shape` limits nothing.
std::unique_ptr<LinkShaper> MakeLinkShaper(const LinkShape& shape);

// Pure: the caller supplies the time.
class TokenBucket {
 public:
  TokenBucket(double bits_per_s, int64_t burst_bytes);
  // The earliest time of the next Take.
  int64_t ReadyNs() const { return ready_ns_; }
  // May leave a debt, which delays the next Take.
  void Take(int64_t now_ns, int64_t bytes);

 private:
  const double ns_per_byte_;  // 0: no limit
  const int64_t burst_ns_;
  int64_t full_ns_ = 0;   // when the bucket is full again
  int64_t ready_ns_ = 0;  // when a token is available again
};

// The shaper's time; tests replace it. Called by the shaper's thread.
class LinkClock {
 public:
  virtual ~LinkClock() = default;
  virtual int64_t NowNs();  // MonotonicNanos
  // No data may move before `next_ns` (INT64_MAX: before a socket becomes ready). Returns the longest real
  // time, in ns, to wait for sockets.
  virtual int64_t SleepNs(int64_t next_ns);
};

// Thread-safe. A wrapped connection exists until both ends have closed it.
class LinkShaper {
 public:
  explicit LinkShaper(const LinkShape& shape,
                      std::unique_ptr<LinkClock> clock = std::make_unique<LinkClock>());
  // Delivers data in flight for at most 5 s, then closes every wrapped connection.
  ~LinkShaper();
  LinkShaper(const LinkShaper&) = delete;
  LinkShaper& operator=(const LinkShaper&) = delete;

  // A non-blocking stream socket to use instead of `tcp`.
  absl::StatusOr<FileDescriptor> Wrap(FileDescriptor tcp);
  // Wraps the connection under `socket`: with TLS, encrypted bytes count.
  absl::Status Shape(MemberSocket& socket);

 private:
  struct Pair;
  struct Flow;

  void Run();
  // Moves what may be moved now; false if nothing moved. Lowers `next_ns` to the time at which more may move.
  bool Turn(int64_t& next_ns);
  bool Fill(Flow& flow);
  bool Pour(Flow& flow, int64_t now_ns, int64_t& next_ns);

  const LinkShape shape_;
  const int64_t latency_ns_;
  const std::unique_ptr<LinkClock> clock_;
  TokenBucket out_, in_;  // used by the thread only, as are the pairs
  std::vector<std::unique_ptr<Pair>> pairs_;
  size_t first_out_ = 0, first_in_ = 0;  // the pair that is served next

  const PollWaker wake_{};
  Mutex mutex_;
  std::vector<std::unique_ptr<Pair>> added_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  MonotonicTime close_by_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses the other members
};

}  // namespace psring
