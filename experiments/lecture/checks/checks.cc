#include "experiments/lecture/checks/checks.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ps_server/consistency/consistency.h"
#include "ring_worker/schedules/schedule.h"
#include "ring_worker/schedules/schedule_check.h"

namespace psring {
namespace {

// Of the README's text; 1 is a ring without rounds, and 7 is odd and larger than the picture.
constexpr int kRanks[] = {1, 2, 3, 4, 7, 8, 16};

// A solution for one number of ranks.
class SolvedRing final : public Schedule {
 public:
  SolvedRing(const RingSolution& solution, int ranks) : all_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) solution(ranks, rank, all_[rank]);
  }

  std::string name() const override { return "ring"; }
  int ranks() const override { return static_cast<int>(all_.size()); }
  int chunks() const override { return ranks(); }
  int rounds(int rank) const override { return static_cast<int>(all_[rank].size()); }
  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    const RingRound& one = all_[rank][round];
    transfers.assign(
        {{TransferKind::kSend, one.to, one.sent, 1},
         {one.adds ? TransferKind::kReceiveAdd : TransferKind::kReceive, one.from, one.received, 1}});
  }

  const std::vector<std::vector<RingRound>>& all() const { return all_; }  // [rank][round]

 private:
  std::vector<std::vector<RingRound>> all_;
};

// What is wrong, or empty.
std::string WrongRounds(const SolvedRing& ring) {
  const int fewest = 2 * (ring.ranks() - 1);
  for (int rank = 0; rank < ring.ranks(); ++rank) {
    if (ring.rounds(rank) == fewest) continue;
    return absl::StrCat("rank ", rank, " has ", ring.rounds(rank), " rounds; expected 2(N-1) = ", fewest);
  }
  return "";
}

std::string WrongNeighbors(const SolvedRing& ring) {
  const int ranks = ring.ranks();
  for (int rank = 0; rank < ranks; ++rank) {
    const int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    for (int round = 0; round < ring.rounds(rank); ++round) {
      const RingRound& one = ring.all()[rank][round];
      const auto wrong = [&](const char* does, int peer, int expected) {
        return absl::StrCat("rank ", rank, does, peer, " in round ", round, "; expected ", expected);
      };
      if (one.to != right) return wrong(" sends to rank ", one.to, right);
      if (one.from != left) return wrong(" receives from rank ", one.from, left);
    }
  }
  return "";
}

std::string WrongResult(const SolvedRing& ring) {
  std::string message(CheckSchedule(ring, Collective::kAllReduce).message());
  const std::string before = "is broken: ";
  if (const size_t at = message.find(before); at != std::string::npos) message.erase(0, at + before.size());
  return message.substr(0, message.find("; copies_sends()"));  // a setting that students do not have
}

// Of the first known mistake, in the order of rounds; empty: none.
std::string RingHint(const SolvedRing& ring) {
  const int adding = ring.ranks() - 1;
  for (int rank = 0; rank < ring.ranks(); ++rank) {
    if (ring.ranks() > 1 && ring.rounds(rank) == 0) return "fill in ListRounds";
    if (ring.rounds(rank) > 2 * adding) return "there are too many rounds: each phase has N-1";
    for (int round = 0; round < ring.rounds(rank); ++round) {
      const RingRound& one = ring.all()[rank][round];
      if (one.sent < 0 || one.received < 0)
        return "in C++, -1 % N is -1; add N before you take the remainder";
      if (one.sent == one.received) return "a rank sends one chunk and receives another in the same round";
      if (round < adding && !one.adds)
        return "in the first N-1 rounds a received chunk is a part of a sum: the rank adds it (adds = true)";
      if (round >= adding && one.adds)
        return "after N-1 rounds a received chunk is a complete sum: it replaces the rank's own (adds = "
               "false)";
      if (round > 0 && one.sent != ring.all()[rank][round - 1].received)
        return "a rank sends in each round the chunk that it received in the round before";
    }
    if (ring.rounds(rank) == adding)
      return "this is the first phase; in N-1 more rounds, the sums go around the ring";
  }
  return "";
}

}  // namespace

std::vector<TapPoint> CheckRing(const RingSolution& solution) {
  std::vector<TapPoint> points;
  for (const int ranks : kRanks) {
    const SolvedRing ring(solution, ranks);
    const auto add = [&](const std::string& name, const std::string& failure) {
      const std::string of = absl::StrCat("N=", ranks, ": ");
      points.push_back({.name = of + name,
                        .failure = failure.empty() ? "" : of + failure,
                        .hint = failure.empty() ? "" : RingHint(ring)});
    };
    add("every rank has 2(N-1) rounds", WrongRounds(ring));
    add("every rank sends to its right neighbor and receives from its left one", WrongNeighbors(ring));
    add("sends match receives, and every rank ends with every sum", WrongResult(ring));
  }
  return points;
}

bool AllPassed(const std::vector<TapPoint>& points) {
  return std::ranges::all_of(points, [](const TapPoint& point) { return point.failure.empty(); });
}

std::string TapText(const std::vector<TapPoint>& points) {
  std::string text = absl::StrCat("TAP version 13\n1..", points.size(), "\n");
  for (size_t i = 0; i < points.size(); ++i) {
    const auto& [name, failure, hint] = points[i];
    absl::StrAppend(&text, failure.empty() ? "ok " : "not ok ", i + 1, " - ",
                    failure.empty() ? name : failure, "\n");
    if (!hint.empty()) absl::StrAppend(&text, "# hint: ", hint, "\n");
  }
  return text;
}

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
    const int workers = job.steps.size();
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
