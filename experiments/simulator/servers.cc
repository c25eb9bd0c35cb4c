#include "experiments/simulator/servers.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "experiments/simulator/fluid_network.h"
#include "experiments/simulator/random.h"
#include "ps_server/consistency/admission.h"
#include "ps_server/consistency/consistency.h"

namespace psring {
namespace {

// Like nodes: so many workers, of which so many are slow, and so many servers.
struct NodeKind {
  int workers = 0, slow = 0, servers = 0;
  auto operator<=>(const NodeKind&) const = default;
};

// Servers beside workers stand as far apart as they can: server s beside worker floor(s N / S).
std::vector<NodeKind> Nodes(const ServerRun& run, const Shape& shape) {
  std::vector<NodeKind> nodes(static_cast<size_t>(shape.nodes), NodeKind{.workers = shape.ranks_per_node});
  for (int worker = 0; worker < run.slow_workers; ++worker)
    ++nodes[static_cast<size_t>(worker / shape.ranks_per_node)].slow;
  switch (run.place) {
    case ServerPlace::kRank0:
      nodes.front().servers = run.servers;
      break;
    case ServerPlace::kColocated:
      for (int64_t server = 0; server < run.servers; ++server) {
        ++nodes[static_cast<size_t>(server * run.workers / run.servers / shape.ranks_per_node)].servers;
      }
      break;
    case ServerPlace::kDedicated:
      nodes.insert(nodes.end(), static_cast<size_t>(run.servers), NodeKind{.servers = 1});
      break;
  }
  return nodes;
}

enum class What { kReady, kComputed, kAnnounced, kAdmitted, kArrived, kNormKnown, kServed, kAnswered };

struct Event {
  double time;
  What what;
  int group, bucket;
  bool operator>(const Event& other) const {
    return std::tie(time, what, group, bucket) > std::tie(other.time, other.what, other.group, other.bucket);
  }
};

// What goes one after the other, in one direction between a group and the servers.
struct Lane {
  int kind = 0;
  bool busy = false;
  std::deque<int> waiting;  // buckets
};

struct WorkerGroup {
  double weight = 1;                  // of the workers like it, of which it is a sample
  int first_worker = 0, workers = 1;  // numbers first_worker to first_worker + workers - 1
  bool slow = false;
  Lane push, pull;
  int64_t step = 0, next_step = 0;
  bool dropped = false;           // this step's gradient
  int pushed = 0, answered = 0;   // buckets of this step
  std::vector<int> answers_held;  // serial: buckets that may be pulled once all is pushed
  bool computed = false;
  double began = 0, computed_at = 0, computing = 0;
  double waited = 0;               // bounded staleness
  std::vector<double> own_served;  // by bucket: when its push was an update
  double busy_since = 0, busy = 0;
  int64_t finished = 0;
  int under_way = 0;                 // buckets
  std::vector<double> read_version;  // by bucket: updates that its weights hold
};

class ServerSimulation {
 public:
  ServerSimulation(const ServerRun& run, const Cluster& cluster, const WaitingRule& rule)
      : run_(run), cluster_(cluster), each_alone_(rule.each_alone()), random_(run.seed) {
    if (rule.kind == WaitingRule::Kind::kBackup) admission_.emplace(run.workers, rule.number);
  }

  absl::StatusOr<ServerTime> Run() {
    // Each worker has times of its own, and none may stand for others.
    const bool distinct = admission_ || run_.delays.any();
    one_by_one_ = each_alone_ || distinct || run_.jitter > 0 || run_.exponential || run_.no_groups;
    simulated_workers_ = run_.workers;
    if ((distinct || (one_by_one_ && !each_alone_ && !run_.no_groups)) && run_.workers > kMostInStep) {
      return absl::InvalidArgumentError(
          absl::StrCat(admission_          ? "spare workers"
                       : run_.delays.any() ? "workers that are slowed down one by one"
                                           : "synchronous servers with jitter",
                       " are simulated for up to ", kMostInStep, " workers, not ", run_.workers));
    }
    all_alone_ = distinct;
    MakeGroups();
    for (size_t bucket = 0; bucket < run_.bucket_bytes.size(); ++bucket) {
      PSRING_ASSIGN_OR_RETURN(buckets_.emplace_back(), MakeConsistency(run_.consistency, simulated_workers_));
    }
    versions_.assign(run_.bucket_bytes.size(), 0);
    to_answer_.resize(run_.bucket_bytes.size());
    warmup_ = run_.steps > 0 ? run_.warmup_steps : one_by_one_ ? 8 : 1;
    steps_ = run_.steps > 0 ? run_.steps : one_by_one_ ? 24 : 2;
    for (size_t g = 0; g < groups_.size(); ++g) {
      // Workers that do not wait for one another have no common beat.
      const double phase = each_alone_ && !run_.align_steps
                               ? (static_cast<double>(g) + 0.5) / static_cast<double>(groups_.size())
                               : 0;
      BeginStep(static_cast<int>(g), phase * (run_.forward_s + run_.backward_s));
    }
    Loop();
    return Result();
  }

 private:
  void MakeGroups() {
    const Shape shape = ShapeOf(cluster_, run_.workers);
    const std::vector<NodeKind> nodes = Nodes(run_, shape);
    std::map<NodeKind, int> count;
    for (const NodeKind& node : nodes) ++count[node];

    const double card = cluster_.link_bytes_per_s * cluster_.fraction;
    const double cards = card * cluster_.cards_per_node;
    const double intra =
        cluster_.intra_bytes_per_s > 0 ? cluster_.intra_bytes_per_s : FluidNetwork::kUnlimited;
    fabric_ =
        network_.AddResource(cluster_.oversubscription > 1 ? cards * shape.nodes / cluster_.oversubscription
                                                           : FluidNetwork::kUnlimited);
    const double add = cluster_.server_add_s_per_byte;
    processor_ =
        network_.AddResource(add > 0 && !each_alone_ ? run_.servers / add : FluidNetwork::kUnlimited);
    // The cards of all nodes of a kind, for what workers and servers on them send and receive.
    struct Ports {
      int out, in;
    };
    std::map<NodeKind, Ports> ports;
    const auto burst = [&](int nodes_alike) {
      const double bytes = cluster_.burst_bytes * cluster_.cards_per_node * nodes_alike;
      return FluidNetwork::Burst{bytes, bytes, FullSpeed(cluster_) * cluster_.cards_per_node * nodes_alike};
    };
    for (const auto& [kind, of_kind] : count) {
      const double all = cards * of_kind;
      ports[kind] = {network_.AddResource(all, burst(of_kind)), network_.AddResource(all, burst(of_kind))};
      if (kind.servers > 0) server_ports_.insert(server_ports_.end(), {ports[kind].out, ports[kind].in});
      if (kind.workers > 0) worker_ports_.insert(worker_ports_.end(), {ports[kind].out, ports[kind].in});
    }
    const auto add_group = [&](const NodeKind& kind, int workers, bool slow, double weight, Ports node,
                               double own_intra) {
      WorkerGroup& group = groups_.emplace_back();
      group.first_worker =
          groups_.size() > 1 ? groups_[groups_.size() - 2].first_worker + groups_[groups_.size() - 2].workers
                             : 0;
      group.workers = workers;
      group.weight = weight;
      group.slow = slow;
      group.read_version.assign(run_.bucket_bytes.size(), 0);
      group.own_served.assign(run_.bucket_bytes.size(), 0);
      const double w = workers, all = w * weight, s = run_.servers;
      const double here = kind.servers / s;  // of every bucket, on the worker's own node
      using Uses = std::vector<FluidNetwork::Use>;
      Uses push, pull;
      const auto use = [](Uses& uses, int resource, double load) {
        if (load > 1e-12) uses.push_back({resource, load});
      };
      const int local = network_.AddResource(own_intra);
      use(push, local, w * here);
      use(pull, local, w * here);
      use(push, node.out, w * (1 - here));
      use(pull, node.in, w * (1 - here));
      use(push, fabric_, all * (1 - here));
      use(pull, fabric_, all * (1 - here));
      use(push, processor_, all);
      for (const auto& [other, of_kind] : count) {
        const double away = other.servers * (of_kind - (other == kind ? 1 : 0)) / s;
        // The port of a kind carries what its workers send and what its servers receive.
        use(push, ports[other].in, all * away);
        use(pull, ports[other].out, all * away);
        if (other == kind) {
          use(push, ports[kind].out, all * (1 - here));
          use(pull, ports[kind].in, all * (1 - here));
        }
      }
      // One worker fills at most one card.
      const double fastest = cluster_.burst_bytes > 0 ? FullSpeed(cluster_) : card;
      const double most = here < 1 ? fastest / (1 - here) : FluidNetwork::kUnlimited;
      group.push.kind = network_.AddKind(std::move(push), most);
      group.pull.kind = network_.AddKind(std::move(pull), most);
    };
    if (!one_by_one_) {
      for (const auto& [kind, of_kind] : count) {
        for (const bool slow : {false, true}) {
          const int workers = of_kind * (slow ? kind.slow : kind.workers - kind.slow);
          const Ports node = {network_.AddResource(FluidNetwork::kUnlimited),
                              network_.AddResource(FluidNetwork::kUnlimited)};
          if (workers > 0) add_group(kind, workers, slow, 1, node, intra * workers);
        }
      }
      return;
    }
    if (all_alone_) {
      // In the order of their numbers, by which they are slow and drawn for.
      for (const NodeKind& kind : nodes) {
        const Ports node = {network_.AddResource(cards, burst(1)), network_.AddResource(cards, burst(1))};
        for (int place = 0; place < kind.workers; ++place) {
          add_group(kind, 1, place < kind.slow, 1, node, intra);
        }
      }
      return;
    }
    // A sample of each kind of node, one at least.
    const double part = std::min(1.0, static_cast<double>(run_.most_alone) / run_.workers);
    simulated_workers_ = 0;
    for (const auto& [kind, of_kind] : count) {
      if (kind.workers == 0) continue;
      const int taken = each_alone_ ? std::max(1, static_cast<int>(of_kind * part)) : of_kind;
      for (int i = 0; i < taken; ++i) {
        const Ports node = {network_.AddResource(cards, burst(1)), network_.AddResource(cards, burst(1))};
        for (int place = 0; place < kind.workers; ++place) {
          add_group(kind, 1, place < kind.slow, static_cast<double>(of_kind) / taken, node, intra);
        }
      }
      simulated_workers_ += taken * kind.workers;
    }
  }

  void Loop() {
    std::vector<int64_t> ended;
    while (!done_) {
      const double next =
          std::min(network_.NextEnd(), events_.empty() ? FluidNetwork::kUnlimited : events_.top().time);
      PSRING_CHECK(!std::isinf(next));  // a Consistency that answers nobody
      ended.clear();
      network_.AdvanceTo(next, ended);
      for (const int64_t token : ended) Moved(token);
      while (!events_.empty() && events_.top().time <= next && !done_) {
        const Event event = events_.top();
        events_.pop();
        Handle(event);
      }
    }
  }

  double now() const { return network_.now(); }

  void BeginStep(int g, double at) {
    WorkerGroup& group = groups_[static_cast<size_t>(g)];
    group.step = group.next_step;
    group.next_step = group.step + 1;
    group.pushed = group.answered = 0;
    group.computed = group.dropped = false;
    group.waited = 0;
    group.began = at;
    double factor = (group.slow ? run_.slowness : 1) * run_.delays.SlownessOf(group.first_worker);
    if (run_.jitter > 0) factor *= random_.LogNormal(run_.jitter);
    if (run_.exponential) factor *= random_.Exponential(1);
    const double late = run_.delays.JitterSeconds(group.first_worker, group.step);
    group.computing = late + factor * (run_.forward_s + run_.backward_s);
    group.computed_at = at + group.computing;
    at += late;
    for (size_t b = 0; b < run_.bucket_bytes.size() && !admission_; ++b) {
      Add(at + factor * (run_.forward_s + run_.ready_s[b]), What::kReady, g, static_cast<int>(b));
    }
    Add(group.computed_at, What::kComputed, g, 0);
  }

  void Add(double time, What what, int g, int bucket) { events_.push({time, what, g, bucket}); }

  void Handle(const Event& event) {
    WorkerGroup& group = groups_[static_cast<size_t>(event.group)];
    switch (event.what) {
      case What::kReady:
        return Push(event.group, event.bucket);
      case What::kComputed:
        group.computed = true;
        last_computed_[group.step] = now();  // times only grow
        if (admission_) return Add(now() + cluster_.latency_s, What::kAnnounced, event.group, 0);
        return EndStepOnceComplete(event.group);
      case What::kAnnounced:
        return Announced(event.group);
      case What::kAdmitted:
        for (size_t b = 0; b < run_.bucket_bytes.size(); ++b) Push(event.group, static_cast<int>(b));
        return;
      case What::kNormKnown:
        for (size_t b = 0; b < run_.bucket_bytes.size(); ++b) Update(static_cast<int>(b));
        return;
      case What::kArrived:
        if (each_alone_) return Serve(event.group, event.bucket);
        return Pushed(event.group, event.bucket);
      case What::kServed:
        return Served(event.group, event.bucket);
      case What::kAnswered:
        if (!group.dropped && --group.under_way == 0) group.busy += now() - group.busy_since;
        ++group.answered;
        return EndStepOnceComplete(event.group);
    }
  }

  void Push(int g, int bucket) {
    WorkerGroup& group = groups_[static_cast<size_t>(g)];
    if (group.under_way++ == 0) group.busy_since = now();
    Enqueue(g, bucket, /*push=*/true);
  }

  // Lanes
  // -------------------------------------------------------------------------------------------------------------------

  int64_t Token(int g, int bucket, bool push) const {
    return (int64_t{g} * static_cast<int64_t>(run_.bucket_bytes.size()) + bucket) * 2 + (push ? 0 : 1);
  }

  void Enqueue(int g, int bucket, bool push) {
    WorkerGroup& group = groups_[static_cast<size_t>(g)];
    Lane& lane = push ? group.push : group.pull;
    lane.waiting.push_back(bucket);
    StartNext(g, push);
  }

  void StartNext(int g, bool push) {
    WorkerGroup& group = groups_[static_cast<size_t>(g)];
    Lane& lane = push ? group.push : group.pull;
    if (lane.busy || lane.waiting.empty()) return;
    lane.busy = true;
    const int bucket = lane.waiting.front();
    const double part = push ? run_.pushed_part : 1;
    network_.Start(lane.kind, part * run_.bucket_bytes[static_cast<size_t>(bucket)], Token(g, bucket, push));
  }

  void Moved(int64_t token) {
    const bool push = token % 2 == 0;
    const int buckets = static_cast<int>(run_.bucket_bytes.size());
    const int bucket = static_cast<int>(token / 2 % buckets), g = static_cast<int>(token / 2 / buckets);
    WorkerGroup& group = groups_[static_cast<size_t>(g)];
    Lane& lane = push ? group.push : group.pull;
    lane.waiting.pop_front();
    lane.busy = false;
    Add(now() + cluster_.latency_s, push ? What::kArrived : What::kAnswered, g, bucket);
    if (push && ++group.pushed == buckets) {
      for (const int held : group.answers_held) Enqueue(g, held, /*push=*/false);
      group.answers_held.clear();
    }
    StartNext(g, push);
  }

  // Server
  // ------------------------------------------------------------------------------------------------------------------

  // The processor takes one job after the other; each of S servers has an S-th of it.
  double Job(double seconds_per_byte, int bucket, double pushes) {
    double seconds =
        pushes * seconds_per_byte * run_.bucket_bytes[static_cast<size_t>(bucket)] / run_.servers;
    if (run_.exponential) seconds = random_.Exponential(seconds);
    processor_free_ = std::max(processor_free_, now()) + seconds;
    processor_busy_ += seconds;
    return processor_free_;
  }

  void Serve(int g, int bucket) {
    Add(Job(cluster_.server_add_s_per_byte + cluster_.server_update_s_per_byte, bucket,
            groups_[static_cast<size_t>(g)].weight),
        What::kServed, g, bucket);
  }

  // Each push alone: its update is made.
  void Served(int g, int bucket) {
    if (!each_alone_) {
      const std::vector<int> readers = std::move(to_answer_[static_cast<size_t>(bucket)].front());
      to_answer_[static_cast<size_t>(bucket)].pop_front();
      return Answer(readers, bucket);
    }
    WorkerGroup& group = groups_[static_cast<size_t>(g)];
    Consistency& consistency = *buckets_[static_cast<size_t>(bucket)];
    const Consistency::Decision decision = consistency.OnPush(group.first_worker, group.step);
    PSRING_CHECK(decision.accept);
    // It stands for `weight` pushes, one after the other.
    double& version = versions_[static_cast<size_t>(bucket)];
    version += group.weight;
    if (measuring()) {
      const double staleness = version - 1 - group.read_version[static_cast<size_t>(bucket)];
      staleness_sum_ += group.weight * staleness;
      staleness_max_ = std::max(staleness_max_, staleness);
      pushes_ += group.weight;
    }
    group.own_served[static_cast<size_t>(bucket)] = now();
    for (const int worker : decision.may_read) {
      WorkerGroup& reader = groups_[static_cast<size_t>(worker)];
      reader.read_version[static_cast<size_t>(bucket)] = version;
      reader.waited = std::max(reader.waited, now() - reader.own_served[static_cast<size_t>(bucket)]);
      Reply(worker, bucket);
    }
  }

  // Synchronous: the last push makes the update.
  void Pushed(int g, int bucket) {
    const WorkerGroup& group = groups_[static_cast<size_t>(g)];
    for (int i = 0; i < group.workers; ++i) {
      Act(buckets_[static_cast<size_t>(bucket)]->OnPush(group.first_worker + i, group.step), bucket);
    }
  }

  void Act(const Consistency::Decision& decision, int bucket) {
    PSRING_CHECK(decision.accept);
    if (decision.apply_count == 0) return Answer(decision.may_read, bucket);
    to_answer_[static_cast<size_t>(bucket)].push_back(decision.may_read);
    if (!run_.clips) return Update(bucket);
    // One more pass over the sum, for its squares; the servers tell each other their parts by way of a
    // worker.
    const double reduced = Job(cluster_.server_add_s_per_byte, bucket, 1);
    if (++reduced_ < run_.bucket_bytes.size()) return;
    reduced_ = 0;
    Add(reduced + (run_.servers > 1 ? 2 * cluster_.latency_s : 0), What::kNormKnown, 0, 0);
  }

  void Update(int bucket) {
    Add(Job(cluster_.server_update_s_per_byte, bucket, 1), What::kServed, 0, bucket);
  }

  // All buckets hear of each verdict before the next is made.
  void Announced(int g) {
    WorkerGroup& group = groups_[static_cast<size_t>(g)];
    const absl::StatusOr<Verdict> verdict = admission_->OnAnnounce(group.first_worker, group.step);
    PSRING_CHECK(verdict.ok());
    if (verdict->complete > 0) complete_at_[verdict->version] = now();
    if (verdict->admitted) {
      Add(now() + cluster_.latency_s, What::kAdmitted, g, 0);
    } else {
      group.dropped = true;
      group.next_step = verdict->version;
    }
    for (size_t b = 0; b < buckets_.size(); ++b) Act(buckets_[b]->OnVerdict(*verdict), static_cast<int>(b));
  }

  // Workers in step have one group each, or all of them the same one.
  void Answer(const std::vector<int>& readers, int bucket) {
    if (one_by_one_) {
      for (const int worker : readers) Reply(worker, bucket);
    } else if (!readers.empty()) {
      PSRING_CHECK(static_cast<int>(readers.size()) == simulated_workers_);
      for (size_t g = 0; g < groups_.size(); ++g) Reply(static_cast<int>(g), bucket);
    }
  }

  void Reply(int g, int bucket) {
    WorkerGroup& group = groups_[static_cast<size_t>(g)];
    const bool all_pushed = group.pushed == static_cast<int>(run_.bucket_bytes.size());
    if (!run_.pipelined && !all_pushed && !group.dropped) {
      group.answers_held.push_back(bucket);
    } else {
      Enqueue(g, bucket, /*push=*/false);
    }
  }

  // Steps
  // -------------------------------------------------------------------------------------------------------------------

  bool measuring() const { return measuring_; }

  // The average worker has taken so many steps, and the slowest two of them. Where some are very much faster
  // than others (on the servers' own host), the slowest hardly count, and are not waited for without end.
  bool Reached(int64_t steps) const {
    if (finished_ < steps * simulated_workers_) return false;
    constexpr int64_t kMost = 20;
    return fewest_ >= std::min<int64_t>(steps, 2) || finished_ >= kMost * steps * simulated_workers_;
  }

  void EndStepOnceComplete(int g) {
    WorkerGroup& group = groups_[static_cast<size_t>(g)];
    if (!group.computed || group.answered < static_cast<int>(run_.bucket_bytes.size())) return;
    if (measuring_) {
      const double all = group.workers * group.weight;
      computing_ += all * group.computing;
      stepping_ += all * (now() - group.began);
      busy_ += all * group.busy;
      waiting_ += all * Waited(group);
      counted_ += all;
      if (group.dropped) dropped_ += all;
      last_ = now();
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
      began_ = last_ = now();
      finished_ = 0;
      for (WorkerGroup& other : groups_) other.finished = 0;
    } else if (measuring_ && Reached(steps_)) {
      done_ = true;
    }
    if (!run_.align_steps) return BeginStep(g, now());
    for (size_t other = 0; other < groups_.size(); ++other) BeginStep(static_cast<int>(other), now());
  }

  double Waited(const WorkerGroup& group) {
    if (each_alone_) return group.waited;
    if (group.dropped) return 0;
    const double until = admission_ ? complete_at_[group.step] : last_computed_[group.step];
    return std::max(0.0, until - group.computed_at);
  }

  ServerTime Result() const {
    ServerTime time{.simulated = static_cast<int>(groups_.size())};
    const double seconds = last_ - began_;
    time.worker_steps_per_s = (counted_ - dropped_) / seconds;
    time.dropped_share = dropped_ / counted_;
    time.step_s = run_.align_steps ? stepping_ / counted_ : run_.workers * seconds / counted_;
    time.compute_s = computing_ / counted_;
    time.exposed_s = std::max(0.0, time.step_s - time.compute_s);
    time.busy_s = busy_ / counted_;
    time.wait_s = waiting_ / counted_;
    if (pushes_ > 0 && fewest_ >= std::min<int64_t>(steps_, 2)) {
      time.staleness_mean = staleness_sum_ / pushes_;
      time.staleness_max = staleness_max_;
    }
    const auto part = [&](const std::vector<int>& resources) {
      double most = 0;
      for (const int resource : resources) most = std::max(most, network_.BusySeconds(resource) / now());
      return most;
    };
    const auto cards = [&](const std::vector<int>& ports) {
      // Serial: first one direction, then the other. They stand in pairs.
      if (run_.pipelined) return part(ports);
      double most = 0;
      for (size_t i = 0; i + 1 < ports.size(); i += 2)
        most = std::max(most, part({ports[i]}) + part({ports[i + 1]}));
      return most;
    };
    time.server_card = cards(server_ports_);
    time.worker_card = cards(worker_ports_);
    time.fabric = part({fabric_});
    time.server_processor = processor_busy_ / now() + part({processor_});
    return time;
  }

  const ServerRun& run_;
  const Cluster& cluster_;
  const bool each_alone_;
  std::optional<Admission> admission_;           // spare workers
  bool one_by_one_ = false, all_alone_ = false;  // all_alone_: one by one, and no sample of them
  int simulated_workers_ = 0;
  int64_t warmup_ = 0, steps_ = 0;
  Random random_;
  FluidNetwork network_;
  int fabric_ = 0, processor_ = 0;
  std::vector<int> server_ports_, worker_ports_;
  std::vector<WorkerGroup> groups_;
  std::vector<std::unique_ptr<Consistency>> buckets_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double processor_free_ = 0, processor_busy_ = 0;
  bool measuring_ = false, done_ = false;
  int64_t finished_ = 0, fewest_ = 0;  // steps since warmup or measuring began: of all, of the slowest
  double began_ = 0, last_ = 0, computing_ = 0, stepping_ = 0, busy_ = 0, waiting_ = 0, counted_ = 0;
  size_t at_barrier_ = 0;                    // align_steps: groups
  std::map<int64_t, double> last_computed_;  // by step: when the last worker so far had computed
  double staleness_sum_ = 0, staleness_max_ = 0;
  double pushes_ = 0;
  std::vector<double> versions_;                         // by bucket: updates
  std::vector<std::deque<std::vector<int>>> to_answer_;  // by bucket and update that is being made: readers
  size_t reduced_ = 0;                                   // clips: buckets of the step
  std::map<int64_t, double> complete_at_;                // spare workers, by step
  double dropped_ = 0;
};

}  // namespace

absl::StatusOr<ServerTime> SimulateServers(const ServerRun& run, const Cluster& cluster) {
  PSRING_CHECK(run.bucket_bytes.size() == run.ready_s.size() && !run.bucket_bytes.empty());
  PSRING_ASSIGN_OR_RETURN(const WaitingRule rule, ParseWaitingRule(run.consistency, run.workers));
  if (run.clips && rule.each_alone()) {
    return absl::InvalidArgumentError(
        "a gradient can be clipped by its norm only where all workers' make one update");
  }
  PSRING_CHECK(static_cast<int>(run.delays.slowness.size()) <= run.workers);
  if (run.servers < 1)
    return absl::InvalidArgumentError(absl::StrCat(run.servers, " servers; it takes at least 1"));
  if (run.place == ServerPlace::kColocated && run.servers > run.workers) {
    return absl::InvalidArgumentError(
        absl::StrCat(run.servers, " servers cannot stand beside ", run.workers, " workers, one beside each"));
  }
  if (run.slow_workers > run.workers) {
    return absl::InvalidArgumentError(
        absl::StrCat(run.slow_workers, " of ", run.workers, " workers cannot be slow"));
  }
  return ServerSimulation(run, cluster, rule).Run();
}

}  // namespace psring
