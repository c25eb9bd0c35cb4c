#include "experiments/simulator/servers.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "experiments/simulator/event_loop.h"
#include "experiments/simulator/server_figures.h"
#include "experiments/simulator/server_layout.h"
#include "ps_server/consistency/admission.h"
#include "ps_server/consistency/consistency.h"

namespace psring {
namespace {

// An event of a bucket of a group, or of the whole group (bucket 0).
enum class EventKind { kReady, kComputed, kAnnounced, kAdmitted, kArrived, kNormKnown, kServed, kAnswered };

struct Event {
  double time;
  EventKind kind;
  size_t group, bucket;
  bool operator>(const Event& other) const {
    return std::tie(time, kind, group, bucket) > std::tie(other.time, other.kind, other.group, other.bucket);
  }
};

// One direction between a group and the servers: one bucket at a time.
struct Lane {
  bool busy = false;
  std::deque<size_t> waiting;  // buckets
};

// A worker's weights of one bucket, if each push is an update by itself.
struct Reading {
  double version = 0;  // updates in them
  bool held = true;    // not yet followed by a push of their gradient
  double pushed = 0;   // when that push was an update
};

// Workers that act alike, and their current step.
struct WorkerGroup : GroupLayout {
  Lane push, pull;
  int64_t step = 0, next_step = 0;
  bool dropped = false;              // this step's gradient
  size_t arrived = 0, answered = 0;  // buckets of this step: pushes at the servers, weights at the worker
  std::vector<size_t> answers_held;  // serial: buckets to pull when the step allows it
  bool computed = false;
  double began = 0, computed_at = 0, computing = 0;
  double waited = 0;  // bounded staleness
  double busy_since = 0, busy = 0;
  double usable_at = 0;  // when the last arrived weights are usable
  int64_t finished = 0;
  int under_way = 0;              // buckets pushed but not yet answered
  std::vector<Reading> readings;  // by bucket
};

class ServerSimulation {
 public:
  ServerSimulation(const ServerRun& run, const Cluster& cluster, const WaitingRule& rule)
      : run_(run), cluster_(cluster), each_alone_(rule.each_alone()), random_(run.seed) {
    if (rule.kind == WaitingRule::Kind::kBackup) admission_.emplace(run.workers, rule.number);
  }

  absl::StatusOr<ServerTime> Run() {
    // Each worker has its own delays or verdicts, so it cannot represent others.
    const bool distinct = admission_ || run_.delays.any();
    one_by_one_ = each_alone_ || distinct || run_.jitter > 0 || run_.variation.any() || run_.exponential ||
                  run_.no_groups;
    if ((distinct || (one_by_one_ && !each_alone_ && !run_.no_groups)) && run_.workers > kMaxInStep) {
      return absl::InvalidArgumentError(
          absl::StrCat(admission_          ? "spare workers"
                       : run_.delays.any() ? "workers that are slowed down one by one"
                                           : "synchronous servers with jitter",
                       " are simulated for up to ", kMaxInStep, " workers, not ", run_.workers));
    }
    layout_ = LayOutServers(run_, cluster_,
                            distinct      ? Simulated::kEach
                            : one_by_one_ ? Simulated::kSample
                                          : Simulated::kGroups,
                            each_alone_, loop_.network());
    for (const GroupLayout& of_group : layout_.groups) {
      groups_.emplace_back(WorkerGroup{of_group}).readings.resize(run_.bucket_bytes.size());
    }
    for (const double bytes : run_.bucket_bytes) {
      Bucket& bucket = buckets_.emplace_back(Bucket{.bytes = bytes});
      PSRING_ASSIGN_OR_RETURN(bucket.consistency,
                              MakeConsistency(run_.consistency, layout_.simulated_workers));
    }
    warmup_ = run_.steps > 0 ? run_.warmup_steps : one_by_one_ ? 8 : 1;
    steps_ = run_.steps > 0 ? run_.steps : one_by_one_ ? 24 : 2;
    for (size_t g = 0; g < groups_.size(); ++g) {
      // Workers that do not wait for one another start at different times.
      const double phase = each_alone_ && !run_.align_steps ? (g + 0.5) / groups_.size() : 0;
      BeginStep(g, phase * (run_.forward_s + run_.backward_s));
    }
    Loop();
    return figures_.Result(run_, layout_, loop_.network(), processor_busy_,
                           /*staleness_known=*/fewest_ >= std::min<int64_t>(steps_, 2));
  }

 private:
  void Loop() {
    while (!done_) {
      const bool any = loop_.Advance([&](int64_t token) { Moved(static_cast<size_t>(token)); },
                                     [&](const Event& event) {
                                       if (!done_) Handle(event);
                                     });
      PSRING_CHECK(any);  // otherwise a Consistency never answers
    }
  }

  double now() const { return loop_.now(); }

  void BeginStep(size_t g, double at) {
    WorkerGroup& group = groups_[g];
    group.step = group.next_step;
    group.next_step = group.step + 1;
    group.arrived = group.answered = 0;
    group.computed = group.dropped = false;
    group.waited = 0;
    group.began = at;
    double factor = (group.slow ? run_.slowness : 1) * run_.delays.SlownessOf(group.first_worker);
    if (run_.jitter > 0) factor *= random_.LogNormal(run_.jitter);
    if (run_.variation.any()) factor *= random_.Varied(run_.variation);
    if (run_.exponential) factor *= random_.Exponential(1);
    const double late = run_.delays.JitterSeconds(group.first_worker, group.step);
    group.computing = late + factor * (run_.forward_s + run_.backward_s);
    group.computed_at = at + group.computing;
    at += late;
    for (size_t b = 0; b < buckets_.size() && !admission_; ++b) {
      Add(at + factor * (run_.forward_s + run_.ready_s[b]), EventKind::kReady, g, b);
    }
    Add(group.computed_at, EventKind::kComputed, g, 0);
  }

  void Add(double time, EventKind kind, size_t g, size_t bucket) { loop_.Add({time, kind, g, bucket}); }

  void Handle(const Event& event) {
    WorkerGroup& group = groups_[event.group];
    switch (event.kind) {
      case EventKind::kReady:
        return Push(event.group, event.bucket);
      case EventKind::kComputed:
        group.computed = true;
        last_computed_[group.step] = now();  // times only grow
        if (admission_) return Add(now() + cluster_.latency_s, EventKind::kAnnounced, event.group, 0);
        return EndStepOnceComplete(event.group);
      case EventKind::kAnnounced:
        return Announced(event.group);
      case EventKind::kAdmitted:
        for (size_t b = 0; b < buckets_.size(); ++b) Push(event.group, b);
        return;
      case EventKind::kNormKnown:
        for (size_t b = 0; b < buckets_.size(); ++b) Update(b);
        return;
      case EventKind::kArrived:
        ++group.arrived;
        if (!each_alone_) return Pushed(event.group, event.bucket);
        ReleaseAnswers(event.group);
        return Add(Job(cluster_.server_add_s_per_byte + cluster_.server_update_s_per_byte, event.bucket,
                       group.weight),
                   EventKind::kServed, event.group, event.bucket);
      case EventKind::kServed:
        return Served(event.group, event.bucket);
      case EventKind::kAnswered:
        if (!group.dropped && --group.under_way == 0) group.busy += now() - group.busy_since;
        ++group.answered;
        return EndStepOnceComplete(event.group);
    }
  }

  void Push(size_t g, size_t bucket) {
    WorkerGroup& group = groups_[g];
    if (group.under_way++ == 0) group.busy_since = now();
    Enqueue(g, bucket, /*push=*/true);
  }

  void Enqueue(size_t g, size_t bucket, bool push) {
    (push ? groups_[g].push : groups_[g].pull).waiting.push_back(bucket);
    StartNext(g, push);
  }

  void StartNext(size_t g, bool push) {
    WorkerGroup& group = groups_[g];
    Lane& lane = push ? group.push : group.pull;
    if (lane.busy || lane.waiting.empty()) return;
    lane.busy = true;
    const size_t bucket = lane.waiting.front();
    const double part = push ? run_.pushed_part : 1;
    const size_t token = (g * buckets_.size() + bucket) * 2 + (push ? 0 : 1);
    loop_.network().Start(push ? group.push_kind : group.pull_kind, part * buckets_[bucket].bytes, token);
  }

  void Moved(size_t token) {
    const bool push = token % 2 == 0;
    const size_t g = token / 2 / buckets_.size();
    WorkerGroup& group = groups_[g];
    Lane& lane = push ? group.push : group.pull;
    const size_t bucket = lane.waiting.front();
    lane.waiting.pop_front();
    lane.busy = false;
    double at = now() + cluster_.latency_s;
    if (!push && !run_.after_pull_s.empty()) {
      // One bucket after another.
      at = std::max(at, group.usable_at) + run_.after_pull_s[bucket];
      group.usable_at = at;
    }
    Add(at, push ? EventKind::kArrived : EventKind::kAnswered, g, bucket);
    StartNext(g, push);
  }

  // The processor takes one job after another; each of the S servers does 1/S of it.
  double Job(double seconds_per_byte, size_t bucket, double pushes) {
    double seconds = pushes * seconds_per_byte * buckets_[bucket].bytes / run_.servers;
    if (run_.exponential) seconds = random_.Exponential(seconds);
    processor_free_ = std::max(processor_free_, now()) + seconds;
    processor_busy_ += seconds;
    return processor_free_;
  }

  // The update of a push, or of a whole step, is done.
  void Served(size_t g, size_t b) {
    Bucket& bucket = buckets_[b];
    if (!each_alone_) {
      const std::vector<int> readers = std::move(bucket.to_answer.front());
      bucket.to_answer.pop_front();
      return Answer(readers, b);
    }
    WorkerGroup& group = groups_[g];
    const Consistency::Decision decision = bucket.consistency->OnPush(group.first_worker, group.step);
    PSRING_CHECK(decision.accept);
    // It represents `weight` pushes, one after another.
    bucket.version += group.weight;
    Reading& own = group.readings[b];
    if (measuring_) figures_.AddPush(group.weight, bucket.version - 1 - own.version);
    own.pushed = now();
    own.held = false;
    for (const int worker : decision.may_read) {
      WorkerGroup& reader = groups_[worker];
      Reading& reading = reader.readings[b];
      reading.version = bucket.version;
      reading.held = true;
      reader.waited = std::max(reader.waited, now() - reading.pushed);
      Reply(worker, b);
    }
  }

  // Synchronous: the last push triggers the update.
  void Pushed(size_t g, size_t bucket) {
    const WorkerGroup& group = groups_[g];
    for (int i = 0; i < group.workers; ++i) {
      Act(buckets_[bucket].consistency->OnPush(group.first_worker + i, group.step), bucket);
    }
  }

  void Act(const Consistency::Decision& decision, size_t bucket) {
    PSRING_CHECK(decision.accept);
    if (decision.apply_count == 0) return Answer(decision.may_read, bucket);
    buckets_[bucket].to_answer.push_back(decision.may_read);
    if (!run_.clips) return Update(bucket);
    // One more pass over the sum to add its squares; servers exchange their partial norms through a worker.
    const double reduced = Job(cluster_.server_add_s_per_byte, bucket, 1);
    if (++reduced_ < buckets_.size()) return;
    reduced_ = 0;
    Add(reduced + (run_.servers > 1 ? 2 * cluster_.latency_s : 0), EventKind::kNormKnown, 0, 0);
  }

  void Update(size_t bucket) {
    Add(Job(cluster_.server_update_s_per_byte, bucket, 1), EventKind::kServed, 0, bucket);
  }

  // Each verdict reaches all buckets before the next one is made.
  void Announced(size_t g) {
    WorkerGroup& group = groups_[g];
    const absl::StatusOr<Verdict> verdict = admission_->OnAnnounce(group.first_worker, group.step);
    PSRING_CHECK(verdict.ok());
    if (verdict->complete > 0) complete_at_[verdict->version] = now();
    if (verdict->admitted) {
      Add(now() + cluster_.latency_s, EventKind::kAdmitted, g, 0);
    } else {
      group.dropped = true;
      group.next_step = verdict->version;
    }
    for (size_t b = 0; b < buckets_.size(); ++b) {
      Act(dynamic_cast<BackupBucket&>(*buckets_[b].consistency).OnVerdict(*verdict), b);
    }
  }

  // Synchronous workers have one group each, or all share one.
  void Answer(const std::vector<int>& readers, size_t bucket) {
    if (one_by_one_) {
      for (const int worker : readers) Reply(worker, bucket);
    } else if (!readers.empty()) {
      PSRING_CHECK(readers.size() == layout_.simulated_workers);
      for (size_t g = 0; g < groups_.size(); ++g) Reply(g, bucket);
    }
  }

  void Reply(size_t g, size_t bucket) {
    WorkerGroup& group = groups_[g];
    if (run_.pipelined || group.dropped) return Enqueue(g, bucket, /*push=*/false);
    group.answers_held.push_back(bucket);
    ReleaseAnswers(g);
  }

  // Serial: after all buckets of the step are updated; if each push is an update by itself, after the
  // worker's own gradients of all buckets have arrived.
  void ReleaseAnswers(size_t g) {
    WorkerGroup& group = groups_[g];
    const size_t complete = each_alone_ ? group.arrived : group.answers_held.size();
    if (complete < buckets_.size()) return;
    for (const size_t bucket : group.answers_held) Enqueue(g, bucket, /*push=*/false);
    group.answers_held.clear();
  }

  // True after `steps` steps per worker on average, and two of the slowest. If some workers (on the servers'
  // host) are much faster, the slowest have little influence, so the wait for them is bounded.
  bool Reached(int64_t steps) const {
    if (finished_ < steps * layout_.simulated_workers) return false;
    constexpr int64_t kMax = 20;
    return fewest_ >= std::min<int64_t>(steps, 2) || finished_ >= kMax * steps * layout_.simulated_workers;
  }

  void EndStepOnceComplete(size_t g) {
    WorkerGroup& group = groups_[g];
    if (!group.computed || group.answered < buckets_.size()) return;
    if (measuring_) {
      figures_.AddStep({.workers = group.workers * group.weight,
                        .computing = group.computing,
                        .stepping = now() - group.began,
                        .busy = group.busy,
                        .waiting = Waited(group),
                        .dropped = group.dropped,
                        .group = g},
                       now());
    }
    group.busy = 0;
    last_computed_.erase(last_computed_.begin(), last_computed_.lower_bound(group.step - 1));
    ++group.finished;
    finished_ += group.workers;
    fewest_ = INT64_MAX;
    for (const WorkerGroup& other : groups_) fewest_ = std::min(fewest_, other.finished);
    if (run_.align_steps && ++at_barrier_ < groups_.size()) return;
    at_barrier_ = 0;
    if (!measuring_ && Reached(warmup_)) {
      measuring_ = true;
      figures_.Begin(now());
      CountReadings(/*begins=*/true);
      finished_ = 0;
      for (WorkerGroup& other : groups_) other.finished = 0;
    } else if (measuring_ && Reached(steps_)) {
      CountReadings(/*begins=*/false);
      done_ = true;
    }
    if (!run_.align_steps) return BeginStep(g, now());
    for (size_t other = 0; other < groups_.size(); ++other) BeginStep(other, now());
  }

  void CountReadings(bool begins) {
    for (const WorkerGroup& group : groups_) {
      for (size_t b = 0; b < buckets_.size(); ++b) {
        const Reading& reading = group.readings[b];
        if (reading.held) {
          figures_.AddReading(group.weight, buckets_[b].version - reading.version, begins);
        }
      }
    }
  }

  double Waited(const WorkerGroup& group) {
    if (each_alone_) return group.waited;
    if (group.dropped) return 0;
    const double until = admission_ ? complete_at_[group.step] : last_computed_[group.step];
    return std::max(0.0, until - group.computed_at);
  }

  struct Bucket {
    double bytes;
    std::unique_ptr<Consistency> consistency = nullptr;
    double version = 0;                           // updates, if each push is one by itself
    std::deque<std::vector<int>> to_answer = {};  // by update in progress: readers
  };

  const ServerRun& run_;
  const Cluster& cluster_;
  const bool each_alone_;
  std::optional<Admission> admission_;  // spare workers
  bool one_by_one_ = false;             // every group is one worker
  ServerLayout layout_;
  int64_t warmup_ = 0, steps_ = 0;
  RandomDurations random_;
  EventLoop<Event> loop_;
  std::vector<WorkerGroup> groups_;
  std::vector<Bucket> buckets_;
  double processor_free_ = 0, processor_busy_ = 0;
  bool measuring_ = false, done_ = false;
  // Steps since warm-up or measuring began: of all workers, of the slowest.
  int64_t finished_ = 0, fewest_ = 0;
  ServerFigures figures_;
  size_t at_barrier_ = 0;                    // align_steps: groups
  std::map<int64_t, double> last_computed_;  // by step: when the last worker so far finished computing
  size_t reduced_ = 0;                       // clips: buckets of the step that are reduced
  std::map<int64_t, double> complete_at_;    // spare workers, by step
};

}  // namespace

absl::StatusOr<ServerTime> SimulateServers(const ServerRun& run, const Cluster& cluster) {
  PSRING_CHECK(run.bucket_bytes.size() == run.ready_s.size() && !run.bucket_bytes.empty());
  PSRING_ASSIGN_OR_RETURN(const WaitingRule rule, ParseWaitingRule(run.consistency, run.workers));
  PSRING_RETURN_IF_ERROR(CheckServers(run, rule));
  return ServerSimulation(run, cluster, rule).Run();
}

}  // namespace psring
