#include "experiments/layouts/layout_price.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "experiments/costs/sequence_costs.h"
#include "experiments/simulator/pipeline.h"
#include "experiments/simulator/program_durations.h"
#include "trainer/programs/lower_program.h"
#include "trainer/programs/walk_program.h"

namespace psring {
namespace {

// Consecutive layers of a stage, whose gradients are a bucket. Of a rank and a micro-batch.
struct UnitPrice {
  double forward_s = 0, backward_s = 0;  // computation
  TensorHalves halves = {};
  // For tensor-parallel ranks, and in attention for those that divide sequences. What the gradients of
  // weights hide is not in backward_wait_s.
  double forward_wait_s = 0, backward_wait_s = 0, hidden_by_weights_s = 0;
  // Beside halves.
  LinkBytes forward_sent = {}, backward_sent = {};
  double parameters = 0;
};

// What a candidate's actions take and send.
class Prices {
 public:
  Prices(const LayoutQuestion& question, const LayoutCandidate& candidate, const LayoutStages& stages)
      : candidate_(candidate),
        kind_(candidate.kind()),
        bytes_(question.model.bytes()),
        activation_bytes_(question.model.BoundaryBytes(candidate.samples) / candidate.cp),
        message_bytes_(question.model.OwnBoundaryBytes(candidate.samples, candidate.tp) / candidate.cp),
        per_node_(ShapeOf(question.cluster, question.workers).ranks_per_node),
        tensor_(AxisLinks::Of(question.cluster, question.workers, 1, candidate.tp)),
        sequence_(AxisLinks::Of(question.cluster, question.workers, candidate.tp, candidate.cp)),
        split_(candidate.split()),
        replicas_(AxisLinks::Of(question.cluster, question.workers, candidate.tp, split_.ranks)),
        copies_(
            AxisLinks::Of(question.cluster, question.workers, candidate.tp * split_.ranks, split_.copies)),
        pipeline_(AxisLinks::Of(question.cluster, question.workers, candidate.tp * candidate.replicas(),
                                candidate.pp)) {
    const double samples = candidate.samples, share = samples / (candidate.tp * candidate.cp);
    units_of_.resize(candidate.stages());
    for (int stage = 0; stage < candidate.stages(); ++stage) {
      const int first = stages.first_layer[stage], end = stages.first_layer[stage + 1];
      const int each = LayersPerUnit(end - first);
      for (int layer = first; layer < end; ++layer) {
        if ((layer - first) % each == 0) units_of_[stage].emplace_back();
        UnitPrice& unit = units_of_[stage].back();
        const ModelLayer& of = question.model.layers[layer];
        // All wait in each step of the ring for the rank with the most pairs.
        const double slower =
            kind_.is_balanced ? 1 : 1 + of.attention * (1 / ContiguousShare(candidate.cp) - 1);
        unit.forward_s += slower * share * of.forward_s + samples / candidate.cp * of.whole_forward_s;
        unit.backward_s += slower * share * of.backward_s + samples / candidate.cp * of.whole_backward_s;
        AddAttention(question.model, of, share, unit);
        AddSums(question.model, of, share, unit);
        unit.parameters += of.Parameters(candidate.tp);
      }
    }
  }

  const std::vector<UnitPrice>& UnitsOf(int stage) const { return units_of_[stage]; }

  double Seconds(int rank, const StepAction& action) const {
    switch (action.kind) {
      case StepKind::kForward:
        return UnitOf(action).forward_s + WithinSeconds(action);
      case StepKind::kBackward:
        return UnitOf(action).backward_s + WithinSeconds(action);
      case StepKind::kBackwardInput:
      case StepKind::kBackwardWeight:
        return UnitOf(action).backward_s / 2 + WithinSeconds(action);
      case StepKind::kSendActivation:
      case StepKind::kSendGradient:
        return pipeline_.MessageSeconds(message_bytes_, Crosses(rank, action.kind));
      default:
        return HalvesOf(action) * replicas_.HalfSeconds(ReplicaBytes(action)) + CopiesSeconds(action);
    }
  }

  double CopiesSeconds(const StepAction& action) const {
    const double bytes = CopiedBytes(action);
    return bytes > 0 ? 2 * copies_.HalfSeconds(bytes) : 0;
  }

  // The part of a computation in which tensor-parallel ranks add or gather, or those of a sequence wait.
  double WithinSeconds(const StepAction& action) const {
    switch (action.kind) {
      case StepKind::kForward:
        return UnitOf(action).forward_wait_s;
      case StepKind::kBackward:
        return UnitOf(action).backward_wait_s;
      case StepKind::kBackwardInput:  // the gradients of weights are computed later
        return UnitOf(action).backward_wait_s + UnitOf(action).hidden_by_weights_s;
      default:
        return 0;
    }
  }

  LinkBytes Sent(int rank, const StepAction& action) const {
    LinkBytes sent;
    if (LaneOf(action.kind) == StepLane::kMessages) {
      if (action.kind != StepKind::kSendActivation && action.kind != StepKind::kSendGradient) return sent;
      return pipeline_.MessageBytes(message_bytes_, Crosses(rank, action.kind));
    }
    sent.Add(tensor_.HalfBytes(activation_bytes_), TensorHalvesIn(action));
    if (action.kind == StepKind::kForward) sent.Add(UnitOf(action).forward_sent);
    if (GivesInput(action.kind)) sent.Add(UnitOf(action).backward_sent);
    sent.Add(copies_.HalfBytes(CopiedBytes(action)), 2);
    return sent.Add(replicas_.HalfBytes(ReplicaBytes(action)), HalvesOf(action));
  }

 private:
  // Gradients that are reduced once need few buckets to overlap with backward.
  int LayersPerUnit(int layers) const {
    constexpr int kFewMicroBatches = 8, kMaxUnits = 4;
    if (candidate_.strategy->shards_gradients || candidate_.micro_batches <= kFewMicroBatches) return 1;
    return (layers + kMaxUnits - 1) / kMaxUnits;
  }

  // What tensor-parallel ranks add up and gather for a layer. `share`: of a sample's computing that is a
  // rank's. With sequence parallelism the inputs of matrices are gathered while the inputs' gradients are
  // computed. The loss needs of a token the highest of the logits, and then three sums (VocabularyLoss).
  void AddSums(const LayoutModel& model, const ModelLayer& layer, double share, UnitPrice& unit) const {
    if (candidate_.tp == 1) return;
    const TensorHalves halves =
        TensorHalvesOf(layer.forward_sums, layer.backward_sums, model.sequence_parallel);
    unit.halves.forward += halves.forward;
    unit.halves.backward += halves.backward;
    const double half_s = tensor_.HalfSeconds(activation_bytes_);
    double beside_inputs_s = 0, beside_weights_s = 0;
    for (const double part : model.overlaps_sums ? layer.weight_parts : std::vector<double>()) {
      const double computing_s = share * layer.backward_s * part;
      if (model.sequence_parallel) beside_inputs_s += std::min(computing_s, half_s);
      beside_weights_s += std::min(computing_s, (model.sequence_parallel ? 1 : 2) * half_s);
    }
    unit.forward_wait_s += halves.forward * half_s;
    unit.backward_wait_s += halves.backward * half_s - beside_inputs_s - beside_weights_s;
    unit.hidden_by_weights_s += beside_weights_s;
    for (const double values : layer.logits > 0 ? std::vector<double>{1, 3} : std::vector<double>()) {
      const double bytes = sizeof(float) * values * candidate_.samples * model.tokens / candidate_.cp;
      unit.forward_wait_s += 2 * tensor_.HalfSeconds(bytes);
      unit.forward_sent.Add(tensor_.HalfBytes(bytes), 2);
    }
  }

  // What the attention of a layer exchanges between the ranks that divide sequences.
  void AddAttention(const LayoutModel& model, const ModelLayer& layer, double share, UnitPrice& unit) const {
    const int ranks = candidate_.cp;
    if (ranks == 1 || layer.keys == 0) return;
    const double values = candidate_.samples * model.tokens / ranks * model.width / candidate_.tp;
    const double bytes = model.value_bytes() * values;  // of the queries of a rank
    if (!kind_.uses_ring) {
      for (const double exchanged : {(1 + layer.keys) * bytes, bytes}) {  // and of the outputs
        for (double* const wait : {&unit.forward_wait_s, &unit.backward_wait_s})
          *wait += sequence_.AllToAllSeconds(exchanged);
        for (LinkBytes* const sent : {&unit.forward_sent, &unit.backward_sent})
          sent->Add(sequence_.AllToAllBytes(exchanged));
      }
      return;
    }
    // Each of the ranks' keys passes all others, as in an all-gather; in backward, so do their gradients.
    const double keys = ranks * layer.keys * bytes;
    const auto steps = [&](double layer_s) -> RingSteps {
      const double first = share * layer.attention * layer_s / ranks;
      return {.ranks = ranks,
              .first_s = first,
              .block_s = kind_.is_balanced ? first : 2 * first,
              .hop_s = sequence_.HalfSeconds(keys) / (ranks - 1)};
    };
    unit.forward_wait_s += RingForwardWait(steps(layer.forward_s));
    unit.backward_wait_s += RingBackwardWait(steps(layer.backward_s));
    unit.forward_sent.Add(sequence_.HalfBytes(keys));
    unit.backward_sent.Add(sequence_.HalfBytes(keys), 2);
  }

  const UnitPrice& UnitOf(const StepAction& action) const { return units_of_[action.stage][action.unit]; }

  // Whether a computation has the gradient of a unit's input.
  static bool GivesInput(StepKind kind) {
    return kind == StepKind::kBackward || kind == StepKind::kBackwardInput;
  }

  int TensorHalvesIn(const StepAction& action) const {
    if (action.kind == StepKind::kForward) return UnitOf(action).halves.forward;
    return GivesInput(action.kind) ? UnitOf(action).halves.backward : 0;
  }

  int HalvesOf(const StepAction& action) const { return psring::HalvesOf(*candidate_.strategy, action.kind); }
  double ReplicaBytes(const StepAction& action) const {
    if (HalvesOf(action) == 0) return 0;
    return (action.kind == StepKind::kReduceGradient ? bytes_.gradient : bytes_.weight) *
           UnitOf(action).parameters;
  }

  // Of the shard of a gradient that is added up over the copies of the state before its update.
  double CopiedBytes(const StepAction& action) const {
    if (split_.copies == 1 || action.kind != StepKind::kUpdate) return 0;
    return bytes_.gradient * UnitOf(action).parameters / split_.ranks;
  }

  // Whether a message goes to another node.
  bool Crosses(int rank, StepKind kind) const {
    const int step = kind == StepKind::kSendActivation ? 1 : candidate_.pp - 1;
    const int64_t stride = int64_t{candidate_.tp} * candidate_.replicas();
    const auto node = [&](int of) { return of * stride / per_node_; };
    return stride >= per_node_ || node(rank) != node((rank + step) % candidate_.pp);
  }

  const LayoutCandidate& candidate_;
  const ContextParallelRow& kind_;
  const AdamBytes bytes_;
  const double activation_bytes_, message_bytes_;
  const int per_node_;
  const AxisLinks tensor_, sequence_;
  const ShardSplit split_;
  const AxisLinks replicas_, copies_;  // of one copy of sharded state; of its copies
  const AxisLinks pipeline_;
  std::vector<std::vector<UnitPrice>> units_of_;  // by stage
};

// The exchanges of a rank with its replicas share its links: one follows the other.
class PricedDurations : public GivenDurations {
 public:
  PricedDurations(const Prices& prices, int ranks)
      : GivenDurations([this](int rank, const StepAction& action) { return NsOf(rank, action); }),
        prices_(prices),
        free_ns_(ranks, 0) {}

  void Start(int rank, int node, const StepAction& action, int64_t now_ns) override {
    now_ns_ = now_ns;
    GivenDurations::Start(rank, node, action, now_ns);
  }

 private:
  int64_t NsOf(int rank, const StepAction& action) {
    const int64_t ns = std::llround(1e9 * prices_.Seconds(rank, action));
    const StepLane lane = LaneOf(action.kind);
    if (ns == 0 || (lane != StepLane::kGather && lane != StepLane::kReduce)) return ns;
    free_ns_[rank] = std::max(free_ns_[rank], now_ns_) + ns;
    return free_ns_[rank] - now_ns_;
  }

  const Prices& prices_;
  std::vector<int64_t> free_ns_;  // by rank: the end of its last exchange
  int64_t now_ns_ = 0;
};

// Whether a unit's weights are gathered once per step, because another unit of the rank uses them, too.
bool KeepsUnit(const LayoutModel& model, const LayoutCandidate& candidate, int stage, int unit) {
  return model.is_tied && candidate.pp == 1 && stage == 0 && unit == 0;
}

}  // namespace

LayoutQuestion Assuming(LayoutQuestion question, const Cluster& cluster, double slowest) {
  for (ModelLayer& layer : question.model.layers) {
    for (double ModelLayer::*const seconds : {&ModelLayer::forward_s, &ModelLayer::backward_s,
                                              &ModelLayer::whole_forward_s, &ModelLayer::whole_backward_s}) {
      layer.*seconds *= slowest;
    }
  }
  question.cluster = cluster;
  return question;
}

std::string LayoutCandidate::layout() const {
  std::string text = Layout{.dp = dp, .pp = pp, .tp = tp, .cp = cp}.name();
  if (cp > 1 && &kind() != &kDefaultContextParallel) absl::StrAppend(&text, " ", context_parallel);
  if (!strategy->shards_updates) return text;
  return absl::StrCat(text, " ", strategy->name,
                      split().copies > 1 ? absl::StrCat(" of ", split().ranks) : "");
}

absl::StatusOr<LayoutStages> StagesOf(const LayoutModel& model, const LayoutCandidate& candidate) {
  const int layers = static_cast<int>(model.layers.size()), count = candidate.stages();
  if (count > layers) {
    return absl::InvalidArgumentError(absl::StrCat(count, " stages of ", layers, " blocks of layers"));
  }
  std::vector<LayerBlock> blocks;
  for (const ModelLayer& layer : model.layers) {
    blocks.push_back({.forward_ms = 1e3 * layer.forward_s, .backward_ms = 1e3 * layer.backward_s});
  }
  LayoutStages stages{.first_layer = BalancedCuts(blocks, count), .live = std::vector<int>(count, 0)};
  stages.first_layer.insert(stages.first_layer.begin(), 0);
  stages.first_layer.push_back(layers);
  PSRING_ASSIGN_OR_RETURN(const StepProgram program,
                          MakeStepProgram(candidate.program, candidate.pp, candidate.micro_batches));
  for (const std::vector<StepAction>& actions : program.actions) {
    std::vector<int> live(count, 0);
    int now = 0, most = 0;
    for (const StepAction& action : actions) {
      const bool ends = action.kind == StepKind::kBackward || action.kind == StepKind::kBackwardWeight;
      const int change = action.kind == StepKind::kForward ? 1 : ends ? -1 : 0;
      live[action.stage] += change;
      now += change;
      if (now <= most) continue;
      most = now;
      for (int stage = 0; stage < count; ++stage) {
        if (program.rank_of[stage] == program.rank_of[action.stage]) stages.live[stage] = live[stage];
      }
    }
  }
  return stages;
}

LayoutMemory MemoryOf(const LayoutModel& model, const LayoutCandidate& candidate,
                      const LayoutStages& stages) {
  LayoutMemory most;
  for (int rank = 0; rank < candidate.pp; ++rank) {
    double parameters = 0, largest = 0;
    int units = 0;
    LayoutMemory memory;
    for (int stage = rank; stage < candidate.stages(); stage += candidate.pp) {
      for (int at = stages.first_layer[stage]; at < stages.first_layer[stage + 1]; ++at, ++units) {
        const double own = model.layers[at].Parameters(candidate.tp);
        parameters += own;
        largest = std::max(largest, own);
        memory.activations +=
            stages.live[stage] * model.KeptBytes(model.layers[at], candidate.samples, candidate.tp);
      }
    }
    // An activation and a gradient are received while others are in use.
    if (candidate.pp > 1) memory.activations += 2 * model.OwnBoundaryBytes(candidate.samples, candidate.tp);
    // Of a rank's tokens; and what attention exchanges, which all layers use in turn.
    memory.activations /= candidate.cp;
    if (candidate.cp > 1) {
      const double activation = model.BoundaryBytes(candidate.samples) / candidate.cp / candidate.tp;
      memory.activations += candidate.kind().ExchangedParts(candidate.cp) * activation;
    }
    // Of all tokens: the trainer has two pieces of memory, for gathered rows and for sums, and its
    // reduce-scatter a third one (TensorAxis::Reserve).
    if (candidate.tp > 1 && model.sequence_parallel) {
      memory.activations += 3 * model.BoundaryBytes(candidate.samples);
    }
    memory.state = ShardedStateOf(*candidate.strategy, candidate.split().ranks, parameters, model.bytes(),
                                  largest, std::min(2, units));
    if (memory.total() > most.total()) most = memory;
  }
  return most;
}

double LeastSeconds(const LayoutQuestion& question, const LayoutCandidate& candidate,
                    const LayoutStages& stages) {
  const Prices prices(question, candidate, stages);
  const double rounds = candidate.micro_batches;
  const StrategyRow& strategy = *candidate.strategy;
  double least = 0, before = 0;  // before: forward and backward of the stages before a rank's first
  for (int rank = 0; rank < candidate.pp; ++rank) {
    double computing = 0, gathering = 0, largest = 0, reducing = 0, first = 0;
    for (int stage = rank; stage < candidate.stages(); stage += candidate.pp) {
      for (int unit = 0; unit < static_cast<int>(prices.UnitsOf(stage).size()); ++unit) {
        const auto seconds = [&](StepKind kind) {
          return prices.Seconds(rank, {.kind = kind, .stage = stage, .unit = unit});
        };
        const double forward = seconds(StepKind::kForward), backward = seconds(StepKind::kBackward);
        computing += forward + backward;
        if (stage == rank) first += forward + (candidate.program.row.divides_backward ? 0 : backward);
        if (candidate.replicas() == 1) continue;
        reducing += (strategy.shards_gradients ? rounds : 1) * seconds(StepKind::kReduceGradient) +
                    seconds(StepKind::kUpdate);
        if (!strategy.shards_weights) continue;
        if (KeepsUnit(question.model, candidate, stage, unit)) {
          reducing += seconds(StepKind::kUnshard);
          continue;
        }
        gathering += seconds(StepKind::kUnshard);
        largest = std::max(largest, seconds(StepKind::kUnshard));
      }
    }
    // The first and the last unit may stay from one pass to the next.
    least = std::max({least, rounds * computing + before, reducing + 2 * rounds * (gathering - largest)});
    before += first;
  }
  return least;
}

absl::StatusOr<LayoutPrice> PriceOf(const LayoutQuestion& question, const LayoutCandidate& candidate,
                                    const LayoutStages& stages) {
  const Prices prices(question, candidate, stages);
  PSRING_ASSIGN_OR_RETURN(const StepProgram compute,
                          MakeStepProgram(candidate.program, candidate.pp, candidate.micro_batches));
  ModelCut cut;
  for (int stage = 0; stage < candidate.stages(); ++stage) {
    cut.units.push_back(static_cast<int>(prices.UnitsOf(stage).size()));
    cut.bucket_ends.emplace_back(candidate.replicas() > 1 ? cut.units.back() : 0);
    std::iota(cut.bucket_ends.back().rbegin(), cut.bucket_ends.back().rend(), 0);
  }
  if (KeepsUnit(question.model, candidate, 0, 0)) cut.kept = {{0, 0}};
  const LowerOptions options{.reduce_always = candidate.strategy->shards_gradients,
                             .shard_weights = candidate.gathers()};
  PSRING_ASSIGN_OR_RETURN(const StepProgram program, LowerProgram(compute, cut, options));
  PricedDurations durations(prices, candidate.pp);
  PSRING_ASSIGN_OR_RETURN(const Walk walk, WalkProgram(program, &durations));
  LayoutPrice price{.step_s = 1e-9 * static_cast<double>(walk.end_ns)};
  double idle_ns = 0, exposed_ns = 0;
  for (int rank = 0; rank < candidate.pp; ++rank) {
    const DeviceTime time = DeviceTimeOf(walk, rank, *candidate.strategy);
    idle_ns += time.idle / candidate.pp;
    exposed_ns += time.exposed / candidate.pp;
    LinkBytes sent;
    for (const StepAction& action : program.actions[rank]) {
      exposed_ns += 1e9 * prices.WithinSeconds(action) / candidate.pp;
      sent.Add(prices.Sent(rank, action));
    }
    price.sent = {.inside = std::max(price.sent.inside, sent.inside),
                  .between = std::max(price.sent.between, sent.between)};
  }
  if (walk.end_ns > 0) {
    price.bubble = idle_ns / static_cast<double>(walk.end_ns);
    price.exposed = exposed_ns / static_cast<double>(walk.end_ns);
  }
  return price;
}

}  // namespace psring
