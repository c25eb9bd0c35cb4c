// Simulated time for real training: when N logical workers compute, send, queue at the server and wait, given
// the duration of each. The server of live runs (ps_server/server/inline_server.h) decides who waits for
// whom.
//
// One thread processes events in order of time, events at one time by worker. A worker's step:
//   ready     it has computed its gradient
//   arrived   its gradient is at the server (backup workers: if it was admitted when it was ready)
//   served    the server has added it; pushes are served one at a time, first come first served
//   over      the weights of the answer have arrived; the next step begins
// A gradient is sent in one piece: buckets do not overlap with computing. An all-reduce begins when the last
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
#include "common/cli/delays.h"
#include "common/measure/step_times.h"
#include "common/options/training_options.h"

namespace psring {

// Durations in ns; functions of worker and step only.
class VirtualTimes {
 public:
  struct Compute {
    int64_t other_ns = 0;  // before computing
    int64_t own_ns = 0;    // computing, including delay_ns
    int64_t delay_ns = 0;  // --straggler and --jitter_ms
  };

  // Reads the files of --compute_ms and --network_ms. `all_reduce`: its time, in units of a gradient's time
  // on a link (ScheduleTraffic::InSequence). InvalidArgument: invalid flags or files; no --compute_ms.
  static absl::StatusOr<VirtualTimes> Create(const TrainingOptions& options, double all_reduce);

  Compute ComputeOf(int worker, int64_t step) const;
  int64_t PushNs(int worker, int64_t step) const;
  int64_t PullNs(int worker, int64_t step) const;
  int64_t ServeNs(int worker, int64_t step) const;
  // An all-reduce, or the measured exchange.
  int64_t AllReduceNs(int worker, int64_t step) const;

 private:
  struct Source {
    TimeDistribution distribution;
    std::optional<StepTimes> trace;
  };
  static absl::StatusOr<Source> Read(const std::string& flag, const std::string& text);

  uint64_t seed_ = 1;
  double all_reduce_ = 0;
  std::vector<Straggler> stragglers_;
  TimeDistribution jitter_, serve_;
  Source compute_, network_;
};

// The times of one worker's step, in ns.
struct VirtualStep {
  int worker = 0;
  int64_t step = 0;
  bool warmup = false;
  bool dropped = false;
  int64_t begin_ns = 0, ready_ns = 0, over_ns = 0;
  VirtualTimes::Compute compute;
  std::vector<int64_t> staleness;  // by bucket; empty without a server
};

// What the clock drives. Calls come in order of virtual time.
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
  // Computes the worker's gradient of `step` on the weights of the start or of its last answer.
  virtual absl::Status Compute(int worker, int64_t step) = 0;
  // Backup workers: whether the worker's gradient is admitted.
  virtual absl::StatusOr<bool> Announce(int worker, int64_t step) = 0;
  // The gradient has arrived at the server, or at the all-reduce (called for all workers, in rank order).
  virtual absl::Status Push(int worker, int64_t step) = 0;
  // The workers answered since the last call.
  virtual absl::StatusOr<std::vector<Answer>> TakeAnswers() = 0;
  // A step is over.
  virtual absl::Status Finished(const VirtualStep& step) = 0;
};

enum class Topology { kServer, kBackupServer, kAllReduce, kAlone };

class VirtualClock {
 public:
  VirtualClock(Topology topology, int workers, int64_t warmup_steps, const VirtualTimes& times,
               LogicalCluster& cluster);

  // Runs until all workers are over. An error of a step names worker and step.
  absl::Status Run();

 private:
  enum class What { kReady, kArrived, kServed, kOver };
  struct Event {
    int64_t at_ns = 0;
    int worker = 0;
    int64_t number = 0;  // in order of planning
    What what = What::kReady;
    bool operator>(const Event& other) const {
      return std::tie(at_ns, worker, number) > std::tie(other.at_ns, other.worker, other.number);
    }
  };
  struct Worker {
    VirtualStep now;
    LogicalCluster::Answer answer;  // in transit
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
  int ready_ = 0;   // all-reduce: number of workers that wait
  int parked_ = 0;  // workers that wait at the barrier before the measured steps
  bool warm_ = false;
};

}  // namespace psring
