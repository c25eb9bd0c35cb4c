// What a rank prints on stdout during training.
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
  Traffic moved;                  // of this rank so far
  double loss = 0;
};

// Calls come from the training thread.
class Progress {
 public:
  virtual ~Progress() = default;

  virtual void Started() = 0;
  // Data and connections are ready; training begins.
  virtual void Ready() = 0;
  // Called after every step; prints at most a few times per second, and always for the last step.
  virtual void Step(const StepProgress& step) = 0;
  // Called at the beginning of evaluations, with 0, and after every batch, with the number of samples (of a
  // text: tokens) so far and in all evaluations; prints at most a few times per second.
  virtual void Evaluating(int64_t done, int64_t planned) = 0;
  virtual void Evaluated(const CurvePoint& point) = 0;
  virtual void Done(const RankResult& result) = 0;
  // A message for the user. False: this kind does not print it; print it on stderr.
  virtual bool Note(const std::string& text) = 0;
};

// `kind`:
//   plain  readable lines, from rank 0 only
//   json   for a launcher, from every rank, one object per line: {"event": "start" | "ready" | "step" |
//          "evaluating" | "evaluate" | "done" | "note", "rank": 0, ...}
//   none   nothing
// `replicas`: of the model; below `world_size` with --pp or --tp. Rank 0 counts the samples of its replica.
// `counts_tokens`: the samples are the tokens of a text.
std::unique_ptr<Progress> MakeProgress(const std::string& kind, int rank, int world_size, int replicas,
                                       bool counts_tokens, Clock clock = MonotonicNanos);

}  // namespace psring
