#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "experiments/lecture/checks/checks.h"
#include "ps_server/consistency/consistency.h"

namespace psring {
namespace {

struct SmallJob {
  int bound;
  std::vector<int> steps;  // of each worker, before it finishes
};

const std::vector<SmallJob>& SmallJobs() {
  static const auto& jobs = *new std::vector<SmallJob>{
      {0, {3, 3}},    {1, {4, 4}},       {2, {5, 5}}, {1, {3, 3, 3}},
      {2, {4, 4, 4}}, {1, {3, 3, 3, 3}}, {1, {5, 1}}, {2, {5, 0, 2}},
  };
  return jobs;
}

// A job under psring's rule. It compares the solution at each event.
class SmallWorld {
 public:
  SmallWorld(const SmallJob& job, const SspSolution& solution)
      : job_(job), solution_(solution), waits_(job.steps.size(), false) {
    const int workers = static_cast<int>(job.steps.size());
    server_ = job.bound == 0 ? MakeSynchronous(workers) : MakeBoundedStaleness(workers, job.bound);
    state_ = {.bound = job.bound,
              .pushed = std::vector<int>(job.steps.size(), 0),
              .finished = std::vector<bool>(job.steps.size(), false)};
    for (int worker = 0; worker < workers; ++worker) {
      if (job.steps[worker] == 0) Finish(worker);
    }
  }

  bool Computes(int worker) const { return !waits_[worker] && !state_.finished[worker]; }
  // The worker pushes its next step. Returns the first difference, or an empty string.
  std::string Push(int worker) {
    order_.push_back(worker);
    const int64_t step = state_.pushed[worker]++;
    waits_[worker] = true;
    return Compare(server_->OnPush(worker, step).may_read);
  }
  // Worlds in the same state behave the same.
  std::vector<int> State() const {
    std::vector<int> state = state_.pushed;
    state.insert(state.end(), waits_.begin(), waits_.end());
    state.insert(state.end(), state_.finished.begin(), state_.finished.end());
    return state;
  }

 private:
  std::string Finish(int worker) {
    state_.finished[worker] = true;
    return Compare(server_->OnLeave(worker).may_read);
  }

  // `answered`: by psring.
  std::string Compare(const std::vector<int>& answered) {
    for (int worker = 0; worker < std::ssize(waits_); ++worker) {
      if (!waits_[worker]) continue;
      const bool expected = std::ranges::count(answered, worker) > 0;
      if (solution_(state_, worker) != expected) return SspDifference(worker, expected);
    }
    for (const int worker : answered) waits_[worker] = false;
    for (const int worker : answered) {
      if (state_.pushed[worker] < job_.steps[worker]) continue;
      if (std::string difference = Finish(worker); !difference.empty()) return difference;
    }
    return "";
  }

  std::string SspDifference(int worker, bool expected) const {
    int slowest = worker;
    std::vector<int> finished;
    for (int other = 0; other < std::ssize(waits_); ++other) {
      if (state_.finished[other]) {
        finished.push_back(other);
      } else if (state_.pushed[other] < state_.pushed[slowest]) {
        slowest = other;
      }
    }
    const int lead = state_.pushed[worker] - state_.pushed[slowest];
    const std::string state = absl::StrCat(
        "after pushes of workers ", absl::StrJoin(order_, " "), ", pushed is {",
        absl::StrJoin(state_.pushed, ", "), "}",
        finished.empty() ? "" : absl::StrCat(", finished workers: ", absl::StrJoin(finished, " ")), "; ");
    if (expected) {
      return absl::StrCat(state, "worker ", worker, " waits; expected that it continues: ",
                          slowest == worker ? "no worker that has not finished is behind it"
                                            : absl::StrCat("it is ", lead, " ahead of worker ", slowest),
                          ", and K is ", job_.bound);
    }
    return absl::StrCat(state, "worker ", worker, " continues; expected that it waits: it is ", lead,
                        " ahead of worker ", slowest, ", and K is ", job_.bound);
  }

  const SmallJob& job_;
  const SspSolution& solution_;
  std::unique_ptr<Consistency> server_;
  JobState state_;
  std::vector<bool> waits_;  // by worker: it has pushed and is not answered
  std::vector<int> order_;   // the workers of all pushes so far
};

std::string FirstSspDifference(const SmallJob& job, const SspSolution& solution) {
  std::set<std::vector<int>> known;
  std::deque<std::vector<int>> orders = {{}};  // one for each known state, the shortest first
  for (; !orders.empty(); orders.pop_front()) {
    for (int worker = 0; worker < std::ssize(job.steps); ++worker) {
      SmallWorld world(job, solution);
      for (const int pusher : orders.front()) world.Push(pusher);
      if (!world.Computes(worker)) continue;
      if (std::string difference = world.Push(worker); !difference.empty()) return difference;
      if (!known.insert(world.State()).second) continue;
      orders.push_back(orders.front());
      orders.back().push_back(worker);
    }
  }
  return "";
}

}  // namespace

std::vector<TapPoint> CheckSsp(const SspSolution& solution) {
  std::vector<TapPoint> points;
  for (const SmallJob& job : SmallJobs()) {
    const std::string name = absl::StrCat("K=", job.bound, ", ", job.steps.size(), " workers with ",
                                          absl::StrJoin(job.steps, ", "), " steps: ");
    const std::string difference = FirstSspDifference(job, solution);
    points.push_back({.name = name + "every worker waits when it must, and only then",
                      .failure = difference.empty() ? "" : name + difference});
  }
  return points;
}

}  // namespace psring
