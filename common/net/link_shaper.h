// One machine's link, kept by the program itself where the kernel does not: a rate in each direction, a
// latency for what leaves. All connections of the process share it, so that a server feels the incast of
// its workers.
//
// Between a connection and its user the shaper puts a socket of its own; one thread moves the bytes, held
// back by two token buckets, each connection in its turn. What is charged for a byte is what it takes on an
// Ethernet link with full frames, 1514 for 1448.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"

namespace psring {

struct LinkShape {
  double bits_per_s = 0;    // of each direction; 0: as fast as it goes
  int64_t burst_bytes = 0;  // that pass at full speed after a pause
  double latency_s = 0;     // added to what leaves

  bool shapes() const { return bits_per_s > 0 || latency_s > 0; }
};

class LinkShaper;

// Where a connection of ours begins.
struct LinkEnd {
  LinkShaper* shaper = nullptr;  // of what leads to other machines; null: none
  std::string source = {};       // this machine's address; empty: the system chooses
};

// Tokens by the clock. Pure.
class TokenBucket {
 public:
  TokenBucket(double bits_per_s, int64_t burst_bytes);
  // When something may be taken: at or before `now_ns` means now.
  int64_t ReadyNs() const { return ready_ns_; }
  // Takes `bytes`, also where that leaves a debt, which is what makes the next one wait.
  void Take(int64_t now_ns, int64_t bytes);

 private:
  const double ns_per_byte_;  // 0: no limit
  const int64_t burst_ns_;
  int64_t full_ns_ = 0;   // when the bucket is full again
  int64_t ready_ns_ = 0;  // when there is a token again
};

// Thread-safe. What it wraps lives on until both ends have closed it.
class LinkShaper {
 public:
  explicit LinkShaper(const LinkShape& shape);
  // Lets what is under way arrive, for at most 5 s; then ends every connection that it wraps.
  ~LinkShaper();
  LinkShaper(const LinkShaper&) = delete;
  LinkShaper& operator=(const LinkShaper&) = delete;

  // A stream socket, not blocking, to use in the place of `tcp`.
  absl::StatusOr<FileDescriptor> Wrap(FileDescriptor tcp);

 private:
  struct Pair;
  struct Flow;

  void Run();
  // Moves what may be moved now; false where nothing did. `next_ns`: the earliest time at which more may be.
  bool Turn(int64_t& next_ns);
  bool Fill(Flow& flow);
  bool Pour(Flow& flow, int64_t now_ns, int64_t& next_ns);

  const LinkShape shape_;
  const int64_t latency_ns_;
  TokenBucket out_, in_;  // the thread's own, as are the pairs
  std::vector<std::unique_ptr<Pair>> pairs_;
  size_t first_out_ = 0, first_in_ = 0;  // whose turn it is

  FileDescriptor wake_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Pair>> added_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time close_by_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses the others
};

}  // namespace psring
