// Progress of running configurations: one line that is redrawn on a terminal, plain lines elsewhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/measure/trace.h"

namespace psring {

// One of the trainer's progress lines.
struct ProgressEvent {
  std::string event;  // start, ready, step, evaluating, evaluate, done, note
  int rank = 0;
  int64_t step = 0, steps = 0;
  double loss = 0;
  std::string text;                        // "note" only
  int64_t evaluated = 0, to_evaluate = 0;  // "evaluating" only: samples, or tokens of a text
};
std::optional<ProgressEvent> ParseProgress(const std::string& line);
// The workers that the job has ended without, from a server's line (kEndedWithout); empty: another line.
std::vector<int> EndedWithout(absl::string_view line);

class Display;

// The progress of a launch.
class LaunchProgress {
 public:
  explicit LaunchProgress(int ranks) : ranks_(static_cast<size_t>(ranks)) {}

  // `now_ns`: of MonotonicNanos.
  void Note(const ProgressEvent& event, int64_t now_ns = MonotonicNanos());
  // Seconds until the running evaluations end, from their speed so far; nullopt: none run, or it is not
  // known.
  std::optional<double> EvaluationLeftSeconds() const;
  bool HasStepped(int rank) const;
  std::string LastKnown(int rank) const;  // "last seen at step 12 of 25"
  // LastKnown of the slowest of `count` ranks from `first` on: "rank 2: last seen at step 12 of 25". Empty if
  // they do not exist.
  std::string LastKnownOfLast(int first, int count) const;
  // "[#####.....] 12/25 steps, loss 0.530", of the slowest rank; "[##########] evaluating 12%".
  std::string Bar() const;
  // Redraws the line of the launch, after its label; if this is not a terminal, prints once that evaluations
  // of more than a few seconds are running. `unit`: of samples.
  void Show(const std::string& label, const std::string& unit, Display& display);

 private:
  size_t Last(size_t first, size_t count) const;

  std::vector<ProgressEvent> ranks_;  // the last event of each
  // Of the evaluations that began last: their last event, and when they began and it came.
  ProgressEvent evaluation_;
  int64_t evaluation_begin_ns_ = 0, evaluation_now_ns_ = 0;
  bool has_announced_ = false;
};

enum class Style { kPlain, kBold, kDim };

// Prints lines, with control characters escaped (see Printable).
class Display {
 public:
  Display(FILE* out, bool terminal) : out_(out), terminal_(terminal) {}
  ~Display() { Clear(); }

  bool terminal() const { return terminal_; }
  // Prints a message, which may contain text of others.
  void Say(const std::string& line);
  // Prints lines of psring. The style shows on a terminal, unless NO_COLOR is set or TERM is dumb.
  void SayLines(const std::string& text, Style style = Style::kPlain);
  // Prints a question, without ending the line.
  void Ask(const std::string& question);
  // Prints a line that begins with "note:" in the language of the output.
  void Note(const std::string& text);
  // Does nothing for a text that it has printed before.
  void NoteOnce(const std::string& text);
  // Prints a line unless this is a terminal.
  void SayPlain(const std::string& line);
  // On a terminal, replaces the line being redrawn, at most ten times a second because drawing takes
  // processor time from the experiment.
  void Redraw(const std::string& line);
  // From now on, the redrawn line ends with the time that is left of `seconds`, unless there is no space for
  // it.
  void ExpectEndIn(double seconds) { end_ns_ = MonotonicNanos() + static_cast<int64_t>(1e9 * seconds); }
  // The same, unless a later end is expected.
  void ExpectEndNotBefore(double seconds) {
    end_ns_ = std::max(end_ns_, MonotonicNanos() + static_cast<int64_t>(1e9 * seconds));
  }
  // ", about 40 s left"; empty: at most a second, or not known.
  std::string TimeLeft() const { return TimeLeft(MonotonicNanos()); }
  // Erases the line being redrawn.
  void Clear();

 private:
  std::string TimeLeft(int64_t now_ns) const;

  FILE* out_;
  bool terminal_;
  bool drawn_ = false;
  int64_t end_ns_ = 0;  // 0: not known
  int64_t last_ns_ = 0;
  std::set<std::string> noted_;
};

}  // namespace psring
