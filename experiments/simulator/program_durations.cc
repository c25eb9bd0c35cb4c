#include "experiments/simulator/program_durations.h"

#include <algorithm>
#include <cmath>

namespace psring {

int HalvesOf(const StrategyRow& strategy, StepKind kind) {
  if (kind == StepKind::kReduceGradient) return strategy.shards_updates ? 1 : 2;
  if (kind == StepKind::kUnshard) return 1;
  return kind == StepKind::kUpdate && strategy.shards_updates && !strategy.shards_weights ? 1 : 0;
}

ProgramDurations::ProgramDurations(const StepProgram& program, ProgramCosts costs, const Cluster& cluster)
    : program_(program),
      costs_(std::move(costs)),
      cluster_(cluster),
      shape_(ShapeOf(cluster, program.ranks * costs_.replicas)),
      stage_shape_(ShapeOf(cluster, costs_.replicas)),
      together_(std::min(costs_.replicas, shape_.ranks_per_node)),
      links_(cluster, shape_.nodes, loop_.network()) {
  for (int rank = 0; rank < program.ranks; ++rank) {
    cards_.push_back(rank > 0 && SameNode(rank - 1, rank) ? cards_.back() : links_.AddCards());
    intra_.push_back(links_.AddIntra());
  }
}

bool ProgramDurations::SameNode(int rank, int other) const {
  const auto node = [&](int of) { return int64_t{of} * costs_.replicas / shape_.ranks_per_node; };
  return node(rank) == node(other);
}

double ProgramDurations::SecondsOf(const StepAction& action) const {
  switch (action.kind) {
    case StepKind::kForward:
    case StepKind::kRecompute:
      return CostOf(action).forward_s;
    case StepKind::kBackward:
      return CostOf(action).backward_s;
    case StepKind::kBackwardInput:
    case StepKind::kBackwardWeight:
      return CostOf(action).backward_s / 2;
    case StepKind::kUpdate:
      return CostOf(action).gradient_bytes * cluster_.worker_update_s_per_byte /
             (costs_.strategy.shards_updates ? costs_.replicas : 1);
    default:
      return 0;
  }
}

int ProgramDurations::ReceiverOf(int rank, int node) const {
  const StepAction& action = program_.actions[rank][node];
  return program_.rank_of[action.stage + (action.kind == StepKind::kSendActivation ? 1 : -1)];
}

size_t ProgramDurations::MessageKind(int from, int to) {
  const auto [at, fresh] = messages_.emplace(std::pair(from, to), 0);
  if (!fresh) return at->second;
  FluidNetwork& network = loop_.network();
  at->second = SameNode(from, to) ? network.AddKind({{intra_[from].out, 1}, {intra_[to].in, 1}})
                                  : network.AddKind({{cards_[from].out, together_},
                                                     {cards_[to].in, together_},
                                                     {links_.fabric(), double(costs_.replicas)}},
                                                    links_.FlowRate());
  return at->second;
}

bool ProgramDurations::StartExchange(int rank, CollectiveTime time, int halves, int64_t token) {
  for (double CollectiveTime::*const part : {&CollectiveTime::seconds, &CollectiveTime::card_busy_s,
                                             &CollectiveTime::intra_busy_s, &CollectiveTime::fabric_busy_s}) {
    time.*part *= halves / 2.;
  }
  // The bytes that the collective carries over each link in one direction.
  const double cards = time.card_busy_s * links_.CardsRate();
  const double intra = time.intra_busy_s > 0 ? time.intra_busy_s * links_.IntraRate() : 0;
  const double fabric =
      time.fabric_busy_s > 0 ? time.fabric_busy_s * links_.FabricRate(stage_shape_.nodes) : 0;
  const double own = std::max(cards / together_, intra);  // of one device
  if (own <= 0 || time.seconds <= 0) return false;
  std::vector<FluidNetwork::Use> uses;
  for (const auto& [resource, bytes] : {std::pair(cards_[rank].out, cards),
                                        {cards_[rank].in, cards},
                                        {intra_[rank].out, intra},
                                        {intra_[rank].in, intra},
                                        {links_.fabric(), fabric}}) {
    if (bytes > 0) uses.push_back({resource, bytes / own});
  }
  // Without other flows it takes the time of the collective.
  const size_t kind = loop_.network().AddKind(std::move(uses), own / time.seconds);
  loop_.network().Start(kind, own, token);
  return true;
}

void ProgramDurations::Start(int rank, int node, const StepAction& action, int64_t /*now_ns*/) {
  const int64_t token = (int64_t{rank} << 32) | node;
  if (LaneOf(action.kind) == StepLane::kMessages) {
    return loop_.network().Start(MessageKind(rank, ReceiverOf(rank, node)), costs_.boundary_bytes, token);
  }
  double seconds = SecondsOf(action);
  if (const int halves = HalvesOf(costs_.strategy, action.kind); halves > 0) {
    const bool of_gradient = action.kind == StepKind::kReduceGradient;
    const CollectiveTime& time = of_gradient ? CostOf(action).reduction : CostOf(action).of_weights;
    if (StartExchange(rank, time, halves, token)) return;
    seconds += halves / 2. * time.seconds;
  }
  loop_.Add({loop_.now() + seconds, rank, node});
}

std::optional<std::pair<int, int>> ProgramDurations::NextEnd(int64_t& now_ns) {
  while (ended_.empty()) {
    const bool any = loop_.Advance(
        [&](int64_t token) {
          const int rank = static_cast<int>(token >> 32), node = static_cast<int>(token & 0xffffffff);
          const StepAction& action = program_.actions[rank][node];
          if (action.kind == StepKind::kUpdate) {  // which it precedes here
            loop_.Add({loop_.now() + SecondsOf(action), rank, node});
            return;
          }
          if (LaneOf(action.kind) != StepLane::kMessages) {
            ended_.emplace_back(rank, node);
            return;
          }
          const double latency =
              SameNode(rank, ReceiverOf(rank, node)) ? cluster_.intra_latency_s : cluster_.latency_s;
          loop_.Add({loop_.now() + latency, rank, node});
        },
        [&](const NodeEnd& end) { ended_.emplace_back(end.rank, end.node); });
    if (!any) return std::nullopt;
  }
  const std::pair<int, int> end = ended_.front();
  ended_.pop_front();
  now_ns = std::llround(1e9 * loop_.now());
  return end;
}

}  // namespace psring
