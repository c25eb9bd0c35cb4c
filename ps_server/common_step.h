// With which step a worker goes on when one of several servers has come back from its death with older
// weights: the newest that all of them can go back to. Pure: no clock, no I/O. One a worker; servers do not
// know each other.
//
// A server *begins* at a step: with the job, after its death, or because it was told to go back. It goes back
// to the newest step it has that is not beyond what it is told, and begins there. So the earliest step at
// which one has begun is told to all that have not begun there yet, until all have: what is told only ever
// falls.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace psring {

class CommonStep {
 public:
  explicit CommonStep(int servers) : began_at_(static_cast<size_t>(servers)) {}

  // `server` begins at `step`. Where all had agreed before, they have to do so anew.
  void OnBegin(int server, int64_t step);

  // All have begun at step(), and nobody has died since.
  bool agreed() const;
  // The earliest step at which one has begun; 0 before the first OnBegin.
  int64_t step() const;
  // Those that are to go back to step(): they are further, or have not said where they begin.
  std::vector<int> Ahead() const;

 private:
  std::vector<std::optional<int64_t>> began_at_;  // by server; nothing: somewhere, but not lately
};

}  // namespace psring
