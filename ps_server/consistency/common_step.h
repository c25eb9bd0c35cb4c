// With which step a worker goes on when one of several servers has come back from its death with older
// weights: the newest that all of them can go back to. Pure: no clock, no I/O. One a worker; the servers do
// not know each other.
//
// A server *begins* at a step: with the job, after its death, or because it was told to go back. Each
// beginning has an *epoch*: 0 with the job; after a death one more than its workers had heard of from it;
// told to go back, the epoch that it was told. All agree once all have begun in one epoch at one step. Until
// then those of an earlier epoch are told to go back to the step of the newest; they go to the newest step
// that they have up to that, and where this is an earlier one, all are told to go back once more, in the next
// epoch. In whatever order workers hear of it, they tell the servers the same, and a server that hears it
// twice does it once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace psring {

class CommonStep {
 public:
  explicit CommonStep(int servers) : began_(static_cast<size_t>(servers)) {}

  void OnBegin(int server, int64_t epoch, int64_t step);

  bool has_heard_of(int server) const { return began_[static_cast<size_t>(server)].has_value(); }
  bool has_heard_of_all() const;
  bool in_one_epoch() const;
  // All have begun in one epoch, at step().
  bool agreed() const;
  int64_t newest_epoch() const;
  // The earliest step at which one has begun in the newest epoch; 0 before the first OnBegin.
  int64_t step() const;
  // What servers are to be told: to begin in this epoch, not beyond step(). A server of that epoch, or a
  // later one, ignores it.
  int64_t epoch_to_tell() const;
  std::vector<int> ServersToTell() const;

 private:
  struct Beginning {
    int64_t epoch = 0;
    int64_t step = 0;
  };
  std::vector<std::optional<Beginning>> began_;  // by server; nothing: it has not been heard of
};

}  // namespace psring
