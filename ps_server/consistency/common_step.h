// The step from which a worker's servers continue after one of them has restarted with older weights: the
// newest step that all of them can restore. Pure: no clock, no I/O. One per worker; the servers do not know
// each other.
//
// A server *begins* at a step: when the job starts, after a restart, or because a worker sent it a Rewind.
// Each beginning has an *epoch*: 0 at the start of the job; after a restart, one more than the workers knew
// from that server; after a Rewind, the epoch in the Rewind. The servers agree when all have begun in the
// same epoch at the same step. Until then, servers of an earlier epoch get a Rewind to the step of the newest
// epoch. They begin at the newest step that they have up to that one; if it is earlier, all get another
// Rewind, in the next epoch. Workers that learn of this in different orders send the same Rewinds, and a
// server that receives one twice acts once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace psring {

class CommonStep {
 public:
  explicit CommonStep(int servers) : began_(static_cast<size_t>(servers)) {}

  void OnBegin(int server, int64_t epoch, int64_t step);

  bool knows(int server) const { return began_[static_cast<size_t>(server)].has_value(); }
  bool knows_all() const;
  bool in_one_epoch() const;
  // All servers have begun in one epoch, at step().
  bool agreed() const;
  int64_t newest_epoch() const;
  // The earliest step at which a server has begun in the newest epoch; 0 before the first OnBegin.
  int64_t step() const;
  // The epoch of the Rewind to send, whose step is step(). A server that is in this epoch or a later one
  // ignores it.
  int64_t epoch_to_send() const;
  std::vector<int> ServersToRewind() const;

 private:
  struct Beginning {
    int64_t epoch = 0;
    int64_t step = 0;
  };
  std::vector<std::optional<Beginning>> began_;  // by server; empty: unknown so far
};

}  // namespace psring
