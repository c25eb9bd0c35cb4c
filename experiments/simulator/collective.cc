#include "experiments/simulator/collective.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "common/base/check.h"
#include "experiments/simulator/cluster_links.h"
#include "experiments/simulator/collective_plan.h"
#include "experiments/simulator/event_loop.h"
#include "ring_worker/schedules/lowered_schedule.h"

namespace psring {
namespace {

class CollectiveSimulation {
 public:
  CollectiveSimulation(const Schedule& schedule, const Cluster& cluster, double bytes,
                       std::optional<double> tokens)
      : schedule_(schedule),
        cluster_(cluster),
        shape_(ShapeOf(cluster, schedule.ranks())),
        chunk_bytes_(bytes / schedule.chunks()),
        links_(cluster, shape_.nodes, network_, tokens) {}

  absl::StatusOr<CollectiveTime> Run(const Pipelining& pipelining) {
    PSRING_ASSIGN_OR_RETURN(
        plan_, PlanCollective(schedule_, shape_,
                              std::max<int64_t>(1, static_cast<int64_t>(std::ceil(
                                                       chunk_bytes_ / pipelining.segment_bytes - 1e-9)))));
    for (const std::vector<int>& after : plan_.after) {
      ranks_.push_back({.order = StartOrder(after, plan_.slabs, pipelining.depth)});
    }
    for (const PlannedConnection& planned : plan_.connections) connections_.push_back({planned});
    AddResources();
    for (size_t c = 0; c < ranks_.size(); ++c) Continue(c);
    while (loop_.Advance([&](int64_t message) { SentWhole(message); },
                         [&](const Timer& timer) {
                           if (timer.op < 0) {
                             Received(timer.what);
                           } else {
                             PartDone(timer.what, timer.op);
                           }
                         })) {
      for (const size_t c : touched_) Continue(c);
      touched_.clear();
    }
    return Result();
  }

 private:
  // A slab's round on one rank.
  struct Op {
    int round = 0, slab = 0;
    int open = 0;  // parts not yet done: sends, receives, additions
    bool done = false;
  };
  struct Rank {
    StartOrder order;
    std::deque<Op> in_flight = {};  // in the order started
    int64_t popped = 0;             // ops removed from the front of in_flight
    double adding_s = 0, adds_until = 0;
    double done_at = 0;  // end of its last part so far
  };
  struct Connection : PlannedConnection {
    std::optional<size_t> kind = {};  // of flow, once known
    std::deque<size_t> queue = {};    // of messages; the first is being sent or waits for its receiver
    double ahead = 0;                 // bytes sent before their receive started
    double unsent = 0;                // bytes queued, including those in flight
  };
  // The messages of one group, which are in flight together.
  struct Message {
    size_t from = 0, to = 0;                   // classes
    Connection* connection = nullptr;          // known once the sender has started the round
    double bytes = 0;                          // of each
    int received = 0;                          // messages that each rank receives
    int64_t sender_op = -1, receiver_op = -1;  // -1: that side has not started the round
    bool started = false;
    bool taken = false;    // copied to the sender's socket
    bool arrived = false;  // before its receive started
    bool adds = false;
  };
  struct Timer {
    double time;
    size_t what;
    int64_t op;  // -1: message `what` has arrived; else a part of this op of class `what` is done
    bool operator>(const Timer& other) const {
      return std::tie(time, op, what) > std::tie(other.time, other.op, other.what);
    }
  };
  // Identifies a message at both ends: pair of classes, length, round, slab.
  using Meeting = std::tuple<size_t, int, int, int>;

  void AddResources() {
    for (size_t c = 0; c < ranks_.size(); ++c) {
      // The ranks of a node share its cards; equal nodes share one entry.
      const int node = plan_.classes.first[c] / shape_.ranks_per_node;
      const auto [at, fresh] = cards_.emplace(plan_.classes.of[node * shape_.ranks_per_node], LinkPorts());
      if (fresh) at->second = links_.AddCards();
      card_.push_back(at->second);
      intra_.push_back(links_.AddIntra());
    }
  }

  size_t KindOf(Connection& connection) {
    if (connection.kind) return *connection.kind;
    const size_t from = connection.from, to = connection.to;
    const double messages = connection.messages;  // of each rank of the class
    const double all = messages * plan_.classes.size[from];
    if (connection.same_node) {
      connection.kind =
          network_.AddKind({{intra_[from].out, messages}, {intra_[to].in, all / plan_.classes.size[to]}});
      return *connection.kind;
    }
    const ScheduleRow* row = FindSchedule(schedule_.name());
    const int rings = row != nullptr && row->traits.is_ring ? cluster_.rings : 1;
    connection.kind = network_.AddKind({{card_[from].out, all / plan_.classes.size[from]},
                                        {card_[to].in, all / plan_.classes.size[to]},
                                        {links_.fabric(), all}},
                                       links_.FlowRate(rings));
    return *connection.kind;
  }

  // Bytes wait at the sender until the receive has started or the socket has space.
  void StartFirst(Connection& connection) {
    if (connection.queue.empty()) return;
    const size_t message = connection.queue.front();
    Message& it = messages_[message];
    if (it.started) return;
    if (it.receiver_op < 0) {
      if (connection.same_node || connection.ahead + it.bytes > cluster_.socket_bytes) return;
      connection.ahead += it.bytes;
    }
    it.started = true;
    network_.Start(KindOf(connection), it.bytes, static_cast<int64_t>(message));
  }

  double BytesOf(const MessageGroup& group) const {
    return group.chunks * chunk_bytes_ / static_cast<double>(plan_.slabs);
  }

  // Starts all ops that the rank may start now.
  void Continue(size_t c) {
    Rank& rank = ranks_[c];
    while (true) {
      for (; !rank.in_flight.empty() && rank.in_flight.front().done; ++rank.popped) {
        rank.in_flight.pop_front();
      }
      if (rank.order.done() || rank.order.MustFinish(rank.in_flight) > 0) return;
      StartOp(c, rank, rank.order.round(), static_cast<int>(rank.order.slab()));
      rank.order.Advance();
    }
  }

  void StartOp(size_t c, Rank& rank, int round, int slab) {
    const RoundMessages& groups =
        *std::ranges::lower_bound(plan_.rounds[c], round, {}, &RoundMessages::round);
    const int64_t number = rank.popped + static_cast<int64_t>(rank.in_flight.size());
    const int parts = static_cast<int>(groups.sends.size() + groups.receives.size());
    rank.in_flight.push_back({round, slab, parts, parts == 0});
    for (const MessageGroup& group : groups.sends) {
      const size_t message = MessageAt({group.pair, group.chunks, round, slab});
      Connection& connection = connections_[group.connection];
      Message& it = messages_[message];
      it.from = c;
      it.to = group.peer;
      it.connection = &connection;
      it.bytes = BytesOf(group);
      it.sender_op = number;
      connection.queue.push_back(message);
      connection.unsent += it.bytes;
      it.taken = !connection.same_node && connection.unsent <= cluster_.socket_bytes;
      if (it.taken) loop_.Add({network_.now(), c, number});
      StartFirst(connection);
    }
    for (const MessageGroup& group : groups.receives) {
      const size_t message = MessageAt({group.pair, group.chunks, round, slab});
      Message& it = messages_[message];
      it.receiver_op = number;
      it.to = c;
      it.adds = group.adds;
      it.received = group.messages;
      if (it.connection == nullptr) continue;
      if (it.started) it.connection->ahead -= it.bytes;
      if (it.arrived) loop_.Add({network_.now(), message, -1});
      StartFirst(*it.connection);
    }
  }

  size_t MessageAt(const Meeting& meeting) {
    const auto [at, fresh] = meetings_.emplace(meeting, 0);
    if (fresh) {
      if (unused_.empty()) {
        unused_.push_back(messages_.size());
        messages_.emplace_back();
        meeting_of_.emplace_back();
      }
      at->second = unused_.back();
      unused_.pop_back();
      messages_[at->second] = {};
      meeting_of_[at->second] = meeting;
    }
    return at->second;
  }

  // The last byte has left: the connection is free, and the message arrives one latency later.
  void SentWhole(size_t message) {
    Message& it = messages_[message];
    Connection& connection = *it.connection;
    connection.queue.pop_front();
    connection.unsent -= it.bytes;
    if (!it.taken) PartDone(it.from, it.sender_op);
    it.taken = true;
    TakeMore(connection);
    StartFirst(connection);
    const double latency = connection.same_node ? cluster_.intra_latency_s : cluster_.latency_s;
    loop_.Add({network_.now() + latency, message, -1});
  }

  // The sender's socket has space again.
  void TakeMore(const Connection& connection) {
    if (connection.same_node) return;
    double before = 0;
    for (const size_t message : connection.queue) {
      Message& it = messages_[message];
      before += it.bytes;
      if (before > cluster_.socket_bytes) return;
      if (!it.taken) PartDone(it.from, it.sender_op);
      it.taken = true;
    }
  }

  void Received(size_t message) {
    Message& it = messages_[message];
    if (it.receiver_op < 0) {
      it.arrived = true;
      return;
    }
    // One thread adds, in order of arrival.
    Rank& rank = ranks_[it.to];
    double done = network_.now();
    if (it.adds) {
      const double add_s = it.bytes * it.received * cluster_.add_s_per_byte;
      rank.adding_s += add_s;
      done = rank.adds_until = std::max(done, rank.adds_until) + add_s;
    }
    loop_.Add({done, it.to, it.receiver_op});
    meetings_.erase(meeting_of_[message]);
    unused_.push_back(message);
  }

  void PartDone(size_t c, int64_t number) {
    Rank& rank = ranks_[c];
    Op& op = rank.in_flight[static_cast<size_t>(number - rank.popped)];
    if (--op.open > 0) return;
    op.done = true;
    rank.done_at = network_.now();
    touched_.insert(c);
  }

  CollectiveTime Result() const {
    CollectiveTime time{.seconds = network_.now(), .classes = ranks_.size()};
    for (size_t c = 0; c < ranks_.size(); ++c) {
      PSRING_CHECK(ranks_[c].in_flight.empty());
      time.adding_s = std::max(time.adding_s, ranks_[c].adding_s);
      time.mean_s += ranks_[c].done_at * plan_.classes.size[c] / schedule_.ranks();
    }
    const auto busiest = [&](const std::vector<LinkPorts>& ports) {
      double busy = 0;
      for (const LinkPorts& port : ports) {
        busy = std::max({busy, network_.BusySeconds(port.in), network_.BusySeconds(port.out)});
      }
      return busy;
    };
    time.card_busy_s = busiest(card_);
    time.intra_busy_s = busiest(intra_);
    time.fabric_busy_s = network_.BusySeconds(links_.fabric());
    return time;
  }

  const Schedule& schedule_;
  const Cluster& cluster_;
  const Shape shape_;
  const double chunk_bytes_;
  CollectivePlan plan_;
  EventLoop<Timer> loop_;
  FluidNetwork& network_ = loop_.network();
  ClusterLinks links_;
  std::map<size_t, LinkPorts> cards_;
  std::vector<LinkPorts> card_, intra_;  // by class
  std::vector<Rank> ranks_;              // by class
  std::vector<Connection> connections_;
  std::vector<Message> messages_;
  std::vector<Meeting> meeting_of_;
  std::vector<size_t> unused_;
  std::map<Meeting, size_t> meetings_;
  std::set<size_t> touched_;
};

}  // namespace

CollectiveTime Both(CollectiveTime first, const CollectiveTime& next) {
  for (double CollectiveTime::*const part :
       {&CollectiveTime::seconds, &CollectiveTime::mean_s, &CollectiveTime::card_busy_s,
        &CollectiveTime::intra_busy_s, &CollectiveTime::fabric_busy_s, &CollectiveTime::adding_s}) {
    first.*part += next.*part;
  }
  first.classes = std::min(first.classes, next.classes);
  return first;
}

absl::StatusOr<CollectiveTime> SimulateCollective(const Schedule& schedule, const Cluster& cluster,
                                                  double bytes, const Pipelining& pipelining,
                                                  std::optional<double> tokens) {
  if (schedule.ranks() == 1) return CollectiveTime{.classes = 1};
  return CollectiveSimulation(schedule, cluster, bytes, tokens).Run(pipelining);
}

}  // namespace psring
