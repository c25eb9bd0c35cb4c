// Progress of running configurations: one line that is redrawn on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/measure/trace.h"
#include "experiments/texts/phrase.h"

namespace psring {

// One of the trainer's progress lines.
struct ProgressEvent {
  std::string event;  // start, ready, step, evaluate, done, note
  int rank = 0;
  int64_t step = 0, steps = 0;
  double loss = 0;
  std::string text;                   // "note" only
  int64_t samples = 0, tx_bytes = 0;  // "step" only: this rank's totals
};
std::optional<ProgressEvent> ParseProgress(const std::string& line);

// The progress of a launch.
class LaunchProgress {
 public:
  explicit LaunchProgress(int ranks) : ranks_(static_cast<size_t>(ranks)) {}

  void Note(const ProgressEvent& event);
  bool HasStepped(int rank) const;
  std::string LastKnown(int rank) const;  // "last seen at step 12 of 25"
  // LastKnown of the slowest of `count` ranks from `first` on: "rank 2: last seen at step 12 of 25". Empty if
  // they do not exist.
  std::string LastKnownOfLast(int first, int count) const;
  // "[#####.....] 12/25 steps, loss 0.530", of the slowest rank.
  std::string Bar() const;

 private:
  size_t Last(size_t first, size_t count) const;

  std::vector<ProgressEvent> ranks_;  // the last event of each
};

// Prints lines, with control characters escaped (see Printable).
class Display {
 public:
  Display(FILE* out, bool terminal) : out_(out), terminal_(terminal) {}
  ~Display() { Clear(); }

  bool terminal() const { return terminal_; }
  // Of the output; initially English.
  Language language() const { return language_; }
  void set_language(Language language) { language_ = language; }
  // Prints a message, which may contain text of others.
  void Say(const std::string& line);
  // Prints lines of psring.
  void SayLines(const std::string& text);
  // Prints a line that begins with "note:" in the language of the output.
  void Note(const std::string& text);
  // Does nothing for a text that it has printed before.
  void NoteOnce(const std::string& text);
  // Prints a line unless this is a terminal.
  void SayPlain(const std::string& line);
  // On a terminal, replaces the line being redrawn, at most ten times a second because drawing takes
  // processor time from the experiment.
  void Redraw(const std::string& line);
  // From now on, the redrawn line ends with the time that is left of `seconds`, unless there is no room for
  // it.
  void ExpectEndIn(double seconds) { end_ns_ = MonotonicNanos() + static_cast<int64_t>(1e9 * seconds); }
  // Erases the line being redrawn.
  void Clear();

 private:
  std::string TimeLeft(int64_t now_ns) const;

  FILE* out_;
  bool terminal_;
  Language language_ = Language::kEnglish;
  bool drawn_ = false;
  int64_t end_ns_ = 0;  // 0: not known
  int64_t last_ns_ = 0;
  std::set<std::string> noted_;
};

}  // namespace psring
