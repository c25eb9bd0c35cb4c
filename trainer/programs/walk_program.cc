#include "trainer/programs/walk_program.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "trainer/programs/check_program.h"

namespace psring {

StepLane LaneOf(StepKind kind) {
  switch (kind) {
    case StepKind::kLoad:
      return StepLane::kLoad;
    case StepKind::kForward:
    case StepKind::kBackward:
    case StepKind::kBackwardInput:
    case StepKind::kBackwardWeight:
    case StepKind::kRecompute:
    case StepKind::kReshard:
      return StepLane::kCompute;
    case StepKind::kSendActivation:
    case StepKind::kReceiveActivation:
    case StepKind::kSendGradient:
    case StepKind::kReceiveGradient:
      return StepLane::kMessages;
    case StepKind::kUnshard:
      return StepLane::kGather;
    case StepKind::kReduceGradient:
    case StepKind::kUpdate:
      return StepLane::kReduce;
    case StepKind::kReduceTied:
      return StepLane::kTied;
    case StepKind::kNorm:
      return StepLane::kNorm;
  }
  return StepLane::kCompute;
}

bool Computes(StepKind kind) { return LaneOf(kind) == StepLane::kCompute && kind != StepKind::kReshard; }

namespace {

constexpr int kNone = -1;

// The pass that a message is for, or that gives it, and to which a computation belongs. A pass for weight
// gradients only has no messages.
using PassKey = std::tuple<StepKind, int, int>;
PassKey PassOf(const StepAction& action) {
  switch (action.kind) {
    case StepKind::kForward:
    case StepKind::kSendActivation:
    case StepKind::kReceiveActivation:
      return {StepKind::kForward, action.stage, action.micro_batch};
    case StepKind::kBackwardWeight:
      return {StepKind::kBackwardWeight, action.stage, action.micro_batch};
    default:
      return {StepKind::kBackward, action.stage, action.micro_batch};
  }
}

// By pass: the computation before the one before its first.
std::map<PassKey, int> TwoBeforePasses(const std::vector<StepAction>& actions) {
  std::map<PassKey, int> two_before;
  int last = kNone, before_last = kNone;
  for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
    if (!Computes(actions[i].kind)) continue;
    two_before.try_emplace(PassOf(actions[i]), before_last);
    before_last = std::exchange(last, i);
  }
  return two_before;
}

// Gives the nodes of one rank their lanes and the nodes that they wait for. A message may be far from its
// computation.
std::vector<StepNode> NodesOf(const std::vector<StepAction>& actions, bool one_copy_stream) {
  std::vector<StepNode> nodes;
  nodes.reserve(actions.size());
  // A channel has a lane at each end.
  std::map<std::tuple<StepLane, StepKind, int>, int> lanes = {
      {{StepLane::kCompute, StepKind::kForward, 0}, 0}};
  const std::map<PassKey, int> two_before = TwoBeforePasses(actions);
  std::map<PassKey, int> received, computed;  // the last ones
  int last = kNone, before_last = kNone;      // computations
  int last_reduce = kNone, norm = kNone;
  std::vector<int> needed, ties;                // by the next computation; by the next reduction
  std::map<std::pair<int, int>, int> reshards;  // by stage and unit
  for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
    const StepAction& action = actions[i];
    StepNode node{action};
    const StepLane lane = LaneOf(action.kind);
    const bool is_message = lane == StepLane::kMessages && !one_copy_stream;
    node.lane = lanes
                    .try_emplace({lane, is_message ? action.kind : StepKind::kForward,
                                  is_message || lane == StepLane::kTied ? action.stage : 0},
                                 static_cast<int>(lanes.size()))
                    .first->second;
    const auto wait_for = [&](int before) {
      if (before != kNone) node.after.push_back(before);
    };
    switch (action.kind) {
      case StepKind::kForward:
      case StepKind::kBackward:
      case StepKind::kBackwardInput:
      case StepKind::kBackwardWeight:
      case StepKind::kRecompute:
        node.after.swap(needed);
        if (const auto receive = received.find(PassOf(action)); receive != received.end()) {
          wait_for(receive->second);
          received.erase(receive);
        }
        before_last = std::exchange(last, i);
        computed[PassOf(action)] = i;
        break;
      case StepKind::kReshard:
        reshards[{action.stage, action.unit}] = i;
        break;
      case StepKind::kUnshard:
        if (const auto reshard = reshards.find({action.stage, action.unit}); reshard != reshards.end()) {
          wait_for(reshard->second);
        }
        [[fallthrough]];
      case StepKind::kLoad:
        wait_for(before_last);
        needed.push_back(i);
        break;
      case StepKind::kReceiveActivation:
      case StepKind::kReceiveGradient: {
        const auto pass = two_before.find(PassOf(action));
        wait_for(pass == two_before.end() ? before_last : std::min(pass->second, last));
        received[PassOf(action)] = i;
        break;
      }
      case StepKind::kSendActivation:
      case StepKind::kSendGradient:
        wait_for(computed[PassOf(action)]);
        break;
      case StepKind::kReduceTied:
        wait_for(last);
        if (action.micro_batch >= 0) ties.clear();  // those of earlier updates
        ties.push_back(i);
        break;
      case StepKind::kReduceGradient:
        wait_for(last);
        for (const int tied : ties) {
          if (actions[tied].stage == action.stage) wait_for(tied);
        }
        last_reduce = i;
        break;
      case StepKind::kNorm:
        wait_for(last_reduce);
        norm = i;
        break;
      case StepKind::kUpdate:
        wait_for(norm);
        // Without a flush, the next passes read the weights, and write the gradient.
        if (action.micro_batch >= 0) needed.push_back(i);
        break;
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

// Runs the nodes of all ranks.
class Runner {
 public:
  Runner(const StepProgram& program, Walk& walk) : program_(program), walk_(walk) {
    for (const auto& actions : program.actions) {
      first_.push_back(static_cast<int>(rank_.size()));
      rank_.insert(rank_.end(), actions.size(), static_cast<int>(first_.size()) - 1);
    }
  }

  absl::Status Run(Durations* durations) {
    PSRING_RETURN_IF_ERROR(MatchMessages());
    PSRING_RETURN_IF_ERROR(MatchOthers());
    Connect();
    int64_t now_ns = 0;
    std::vector<int> ready;
    for (int node = 0; node < count(); ++node) {
      if (leader_[node] == node && waits_[node] == 0) ready.push_back(node);
    }
    size_t started = 0;
    while (true) {
      for (; started < ready.size(); ++started) {
        const int node = ready[started];
        for (int member = node; member != kNone; member = next_[member]) TimeOf(member).begin_ns = now_ns;
        if (durations == nullptr) {
          Finish(node, now_ns, ready);
        } else {
          durations->Start(rank_[node], node - first_[rank_[node]], ActionOf(node), now_ns);
        }
      }
      if (durations == nullptr) break;
      const auto ended = durations->NextEnd(now_ns);
      if (!ended) break;
      Finish(first_[ended->first] + ended->second, now_ns, ready);
    }
    walk_.end_ns = now_ns;
    return finished_ == count() ? absl::OkStatus() : CycleError();
  }

 private:
  int count() const { return static_cast<int>(rank_.size()); }
  const StepNode& NodeOf(int node) const { return walk_.nodes[rank_[node]][node - first_[rank_[node]]]; }
  const StepAction& ActionOf(int node) const { return NodeOf(node).action; }
  NodeTime& TimeOf(int node) { return walk_.times[rank_[node]][node - first_[rank_[node]]]; }

  // The k-th send of a channel is the k-th receive.
  absl::Status MatchMessages() {
    leader_.resize(count());
    std::iota(leader_.begin(), leader_.end(), 0);
    next_.assign(count(), kNone);
    // By kind of send and its stage.
    std::map<std::pair<StepKind, int>, std::pair<std::vector<int>, std::vector<int>>> channels;
    for (int node = 0; node < count(); ++node) {
      const auto [kind, stage, unit, micro_batch] = ActionOf(node);
      if (kind == StepKind::kSendActivation || kind == StepKind::kSendGradient) {
        channels[{kind, stage}].first.push_back(node);
      } else if (kind == StepKind::kReceiveActivation) {
        channels[{StepKind::kSendActivation, stage - 1}].second.push_back(node);
      } else if (kind == StepKind::kReceiveGradient) {
        channels[{StepKind::kSendGradient, stage + 1}].second.push_back(node);
      }
    }
    for (const auto& [channel, ends] : channels) {
      const auto& [sends, receives] = ends;
      for (size_t i = 0; i < std::max(sends.size(), receives.size()); ++i) {
        if (i >= receives.size()) return ActionError(rank_[sends[i]], ActionOf(sends[i]), "has no receive");
        if (i >= sends.size()) return ActionError(rank_[receives[i]], ActionOf(receives[i]), "has no send");
        if (ActionOf(sends[i]).micro_batch != ActionOf(receives[i]).micro_batch) {
          return ActionError(rank_[sends[i]], ActionOf(sends[i]),
                             absl::StrCat("meets rank ", rank_[receives[i]], "'s ",
                                          ToText(ActionOf(receives[i])), ": the order differs"));
        }
        Join(sends[i], receives[i]);
      }
    }
    return absl::OkStatus();
  }

  void Join(int leader, int member) {
    leader_[member] = leader;
    next_[member] = std::exchange(next_[leader], member);
  }

  // A norm is one node of all ranks, the sum of a tied tensor, without a flush of each update, of those that
  // have it.
  absl::Status MatchOthers() {
    std::map<std::pair<StepKind, int>, std::vector<int>> together;  // by kind and micro-batch
    for (int node = 0; node < count(); ++node) {
      const StepAction& action = ActionOf(node);
      if (action.kind != StepKind::kNorm && action.kind != StepKind::kReduceTied) continue;
      together[{action.kind, action.micro_batch}].push_back(node);
    }
    for (const auto& [of, nodes] : together) {
      for (size_t i = 1; i < nodes.size(); ++i) Join(nodes[0], nodes[i]);
      if (of.first == StepKind::kReduceTied && nodes.size() == 1) {
        return ActionError(rank_[nodes[0]], ActionOf(nodes[0]), "is on one rank only");
      }
    }
    return absl::OkStatus();
  }

  // Lists for each node the leaders that wait for it.
  void Connect() {
    waits_.assign(count(), 0);
    std::vector<std::pair<int, int>> edges;
    for (int rank = 0; rank < program_.ranks; ++rank) {
      std::vector<int> last_of_lane;
      for (int i = 0; i < static_cast<int>(walk_.nodes[rank].size()); ++i) {
        const StepNode& node = walk_.nodes[rank][i];
        if (node.lane >= static_cast<int>(last_of_lane.size())) last_of_lane.resize(node.lane + 1, kNone);
        const int before = std::exchange(last_of_lane[node.lane], i);
        if (before != kNone) edges.emplace_back(first_[rank] + before, first_[rank] + i);
        for (const int after : node.after) edges.emplace_back(first_[rank] + after, first_[rank] + i);
      }
    }
    first_follower_.assign(count() + 1, 0);
    for (const auto& [from, to] : edges) ++first_follower_[from + 1];
    std::partial_sum(first_follower_.begin(), first_follower_.end(), first_follower_.begin());
    followers_.resize(edges.size());
    std::vector<int> at(first_follower_.begin(), first_follower_.end() - 1);
    for (const auto& [from, to] : edges) {
      followers_[at[from]++] = to;
      ++waits_[leader_[to]];
    }
  }

  void Finish(int leader, int64_t now_ns, std::vector<int>& ready) {
    for (int member = leader; member != kNone; member = next_[member]) {
      TimeOf(member).end_ns = now_ns;
      ++finished_;
      waits_[member] = kNone;
      for (int i = first_follower_[member]; i < first_follower_[member + 1]; ++i) {
        const int follower = leader_[followers_[i]];
        if (--waits_[follower] == 0) ready.push_back(follower);
      }
    }
  }

  // Follows unfinished nodes back until one repeats.
  absl::Status CycleError() const {
    std::map<int, int> waits_for;  // leaders
    for (int node = 0; node < count(); ++node) {
      if (waits_[leader_[node]] == kNone) continue;
      for (int i = first_follower_[node]; i < first_follower_[node + 1]; ++i) {
        waits_for[leader_[followers_[i]]] = leader_[node];
      }
    }
    int node = waits_for.begin()->first;
    for (size_t i = 0; i < waits_for.size(); ++i) node = waits_for.at(node);
    std::string text = "actions wait for each other: ";
    const auto name = [&](int of) { return absl::StrCat("rank ", rank_[of], "'s ", ToText(ActionOf(of))); };
    text += name(node);
    constexpr int kMaxNamed = 6;
    int named = 0;
    for (int at = waits_for.at(node); ++named <= kMaxNamed; at = waits_for.at(at)) {
      absl::StrAppend(&text, " for ", name(at));
      if (at == node) break;
      if (named == kMaxNamed) text += " ...";
    }
    return InvalidArgument("program ", program_.name, ": ", text);
  }

  const StepProgram& program_;
  Walk& walk_;
  // Nodes of all ranks are numbered in the order of ranks.
  std::vector<int> first_, rank_;   // a rank's first node; a node's rank
  std::vector<int> leader_, next_;  // of those that begin together: the first, which counts, and a list
  std::vector<int> waits_;          // by leader: nodes that must finish first; kNone: finished
  std::vector<int> first_follower_, followers_;
  int finished_ = 0;
};

}  // namespace

void GivenDurations::Start(int rank, int node, const StepAction& action, int64_t now_ns) {
  running_.push_back({now_ns + ns_(rank, action), rank, node});
  std::push_heap(running_.begin(), running_.end(), std::greater<>());
}

std::optional<std::pair<int, int>> GivenDurations::NextEnd(int64_t& now_ns) {
  if (running_.empty()) return std::nullopt;
  std::pop_heap(running_.begin(), running_.end(), std::greater<>());
  const Running ended = running_.back();
  running_.pop_back();
  now_ns = ended.end_ns;
  return std::pair(ended.rank, ended.node);
}

double Walk::Bubble() const {
  if (end_ns == 0 || nodes.empty()) return 0;
  double computing_ns = 0;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    for (size_t i = 0; i < nodes[rank].size(); ++i) {
      if (nodes[rank][i].lane != 0) continue;
      computing_ns += static_cast<double>(times[rank][i].end_ns - times[rank][i].begin_ns);
    }
  }
  return 1 - computing_ns / static_cast<double>(nodes.size()) / static_cast<double>(end_ns);
}

absl::StatusOr<Walk> WalkProgram(const StepProgram& program, Durations* durations) {
  Walk walk;
  PSRING_RETURN_IF_ERROR(CheckProgram(program, walk));
  for (const auto& actions : program.actions) {
    walk.nodes.push_back(NodesOf(actions, program.one_copy_stream));
    walk.times.emplace_back(actions.size());
  }
  PSRING_RETURN_IF_ERROR(Runner(program, walk).Run(durations));
  return walk;
}

}  // namespace psring
