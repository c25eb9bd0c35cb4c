#include "experiments/simulator/collective.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "experiments/simulator/fluid_network.h"

namespace psring {
namespace {

// Ranks by class: the schedule's class, the place within the node, and what classes its node is made of.
struct Classes {
  std::vector<int> of;     // by rank
  std::vector<int> first;  // by class: its lowest rank, which stands for it
  std::vector<int> size;   // by class: ranks
  std::vector<int> nodes;  // by class: nodes that hold one
};

Classes Classify(const Schedule& schedule, int ranks_per_node) {
  Classes classes;
  std::map<std::vector<int>, int> node_kinds;
  std::map<std::pair<int, int>, int> numbers;  // (kind of node, place) -> class
  const int ranks = schedule.ranks();
  std::vector<int> node;
  for (int first = 0; first < ranks; first += ranks_per_node) {
    node.clear();
    for (int place = 0; place < ranks_per_node; ++place)
      node.push_back(schedule.symmetry_class(first + place));
    const int kind = node_kinds.emplace(node, static_cast<int>(node_kinds.size())).first->second;
    for (int place = 0; place < ranks_per_node; ++place) {
      const auto [at, fresh] =
          numbers.emplace(std::pair(kind, place), static_cast<int>(classes.first.size()));
      if (fresh) {
        classes.first.push_back(first + place);
        classes.size.push_back(0);
      }
      ++classes.size[static_cast<size_t>(at->second)];
      classes.of.push_back(at->second);
    }
  }
  classes.nodes = classes.size;  // a place of a node is one rank
  return classes;
}

// Messages of one round that are alike: between a rank of this class and ranks of class `peer`, of one
// length.
struct Group {
  int peer;
  bool same_node;
  int chunks;
  int first_peer;  // the lowest of the ranks
  int messages = 0;
  int pair = 0;         // number of (from, to, same_node)
  int connection = -1;  // of a send
  bool adds = false;    // received ones
};
using GroupKey = std::tuple<int, bool, int>;

struct RoundGroups {
  int round;
  std::vector<Group> sends, receives;
};

class Simulation {
 public:
  Simulation(const Schedule& schedule, const Cluster& cluster, double bytes, double tokens)
      : schedule_(schedule),
        cluster_(cluster),
        shape_(ShapeOf(cluster, schedule.ranks())),
        chunk_bytes_(bytes / schedule.chunks()),
        tokens_(tokens),
        classes_(Classify(schedule, shape_.ranks_per_node)) {}

  absl::StatusOr<CollectiveTime> Run(const Pipelining& pipelining) {
    if (schedule_.ranks() == 1) return CollectiveTime{.classes = 1};
    PSRING_RETURN_IF_ERROR(Prepare(pipelining));
    AddResources();
    for (size_t c = 0; c < ranks_.size(); ++c) Continue(static_cast<int>(c));
    std::vector<int64_t> ended;
    while (true) {
      const double next =
          std::min(network_.NextEnd(), timers_.empty() ? FluidNetwork::kUnlimited : timers_.top().time);
      if (std::isinf(next)) break;
      ended.clear();
      network_.AdvanceTo(next, ended);
      touched_.clear();
      for (const int64_t token : ended) SentWhole(static_cast<int>(token));
      while (!timers_.empty() && timers_.top().time <= next) {
        const Timer timer = timers_.top();
        timers_.pop();
        if (timer.op < 0) {
          Received(timer.what);
        } else {
          PartDone(timer.what, timer.op);
        }
      }
      for (const int c : touched_) Continue(c);
    }
    return Result();
  }

 private:
  // A slab's round on one rank.
  struct Op {
    int index = 0;  // into rounds
    int slab = 0;
    int open = 0;  // parts that are not done: sends, receives, adding
    bool done = false;
  };
  struct Rank {
    std::vector<RoundGroups> rounds;  // those with something to do
    int64_t wave = 0;
    int next_round = -1;                            // of the wave, going down
    std::deque<Op> in_flight;                       // in the order started
    int64_t popped = 0;                             // ops that have left in_flight from the front
    std::map<std::pair<int, int>, int64_t> number;  // (slab, index) under way -> number of the op
    double adding_s = 0, adds_until = 0;
    double done_at = 0;  // its last part so far
  };
  // The alike messages of one group, which are under way together.
  struct Message {
    int from = -1, to = -1;                    // classes
    int connection = -1;                       // known once the sender has started the round
    double bytes = 0;                          // of each
    int received = 0;                          // how many a rank receives
    int64_t sender_op = -1, receiver_op = -1;  // -1: that side has not started the round
    bool started = false;
    bool taken = false;    // by the sender's socket
    bool arrived = false;  // and nobody waits for it yet
    bool adds = false;
  };
  struct Timer {
    double time;
    int what;
    int64_t op;  // -1: a message has arrived; else a part of op of rank `what` is done
    bool operator>(const Timer& other) const {
      return std::tie(time, op, what) > std::tie(other.time, other.op, other.what);
    }
  };
  struct Connection {
    int from, to;
    bool same_node;
    int messages;           // alike, to as many peers
    int kind;               // of flow; -1: not known yet
    std::deque<int> queue;  // of messages; the first is under way, or waits for its receiver
    double ahead = 0;       // bytes started that nobody waits for yet
    double unsent = 0;      // bytes queued, of what is under way all
  };
  // What the two ends of a message agree on: pair of classes, length, round, slab.
  using Meeting = std::tuple<int, int, int, int>;

  absl::Status Prepare(const Pipelining& pipelining) {
    const int classes = static_cast<int>(classes_.first.size());
    int64_t transfers = 0;
    for (int c = 0; c < classes; ++c) {
      transfers += schedule_.rounds(classes_.first[static_cast<size_t>(c)]);
      if (transfers > kMostTransfers) {
        return absl::ResourceExhaustedError(absl::StrCat("a ", schedule_.name(), " of ", schedule_.ranks(),
                                                         " ranks is too large to simulate"));
      }
    }
    transfers = 0;
    std::vector<Transfer> list;
    for (int c = 0; c < classes; ++c) {
      Rank& rank = ranks_.emplace_back();
      const int own = classes_.first[static_cast<size_t>(c)];
      for (int round = 0; round < schedule_.rounds(own); ++round) {
        schedule_.Round(own, round, list);
        std::map<GroupKey, Group> sends, receives;
        for (const Transfer& transfer : list) {
          if (transfer.peer == own) continue;  // its own values: nothing moves
          const int peer = classes_.of[static_cast<size_t>(transfer.peer)];
          const bool same = transfer.peer / shape_.ranks_per_node == own / shape_.ranks_per_node;
          const bool send = transfer.action == Action::kSend;
          Group& group = (send ? sends : receives)
                             .try_emplace({peer, same, transfer.chunk_count},
                                          Group{peer, same, transfer.chunk_count, transfer.peer})
                             .first->second;
          ++group.messages;
          group.first_peer = std::min(group.first_peer, transfer.peer);
          group.adds |= transfer.action == Action::kReceiveAdd;
          group.pair = send ? PairOf(c, peer, same) : PairOf(peer, c, same);
        }
        if (sends.empty() && receives.empty()) continue;
        RoundGroups& groups = rank.rounds.emplace_back(RoundGroups{round, {}, {}});
        for (auto& [key, group] : sends) {
          group.connection = ConnectionOf(c, group);
          groups.sends.push_back(group);
        }
        for (auto& [key, group] : receives) groups.receives.push_back(group);
      }
      transfers += static_cast<int64_t>(rank.rounds.size());
    }
    rounds_ = 0;
    for (const Rank& rank : ranks_) {
      if (!rank.rounds.empty()) rounds_ = std::max<int64_t>(rounds_, rank.rounds.back().round + 1);
    }
    slabs_ =
        std::max<int64_t>(1, static_cast<int64_t>(std::ceil(chunk_bytes_ / pipelining.segment_bytes - 1e-9)));
    depth_ = pipelining.depth;
    if (slabs_ * transfers > kMostTransfers / 4) {
      coarser_ = true;
      slabs_ = std::max<int64_t>(1, kMostTransfers / 4 / transfers);
    }
    return absl::OkStatus();
  }

  int PairOf(int from, int to, bool same) {
    return pairs_.emplace(std::tuple(from, to, same), static_cast<int>(pairs_.size())).first->second;
  }

  // Messages to the same peers go one after the other.
  int ConnectionOf(int from, const Group& group) {
    const auto [at, fresh] = numbers_.emplace(std::tuple(from, group.peer, group.first_peer, group.messages),
                                              static_cast<int>(connections_.size()));
    if (fresh) connections_.push_back({from, group.peer, group.same_node, group.messages, -1, {}});
    return at->second;
  }

  void AddResources() {
    const double intra =
        cluster_.intra_bytes_per_s > 0 ? cluster_.intra_bytes_per_s : FluidNetwork::kUnlimited;
    const double cards = cluster_.link_bytes_per_s * cluster_.cards_per_node * cluster_.fraction;
    const FluidNetwork::Burst burst{cluster_.burst_bytes * cluster_.cards_per_node, tokens_,
                                    FullSpeed(cluster_) * cluster_.cards_per_node};
    const double fabric = cluster_.oversubscription > 1 ? cards * shape_.nodes / cluster_.oversubscription
                                                        : FluidNetwork::kUnlimited;
    fabric_ = network_.AddResource(fabric);
    for (size_t c = 0; c < ranks_.size(); ++c) {
      // Ranks of one kind of node share its cards.
      const int node = classes_.first[c] / shape_.ranks_per_node;
      const auto [at, fresh] =
          cards_.emplace(classes_.of[static_cast<size_t>(node * shape_.ranks_per_node)], Ports());
      if (fresh) at->second = {network_.AddResource(cards, burst), network_.AddResource(cards, burst)};
      card_.push_back(at->second);
      intra_.push_back({network_.AddResource(intra), network_.AddResource(intra)});
    }
  }

  int KindOf(Connection& connection) {
    if (connection.kind >= 0) return connection.kind;
    const size_t from = static_cast<size_t>(connection.from), to = static_cast<size_t>(connection.to);
    const double messages = connection.messages;  // of each rank of the class
    const double all = messages * classes_.size[from];
    if (connection.same_node) {
      return connection.kind =
                 network_.AddKind({{intra_[from].out, messages}, {intra_[to].in, all / classes_.size[to]}});
    }
    const double card =
        cluster_.burst_bytes > 0 ? FullSpeed(cluster_) : cluster_.link_bytes_per_s * cluster_.fraction;
    const int rings = schedule_.name() == "ring" ? cluster_.rings : 1;
    return connection.kind = network_.AddKind({{card_[from].out, all / classes_.nodes[from]},
                                               {card_[to].in, all / classes_.nodes[to]},
                                               {fabric_, all}},
                                              card * std::min(rings, cluster_.cards_per_node));
  }

  // Bytes wait at the sender until the receiver waits for them, or its socket has room.
  void StartFirst(Connection& connection) {
    if (connection.queue.empty()) return;
    const int message = connection.queue.front();
    Message& it = messages_[static_cast<size_t>(message)];
    if (it.started) return;
    if (it.receiver_op < 0) {
      if (connection.same_node || connection.ahead + it.bytes > cluster_.socket_bytes) return;
      connection.ahead += it.bytes;
    }
    it.started = true;
    network_.Start(KindOf(connection), it.bytes, message);
  }

  double BytesOf(const Group& group) const {
    return group.chunks * chunk_bytes_ / static_cast<double>(slabs_);
  }

  // Starts what the rank may start now.
  void Continue(int c) {
    Rank& rank = ranks_[static_cast<size_t>(c)];
    const int64_t rounds = rounds_, depth = depth_;
    while (true) {
      while (!rank.in_flight.empty() && rank.in_flight.front().done) PopFront(rank);
      if (rank.wave >= slabs_ + (rounds - 1) * depth) return;
      if (rank.next_round < 0) {
        rank.next_round = static_cast<int>(std::min(rounds - 1, rank.wave / depth));
      }
      const int64_t first = std::max<int64_t>(0, (rank.wave - slabs_ + depth) / depth);
      if (rank.next_round < first) {
        ++rank.wave;
        rank.next_round = -1;
        continue;
      }
      const int round = rank.next_round;
      const auto at = std::lower_bound(rank.rounds.begin(), rank.rounds.end(), round,
                                       [](const RoundGroups& groups, int r) { return groups.round < r; });
      if (at == rank.rounds.end() || at->round != round) {
        Next(rank, first);
        continue;
      }
      const int index = static_cast<int>(at - rank.rounds.begin());
      const int slab = static_cast<int>(rank.wave - int64_t{round} * depth);
      // As Execution::Start: a window, and the slab's round before.
      if (rank.in_flight.size() >= static_cast<size_t>(2 * depth)) return;
      if (index > 0 && rank.number.contains({slab, index - 1})) return;
      StartOp(c, rank, index, slab);
      Next(rank, first);
    }
  }

  void Next(Rank& rank, int64_t first) {
    if (--rank.next_round < first) {
      ++rank.wave;
      rank.next_round = -1;
    }
  }

  void PopFront(Rank& rank) {
    const Op& op = rank.in_flight.front();
    rank.number.erase({op.slab, op.index});
    rank.in_flight.pop_front();
    ++rank.popped;
  }

  void StartOp(int c, Rank& rank, int index, int slab) {
    const RoundGroups& groups = rank.rounds[static_cast<size_t>(index)];
    const int64_t number = rank.popped + static_cast<int64_t>(rank.in_flight.size());
    rank.in_flight.push_back(
        {index, slab, static_cast<int>(groups.sends.size() + groups.receives.size()), false});
    rank.number.emplace(std::pair(slab, index), number);
    for (const Group& group : groups.sends) {
      const int message = MessageAt({group.pair, group.chunks, groups.round, slab});
      Message& it = messages_[static_cast<size_t>(message)];
      it.from = c;
      it.to = group.peer;
      it.connection = group.connection;
      it.bytes = BytesOf(group);
      it.sender_op = number;
      Connection& connection = connections_[static_cast<size_t>(group.connection)];
      connection.queue.push_back(message);
      connection.unsent += it.bytes;
      it.taken = !connection.same_node && connection.unsent <= cluster_.socket_bytes;
      if (it.taken) timers_.push({network_.now(), c, number});
      StartFirst(connection);
    }
    for (const Group& group : groups.receives) {
      const int message = MessageAt({group.pair, group.chunks, groups.round, slab});
      Message& it = messages_[static_cast<size_t>(message)];
      it.receiver_op = number;
      it.to = c;
      it.adds = group.adds;
      it.received = group.messages;
      if (it.connection < 0) continue;
      Connection& connection = connections_[static_cast<size_t>(it.connection)];
      if (it.started) connection.ahead -= it.bytes;
      if (it.arrived) timers_.push({network_.now(), message, -1});
      StartFirst(connection);
    }
  }

  int MessageAt(const Meeting& meeting) {
    const auto [at, fresh] = meetings_.emplace(meeting, 0);
    if (fresh) {
      if (unused_.empty()) {
        unused_.push_back(static_cast<int>(messages_.size()));
        messages_.emplace_back();
        meeting_of_.emplace_back();
      }
      at->second = unused_.back();
      unused_.pop_back();
      messages_[static_cast<size_t>(at->second)] = {};
      meeting_of_[static_cast<size_t>(at->second)] = meeting;
    }
    return at->second;
  }

  // Its last byte has left: the connection is free for the next, and it arrives a latency later.
  void SentWhole(int message) {
    Message& it = messages_[static_cast<size_t>(message)];
    Connection& connection = connections_[static_cast<size_t>(it.connection)];
    connection.queue.pop_front();
    connection.unsent -= it.bytes;
    if (!it.taken) PartDone(it.from, it.sender_op);
    it.taken = true;
    TakeMore(connection);
    StartFirst(connection);
    const double latency = connection.same_node ? cluster_.intra_latency_s : cluster_.latency_s;
    timers_.push({network_.now() + latency, message, -1});
  }

  // The sender's socket has room again.
  void TakeMore(const Connection& connection) {
    if (connection.same_node) return;
    double before = 0;
    for (const int message : connection.queue) {
      Message& it = messages_[static_cast<size_t>(message)];
      before += it.bytes;
      if (before > cluster_.socket_bytes) return;
      if (!it.taken) PartDone(it.from, it.sender_op);
      it.taken = true;
    }
  }

  void Received(int message) {
    if (messages_[static_cast<size_t>(message)].receiver_op < 0) {
      messages_[static_cast<size_t>(message)].arrived = true;
      return;
    }
    const Message it = messages_[static_cast<size_t>(message)];
    // One thread adds, in the order of arrival.
    Rank& rank = ranks_[static_cast<size_t>(it.to)];
    double done = network_.now();
    if (it.adds) {
      const double add_s = it.bytes * it.received * cluster_.add_s_per_byte;
      rank.adding_s += add_s;
      done = rank.adds_until = std::max(done, rank.adds_until) + add_s;
    }
    timers_.push({done, it.to, it.receiver_op});
    meetings_.erase(meeting_of_[static_cast<size_t>(message)]);
    unused_.push_back(message);
  }

  void PartDone(int c, int64_t number) {
    Rank& rank = ranks_[static_cast<size_t>(c)];
    Op& op = rank.in_flight[static_cast<size_t>(number - rank.popped)];
    if (--op.open > 0) return;
    op.done = true;
    rank.done_at = network_.now();
    // Whatever waits for this slab may go on before older slabs are done.
    rank.number.erase({op.slab, op.index});
    touched_.insert(c);
  }

  CollectiveTime Result() const {
    CollectiveTime time{
        .seconds = network_.now(), .classes = static_cast<int64_t>(ranks_.size()), .coarser = coarser_};
    for (const Rank& rank : ranks_) {
      PSRING_CHECK(rank.in_flight.empty());
      time.adding_s = std::max(time.adding_s, rank.adding_s);
    }
    for (size_t c = 0; c < ranks_.size(); ++c) {
      time.mean_s += ranks_[c].done_at * classes_.size[c] / schedule_.ranks();
    }
    const auto busiest = [&](const std::vector<Ports>& ports) {
      double busy = 0;
      for (const Ports& port : ports) {
        busy = std::max({busy, network_.BusySeconds(port.in), network_.BusySeconds(port.out)});
      }
      return busy;
    };
    time.card_busy_s = busiest(card_);
    time.intra_busy_s = busiest(intra_);
    time.fabric_busy_s = network_.BusySeconds(fabric_);
    return time;
  }

  struct Ports {
    int out = 0, in = 0;
  };

  const Schedule& schedule_;
  const Cluster& cluster_;
  const Shape shape_;
  const double chunk_bytes_;
  const double tokens_;
  const Classes classes_;
  FluidNetwork network_;
  int fabric_ = 0;
  std::map<int, Ports> cards_;
  std::vector<Ports> card_, intra_;  // by class
  int64_t rounds_ = 0, slabs_ = 1, depth_ = 1;
  bool coarser_ = false;
  std::vector<Rank> ranks_;  // by class
  std::map<std::tuple<int, int, bool>, int> pairs_;
  std::map<std::tuple<int, int, int, int>, int> numbers_;
  std::vector<Connection> connections_;
  std::vector<Message> messages_;
  std::vector<Meeting> meeting_of_;
  std::vector<int> unused_;
  std::map<Meeting, int> meetings_;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  std::set<int> touched_;
};

}  // namespace

absl::StatusOr<CollectiveTime> SimulateCollective(const Schedule& schedule, const Cluster& cluster,
                                                  double bytes, const Pipelining& pipelining,
                                                  std::optional<double> tokens) {
  const double all = cluster.burst_bytes * cluster.cards_per_node;
  return Simulation(schedule, cluster, bytes, std::clamp(tokens.value_or(all), 0.0, all)).Run(pipelining);
}

}  // namespace psring
