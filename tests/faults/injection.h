// The faults of the fault driver, and what a job promises after each.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "common/base/file_descriptor.h"
#include "tests/faults/job.h"

namespace psring {

enum class FaultKind {
  kKillWorker,
  kKillServer,
  kKillLauncher,
  kStopWorker,
  kEndWorker,  // SIGTERM
  kFewFiles,
  kSilentConnections,
  kFullDisk,
  kEndServer,
  kEndLauncher,
  kSmallShm,
  kLittleMemory,
  kLinkDown,  // and back
  kLoss,      // and delay
  kKillNode,  // one psring of `train --nnodes`, with its processes
  kStopServer,
  kKillServerAtEnd,  // around the last step
  kKillWorkerAtEnd
};
inline constexpr int kFaultKinds = 18;
inline constexpr int kQuickFaultKinds = 8;  // the first ones, of the short form
std::string NameOf(FaultKind kind);

// One drawn fault. The trigger is what the job is seen to have done: `sockets` opened by the victim, or, if
// negative, a checkpoint of `step`.
struct Fault {
  FaultKind kind = FaultKind::kKillWorker;
  JobSetup setup;
  int victim = 0;  // a rank
  int sockets = -1;
  int64_t step = 0;
  int delay_ms = 0;  // after the trigger

  std::string Text() const;
  int node() const { return setup.nodes > 1 ? victim / setup.per_node : 0; }
};
Fault Draw(FaultKind kind, std::mt19937& random);

// What the fault does while the job runs. False: the job ended before.
class Injection {
 public:
  explicit Injection(const Fault& fault) : fault_(fault) {}
  bool Apply(FaultJob& job);

 private:
  bool AwaitTrigger(FaultJob& job, pid_t& victim) const;
  bool Signal(FaultJob& job, int signal) const;
  bool CutLink(FaultJob& job) const;
  bool Disturb(FaultJob& job) const;
  bool Connect(FaultJob& job);

  const Fault& fault_;
  std::vector<FileDescriptor> silent_;
};

// What must follow. At least one of `may_recover` and `names` applies.
struct Promise {
  bool may_recover = false;        // the job may end as if undisturbed
  bool must_recover = false;       // and has to
  std::vector<std::string> names;  // otherwise each last line contains one of these
};
Promise PromiseOf(const Fault& fault);

}  // namespace psring
