// What a person sees while configurations run: one line that is redrawn on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

namespace psring {

// One of the trainer's progress lines.
struct ProgressEvent {
  std::string event;  // start, ready, step, evaluate, done
  int rank = 0;
  int64_t step = 0, steps = 0;
  double loss = 0;
  std::string text;                   // of a "note"
  int64_t samples = 0, tx_bytes = 0;  // of a "step": of this rank so far
};
std::optional<ProgressEvent> ParseProgress(const std::string& line);

// How far a launch is.
class LaunchProgress {
 public:
  explicit LaunchProgress(int ranks) : ranks_(static_cast<size_t>(ranks)) {}

  void Note(const ProgressEvent& event);
  std::string LastKnown(int rank) const;  // "last heard of at step 12 of 25", "it never got ready"
  // The same of the one that is furthest behind, of `count` ranks: "rank 2: last heard of at step 12 of 25".
  // Empty where there are none of these.
  std::string LastKnownOfLast(int first, int count) const;
  // "[#####.....] 12/25 steps, loss 0.53": of the rank that is furthest behind.
  std::string Bar() const;

 private:
  size_t Last(size_t first, size_t count) const;

  std::vector<ProgressEvent> ranks_;  // the last of each
};

// Whatever a line holds is made printable (common/command_line.h).
class Display {
 public:
  Display(FILE* out, bool terminal) : out_(out), terminal_(terminal) {}
  // Ends the line that is being redrawn.
  ~Display() { Clear(); }

  bool terminal() const { return terminal_; }
  // A line that stays.
  void Say(const std::string& line);
  // A line that stays, where nothing is redrawn.
  void SayPlain(const std::string& line);
  // Replaces the line being redrawn; at most ten times a second, because drawing takes time from those we
  // measure. Nothing where this is no terminal.
  void Redraw(const std::string& line);
  void Clear();

 private:
  FILE* out_;
  bool terminal_;
  bool drawn_ = false;
  int64_t last_ns_ = 0;
};

}  // namespace psring
