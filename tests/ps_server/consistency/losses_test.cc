// Workers that wait, leave, are lost and return: every waiting rule, over every interleaving of small jobs.
// Any worker is lost at any moment, between two pushes or in the middle of one, and returns at any later
// moment.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ps_server/consistency/admission.h"
#include "ps_server/consistency/consistency.h"
#include "tests/ps_server/consistency/every_state.h"

namespace psring {
namespace {

constexpr int kBuckets = 2;

struct Job {
  std::string rule;
  std::vector<int> steps;  // at which each worker stops
  int losses = 1;

  int workers() const { return static_cast<int>(steps.size()); }
  std::string name() const {
    return absl::StrCat(rule, ", steps ", absl::StrJoin(steps, " "), ", ", losses, " losses");
  }
};

// A model of the server: see BucketRounds::OnLost and OnJoin.
class World {
 public:
  explicit World(const Job& job)
      : job_(job),
        rule_(*ParseWaitingRule(job.rule, job.workers())),
        workers_(job.steps.size()),
        towards_(kBuckets),
        losses_left_(job.losses) {
    if (rule_.kind == WaitingRule::Kind::kBackup) admission_.emplace(job.workers(), rule_.number);
    for (int i = 0; i < kBuckets; ++i) machines_.push_back(*MakeConsistency(job.rule, job.workers()));
    for (int i = 0; i < job.workers(); ++i) ContinueWith(i, 0);
  }

  // Of each worker: its next announcement or push; its loss between two pushes, or during one; its return.
  int actions() const { return 4 * job_.workers(); }
  bool Can(int action) const {
    const Worker& w = workers_[action / 4];
    const bool pushes = w.at == At::kPushes;
    switch (action % 4) {
      case 0:
        return pushes || w.at == At::kAnnounces;
      case 1:
        return (pushes || w.at == At::kAnnounces || w.at == At::kWaits) && losses_left_ > 0;
      case 2:  // if each push is an update, an incomplete one is not in any sum
        return pushes && losses_left_ > 0 && !rule_.each_alone();
      default:  // without other workers the job is over
        return w.at == At::kLost && !over();
    }
  }
  void Do(int action) {
    const int worker = action / 4;
    switch (action % 4) {
      case 0:
        return workers_[worker].at == At::kAnnounces ? Announce(worker) : Push(worker);
      case 1:
        return Lose(worker, /*in_mid_push=*/false);
      case 2:
        return Lose(worker, /*in_mid_push=*/true);
      default:
        return Return(worker);
    }
  }
  bool over() const {
    return std::ranges::all_of(workers_,
                               [](const Worker& w) { return w.at == At::kGone || w.at == At::kLost; });
  }
  std::vector<int64_t> State() const {
    std::vector<int64_t> state = {losses_left_, admission_.has_value() ? admission_->open_step() : 0};
    for (const Worker& w : workers_) {
      state.insert(state.end(), {static_cast<int64_t>(w.at), w.step, w.replies, w.joins, w.was_lost});
      for (int bucket = 0; bucket < kBuckets; ++bucket) {
        state.push_back(w.to_push[bucket]);
        state.push_back(machines_[bucket]->JoinsAt(static_cast<int>(&w - workers_.data())));
      }
    }
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      state.push_back(machines_[bucket]->version());
      state.insert(state.end(), towards_[bucket].begin(), towards_[bucket].end());
      state.push_back(-1);
    }
    if (!made_of_.empty()) {
      state.insert(state.end(), made_of_.rbegin()->second.begin(), made_of_.rbegin()->second.end());
    }
    return state;
  }

 private:
  enum class At { kAnnounces, kPushes, kWaits, kLost, kGone };
  struct Worker {
    At at = At::kWaits;
    int64_t step = 0;
    bool to_push[kBuckets] = {};
    int64_t replies = 0;  // one bit per bucket
    bool joins = false;   // waits for its first weights
    bool was_lost = false;
  };

  BackupBucket& Backup(int bucket) { return dynamic_cast<BackupBucket&>(*machines_[bucket]); }
  void Announce(int worker) {
    Worker& w = workers_[worker];
    const absl::StatusOr<Verdict> verdict = admission_->OnAnnounce(worker, w.step);
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    EXPECT_FALSE(admission_->OnAnnounce(worker, w.step).ok()) << "a second time";
    if (verdict->admitted) {
      SendAll(w);
    } else {
      w.at = At::kWaits;
      ++dropped_;
    }
    EXPECT_EQ(admission_->dropped(), dropped_);
    for (int bucket = 0; bucket < kBuckets; ++bucket) Act(bucket, Backup(bucket).OnVerdict(*verdict));
  }
  static void SendAll(Worker& w) {
    w.at = At::kPushes;
    for (bool& bucket : w.to_push) bucket = true;
  }
  static int Next(const Worker& w) { return w.to_push[0] ? 0 : 1; }
  void Push(int worker) {
    Worker& w = workers_[worker];
    const int bucket = Next(w);
    w.to_push[bucket] = false;
    if (!w.to_push[1]) w.at = At::kWaits;
    const absl::Status may = machines_[bucket]->MayPush(worker, w.step);
    ASSERT_TRUE(may.ok()) << may;
    towards_[bucket].push_back(worker);
    Act(bucket, machines_[bucket]->OnPush(worker, w.step));
  }
  void Lose(int worker, bool in_mid_push) {
    --losses_left_;
    const int broken = in_mid_push ? Next(workers_[worker]) : -1;
    workers_[worker] = {.at = At::kLost, .step = workers_[worker].step, .was_lost = true};
    const Verdict verdict = admission_.has_value() ? admission_->OnLost(worker) : Verdict{};
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      if (bucket == broken) Reset(bucket);
      Act(bucket, machines_[bucket]->OnLost(worker));
      Complete(bucket, verdict);
    }
  }
  void Complete(int bucket, const Verdict& verdict) {
    if (verdict.complete == 0) return;
    Act(bucket, Backup(bucket).OnComplete(verdict.version, verdict.complete));
  }
  // The remaining workers whose gradients were in the sum send them again.
  void Reset(int bucket) {
    dynamic_cast<SummedPushes&>(*machines_[bucket]).OnReset();
    for (const int pusher : towards_[bucket]) {
      Worker& w = workers_[pusher];
      if (w.at == At::kLost || w.joins) continue;
      w.to_push[bucket] = true;
      w.at = At::kPushes;
    }
    towards_[bucket].clear();
  }
  void Return(int worker) {
    int64_t step = 0;
    if (admission_.has_value()) {
      const absl::StatusOr<Verdict> verdict = admission_->OnJoin(worker);
      ASSERT_TRUE(verdict.ok()) << verdict.status();
      step = verdict->version;
    }
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      if (admission_.has_value() && machines_[bucket]->JoinsAt(worker) > step) Reset(bucket);
      step = std::max(step, machines_[bucket]->JoinsAt(worker));
    }
    workers_[worker] = {.step = step, .joins = true, .was_lost = true};
    for (int bucket = 0; bucket < kBuckets; ++bucket) Act(bucket, machines_[bucket]->OnJoin(worker, step));
  }

  void Act(int bucket, const Consistency::Decision& decision) {
    ASSERT_TRUE(decision.accept) << decision.reason;
    if (decision.apply_count > 0 || decision.empty_update) Update(bucket, decision.apply_count);
    for (const int reader : decision.may_read) {
      Worker& r = workers_[reader];
      ASSERT_TRUE(r.at == At::kWaits || (r.at == At::kPushes && !r.to_push[bucket]))
          << "an answer for worker " << reader << ", which does not wait for one";
      r.replies |= 1 << bucket;
      if (r.replies + 1 != 1 << kBuckets) continue;
      const bool begins = r.joins;
      r.replies = 0;
      r.joins = false;
      if (rule_.each_alone()) {
        ContinueWith(reader, begins ? r.step : r.step + 1);
        continue;
      }
      // All buckets have the same version, which is the next step.
      ASSERT_EQ(machines_[0]->version(), machines_[1]->version());
      ASSERT_TRUE(!begins || r.step == machines_[0]->version()) << r.step;
      ContinueWith(reader, machines_[0]->version());
    }
  }
  void Update(int bucket, int count) {
    std::vector<int>& pushers = towards_[bucket];
    EXPECT_EQ(count, static_cast<int>(pushers.size()));
    std::ranges::sort(pushers);
    EXPECT_EQ(std::ranges::adjacent_find(pushers), pushers.end()) << "a push counts twice";
    // A complete push of a worker that was lost later counts in its bucket only; others count in all buckets.
    std::erase_if(pushers, [this](int pusher) { return workers_[pusher].was_lost; });
    if (admission_.has_value()) {
      const int needed = job_.workers() - rule_.number;
      EXPECT_LE(static_cast<int>(pushers.size()), needed);
      if (job_.losses == 0) {  // exactly N - B, or all that remain
        const auto remaining =
            std::ranges::count_if(workers_, [](const Worker& w) { return w.at != At::kGone; });
        EXPECT_GE(count, std::min<int64_t>(needed, remaining));
      }
    }
    if (!rule_.each_alone()) {
      std::vector<int>& known = made_of_.emplace(machines_[bucket]->version(), pushers).first->second;
      // Workers that were lost between the updates of the two buckets.
      std::erase_if(known, [this](int pusher) { return workers_[pusher].was_lost; });
      EXPECT_EQ(known, pushers) << "of version " << machines_[bucket]->version();
    }
    pushers.clear();
  }
  void ContinueWith(int worker, int64_t step) {
    Worker& w = workers_[worker];
    w.step = step;
    if (step < job_.steps[worker]) {
      w.at = At::kAnnounces;
      if (!admission_.has_value()) SendAll(w);
      return;
    }
    w.at = At::kGone;
    Verdict verdict;
    if (admission_.has_value()) {
      const absl::StatusOr<Verdict> left = admission_->OnLeave(worker);
      ASSERT_TRUE(left.ok()) << left.status();
      verdict = *left;
    }
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      Act(bucket, machines_[bucket]->OnLeave(worker));
      Complete(bucket, verdict);
    }
  }

  const Job& job_;
  const WaitingRule rule_;
  std::optional<Admission> admission_;
  std::vector<std::unique_ptr<Consistency>> machines_;
  std::vector<Worker> workers_;
  std::vector<std::vector<int>> towards_;        // workers whose pushes are complete, by bucket
  std::map<int64_t, std::vector<int>> made_of_;  // by version: its workers that were never lost
  int losses_left_;
  int64_t dropped_ = 0;  // announcements
};

class Losses : public testing::TestWithParam<std::string> {};

TEST_P(Losses, InAnyOrderTheOthersContinueAndLostWorkersCanReturn) {
  int states = 0;
  for (const Job& job : {Job{GetParam(), {3}}, Job{GetParam(), {3, 3}, 2}, Job{GetParam(), {3, 1}, 2},
                         Job{GetParam(), {2, 2, 2}, 2}, Job{GetParam(), {3, 2, 1}},
                         Job{GetParam(), {3, 3}, 0}, Job{GetParam(), {1, 3}, 0}, Job{GetParam(), {0, 2}, 0},
                         Job{GetParam(), {2, 2, 2}, 0}, Job{GetParam(), {1, 1, 0}, 0}}) {
    if (!ParseWaitingRule(job.rule, job.workers()).ok()) continue;  // too many spare workers
    SCOPED_TRACE(job.name());
    states += ForEveryState<World>([&] { return std::make_unique<World>(job); });
  }
  std::printf("%d states\n", states);
  EXPECT_GT(states, 1000);
}

INSTANTIATE_TEST_SUITE_P(Rules, Losses,
                         testing::Values("sync", "async", "ssp:1", "ssp:2", "backup:0", "backup:1",
                                         "backup:2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, ':');
                           return name;
                         });

}  // namespace
}  // namespace psring
