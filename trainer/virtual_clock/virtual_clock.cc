#include "trainer/virtual_clock/virtual_clock.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {
VirtualClock::VirtualClock(Topology topology, int workers, int64_t warmup_steps, const VirtualTimes& times,
                           LogicalCluster& cluster)
    : topology_(topology),
      warmup_steps_(warmup_steps),
      times_(times),
      cluster_(cluster),
      workers_(static_cast<size_t>(workers)),
      warm_(warmup_steps == 0) {}

void VirtualClock::Plan(int64_t at_ns, int worker, What what) {
  events_.push({.at_ns = at_ns, .worker = worker, .number = events_planned_++, .what = what});
}

absl::Status VirtualClock::Run() {
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    PSRING_RETURN_IF_ERROR(cluster_.Compute(static_cast<int>(worker), 0));
    PSRING_RETURN_IF_ERROR(Begin(static_cast<int>(worker), 0));
  }
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ns_ = event.at_ns;
    Worker& worker = workers_[static_cast<size_t>(event.worker)];
    const int64_t step = worker.now.step;
    absl::Status status;
    switch (event.what) {
      case What::kReady:
        status = OnReady(event.worker);
        break;
      case What::kArrived:
        server_free_ns_ = std::max(now_ns_, server_free_ns_) + times_.ServeNs(event.worker, step);
        Plan(server_free_ns_, event.worker, What::kServed);
        break;
      case What::kServed:
        status = cluster_.Push(event.worker, step);
        if (status.ok()) status = SendAnswers();
        break;
      case What::kOver:
        status = OnOver(event.worker);
        break;
    }
    PSRING_RETURN_IF_ERROR(Prefixed(status, "worker ", event.worker, ", step ", step, ": "));
  }
  return absl::OkStatus();
}

// The gradient of `step` is computed; only its time is simulated.
absl::Status VirtualClock::Begin(int worker, int64_t step) {
  Worker& state = workers_[static_cast<size_t>(worker)];
  state.now = {.worker = worker, .step = step, .warmup = step < warmup_steps_, .begin_ns = now_ns_};
  state.now.compute = times_.ComputeOf(worker, step);
  state.now.ready_ns = now_ns_ + state.now.compute.other_ns + state.now.compute.own_ns;
  Plan(state.now.ready_ns, worker, What::kReady);
  return absl::OkStatus();
}

absl::Status VirtualClock::OnReady(int worker) {
  const int64_t step = workers_[static_cast<size_t>(worker)].now.step;
  switch (topology_) {
    case Topology::kBackupServer: {
      PSRING_ASSIGN_OR_RETURN(const bool admitted, cluster_.Announce(worker, step));
      if (admitted) Plan(now_ns_ + times_.PushNs(worker, step), worker, What::kArrived);
      return SendAnswers();
    }
    case Topology::kServer:
      Plan(now_ns_ + times_.PushNs(worker, step), worker, What::kArrived);
      return absl::OkStatus();
    case Topology::kAllReduce:
      return ++ready_ == static_cast<int>(workers_.size()) ? OnAllReady() : absl::OkStatus();
    case Topology::kAlone:
      PSRING_RETURN_IF_ERROR(cluster_.Push(worker, step));
      return SendAnswers();
  }
  return absl::OkStatus();
}

// In order of ranks: the sum of an all-reduce does not depend on who was ready first.
absl::Status VirtualClock::OnAllReady() {
  ready_ = 0;
  for (const Worker& worker : workers_) {
    PSRING_RETURN_IF_ERROR(cluster_.Push(worker.now.worker, worker.now.step));
  }
  return SendAnswers();
}

absl::Status VirtualClock::SendAnswers() {
  PSRING_ASSIGN_OR_RETURN(std::vector<LogicalCluster::Answer> answers, cluster_.TakeAnswers());
  for (LogicalCluster::Answer& answer : answers) {
    Worker& reader = workers_[static_cast<size_t>(answer.worker)];
    int64_t travel_ns = 0;
    if (topology_ == Topology::kAllReduce) {
      travel_ns = times_.AllReduceNs(answer.worker, reader.now.step);
    } else if (topology_ != Topology::kAlone) {
      travel_ns = times_.PullNs(answer.worker, reader.now.step);
    }
    Plan(now_ns_ + travel_ns, answer.worker, What::kOver);
    reader.answer = std::move(answer);
  }
  return absl::OkStatus();
}

absl::Status VirtualClock::OnOver(int worker) {
  Worker& state = workers_[static_cast<size_t>(worker)];
  state.now.over_ns = now_ns_;
  state.now.dropped = state.answer.dropped;
  state.now.staleness = state.answer.staleness;
  PSRING_RETURN_IF_ERROR(cluster_.Finished(state.now));
  if (!warm_ && state.answer.next_step >= warmup_steps_) {
    return ++parked_ == static_cast<int>(workers_.size()) ? LeaveBarrier() : absl::OkStatus();
  }
  return state.answer.over ? absl::OkStatus() : Begin(worker, state.answer.next_step);
}

absl::Status VirtualClock::LeaveBarrier() {
  warm_ = true;
  for (Worker& worker : workers_) {
    if (worker.answer.over) continue;
    PSRING_RETURN_IF_ERROR(Begin(worker.answer.worker, worker.answer.next_step));
  }
  return absl::OkStatus();
}

}  // namespace psring
