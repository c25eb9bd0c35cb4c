// Simulated time for real learning: when N logical workers compute, send, queue at the server and wait, given
// how long each of these takes. Who waits for whom is not decided here: the server that is driven is the one
// of live runs (ps_server/inline_server.h). Pure but for what it calls.
//
// One thread takes events in the order of their time, those of one time by worker. A worker's step:
//   ready     its computing is over, as long as it takes
//   arrived   its gradient is at the server (backup workers: if it was admitted when it was ready)
//   served    the server has added it; pushes are served one at a time, first come first served
//   over      the weights that answer it are back; the next step begins
// A whole gradient moves at once: buckets do not overlap with computing. An all-reduce begins when the last
// worker is ready.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/delays.h"
#include "common/measure/step_times.h"
#include "common/options/training_options.h"

namespace psring {

// How long things take, in ns: functions of worker and step alone.
class VirtualTimes {
 public:
  struct Compute {
    int64_t other_ns = 0;  // besides computing, before it
    int64_t own_ns = 0;    // computing, with delay_ns in it
    int64_t delay_ns = 0;  // what the worker is slowed down by
  };

  // Reads the files that --compute_ms and --network_ms name. InvalidArgument: flags or files that cannot be
  // read; no --compute_ms.
  static absl::StatusOr<VirtualTimes> Create(const TrainingOptions& options, int workers);

  Compute ComputeOf(int worker, int64_t step) const;
  int64_t PushNs(int worker, int64_t step) const;
  int64_t PullNs(int worker, int64_t step) const;
  int64_t ServeNs(int worker, int64_t step) const;
  // An all-reduce: 2(N-1)/N of a gradient's time on a link (a ring's share, Patarasuk & Yuan 2009), or as
  // long as the measured exchange.
  int64_t AllReduceNs(int worker, int64_t step) const;

 private:
  struct Source {
    TimeDistribution distribution;
    std::optional<StepTimes> trace;
  };
  static absl::StatusOr<Source> Read(const std::string& flag, const std::string& text);

  uint64_t seed_ = 1;
  int workers_ = 1;
  std::vector<Straggler> stragglers_;
  TimeDistribution jitter_, serve_;
  Source compute_, network_;
};

// What one worker did in one step, when. In ns.
struct VirtualStep {
  int worker = 0;
  int64_t step = 0;
  bool warmup = false;
  bool dropped = false;
  int64_t begin_ns = 0, ready_ns = 0, over_ns = 0;
  VirtualTimes::Compute compute;
  std::vector<int64_t> staleness;  // by bucket; empty without a server
};

// What happens when the clock says so. Calls come in the order of virtual time.
class LogicalCluster {
 public:
  struct Answer {
    int worker = 0;
    int64_t next_step = 0;
    bool dropped = false;
    bool over = false;  // the worker has no further step
    std::vector<int64_t> staleness;
  };

  virtual ~LogicalCluster() = default;
  // The worker's gradient of `step`, on the weights that it has: those of the start, or of its last answer.
  virtual absl::Status Compute(int worker, int64_t step) = 0;
  // Backup workers: whether the worker's gradient is admitted.
  virtual absl::StatusOr<bool> Announce(int worker, int64_t step) = 0;
  // The whole gradient is with the server, or with the all-reduce: there all workers' follow each other.
  virtual absl::Status Push(int worker, int64_t step) = 0;
  // Whom the calls so far have answered.
  virtual absl::StatusOr<std::vector<Answer>> TakeAnswers() = 0;
  // A step is over; `now_ns` is its end.
  virtual absl::Status Finished(const VirtualStep& step) = 0;
};

enum class Topology { kServer, kBackupServer, kAllReduce, kAlone };

class VirtualClock {
 public:
  VirtualClock(Topology topology, int workers, int64_t warmup_steps, const VirtualTimes& times,
               LogicalCluster& cluster);

  // From the start until every worker is over. An error of a step names worker and step.
  absl::Status Run();

 private:
  enum class What { kReady, kArrived, kServed, kOver };
  struct Event {
    int64_t at_ns = 0;
    int worker = 0;
    int64_t number = 0;  // in the order in which they were planned
    What what = What::kReady;
    bool operator>(const Event& other) const {
      return std::tie(at_ns, worker, number) > std::tie(other.at_ns, other.worker, other.number);
    }
  };
  struct Worker {
    VirtualStep now;
    LogicalCluster::Answer answer;  // the one that is on its way
    bool parked = false;            // at the barrier before the measured steps
  };

  void Plan(int64_t at_ns, int worker, What what);
  absl::Status Begin(int worker, int64_t step);
  absl::Status OnReady(int worker);
  absl::Status OnAllReady();
  absl::Status OnOver(int worker);
  absl::Status SendAnswers();
  absl::Status LeaveBarrier();

  const Topology topology_;
  const int64_t warmup_steps_;
  const VirtualTimes& times_;
  LogicalCluster& cluster_;
  std::vector<Worker> workers_;
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  int64_t events_planned_ = 0;
  int64_t now_ns_ = 0;
  int64_t server_free_ns_ = 0;
  int ready_ = 0;  // all-reduce: workers that wait for the others
  int parked_ = 0;
  bool warm_ = false;
};

}  // namespace psring
