// What a rank says on its stdout while it works.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/measure/records.h"
#include "common/measure/trace.h"

namespace psring {

struct StepProgress {
  int64_t done = 0, planned = 0;  // steps
  int64_t samples = 0;            // of this rank so far
  Traffic moved;                  // likewise
  double loss = 0;
};

// Calls come from the training thread.
class Progress {
 public:
  virtual ~Progress() = default;

  virtual void Started() = 0;
  // Data and connections are there; training begins.
  virtual void Ready() = 0;
  // Called after every step; speaks a few times a second at most, and of the last step always.
  virtual void Step(const StepProgress& step) = 0;
  virtual void Evaluated(const CurvePoint& point) = 0;
  virtual void Done(const RankResult& result) = 0;
  // What people should know, where this speaks to a launcher that tells them. False: say it on stderr.
  virtual bool Note(const std::string& text) {
    (void)text;
    return false;
  }
};

// `kind`:
//   plain  lines for people, from rank 0 alone
//   json   from every rank, for a launcher, an object a line: {"event": "start" | "ready" | "step" |
//          "evaluate" | "done" | "note", "rank": 0, ...}
//   none   nothing
std::unique_ptr<Progress> MakeProgress(const std::string& kind, int rank, int world_size,
                                       Clock clock = MonotonicNanos);

}  // namespace psring
