// Every single change of every schedule is rejected by the checker or does not affect the result.
#include <gtest/gtest.h>

#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ring_worker/schedules/schedule_check.h"
#include "tests/ring_worker/schedules/schedule_table.h"

namespace psring {
namespace {

// Executes a schedule on numbers in any way that the contract allows: transfers of a round happen in any
// order, and received data are written immediately, even if the memory is still to be sent, unless
// copies_sends() is true. Independent of the checker.
class Execution {
 public:
  Execution(const Schedule& schedule, Collective collective, int root, uint32_t seed)
      : schedule_(schedule), collective_(collective), root_(root), random_(seed), ranks_(schedule.ranks()) {
    for (int rank = 0; rank < ranks_; ++rank) {
      State state;
      for (int chunk = 0; chunk < schedule.chunks(); ++chunk) {
        const uint64_t high = random_();
        state.memory.push_back({high << 32 | random_(), float(int32_t(random_())) / (1 << 20)});
      }
      states_.push_back(std::move(state));
    }
    for (const State& state : states_) initial_.push_back(state.memory);
  }

  // Whether it ends with the collective's result, with the same bits on all ranks.
  bool Succeeds() {
    for (int rank = 0; rank < ranks_; ++rank) StartRound(rank, 0);
    while (Step()) {
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      if (states_[rank].round < schedule_.rounds(rank)) return false;  // stuck
    }
    return !wrong_size_ && ResultsAreRight();
  }

 private:
  struct Value {
    uint64_t exact;  // its sums show which contributions they contain, and how often
    float rounded;   // its sums show the order of addition
    bool operator==(const Value&) const = default;
  };
  struct State {
    int round = 0;
    std::vector<Transfer> transfers;
    std::vector<bool> done;
    std::vector<Value> memory, before;  // now; at the beginning of the round
  };

  void StartRound(int rank, int round) {
    State& state = states_[rank];
    state.round = round;
    state.transfers.clear();
    if (round < schedule_.rounds(rank)) schedule_.Round(rank, round, state.transfers);
    state.done.assign(state.transfers.size(), false);
    state.before = state.memory;
  }

  // The send that matches receive `i` of `rank`; -1 if there is none yet.
  int Sender(int rank, size_t i) const {
    const State& state = states_[rank];
    const Transfer& receive = state.transfers[i];
    if (receive.peer < 0 || receive.peer >= ranks_) return -1;
    int before = 0;
    for (size_t j = 0; j < i; ++j)
      before += state.transfers[j].kind != TransferKind::kSend && state.transfers[j].peer == receive.peer;
    const State& peer = states_[receive.peer];
    if (peer.round != state.round) return -1;
    for (size_t j = 0; j < peer.transfers.size(); ++j) {
      if (peer.transfers[j].kind == TransferKind::kSend && peer.transfers[j].peer == rank && before-- == 0) {
        return static_cast<int>(j);
      }
    }
    return -1;
  }

  bool MayHappen(int rank, size_t i) const {
    const State& state = states_[rank];
    const Transfer& t = state.transfers[i];
    if (t.kind == TransferKind::kSend || state.done[i]) return false;
    for (size_t j = 0; j < i; ++j) {  // in the order listed
      const Transfer& earlier = state.transfers[j];
      if (earlier.kind != TransferKind::kSend && !state.done[j] &&
          earlier.first_chunk < t.first_chunk + t.chunk_count &&
          t.first_chunk < earlier.first_chunk + earlier.chunk_count) {
        return false;
      }
    }
    return t.peer == rank || Sender(rank, i) >= 0;
  }

  // Makes a random possible transfer or begins a round. False: nothing is possible.
  bool Step() {
    std::vector<std::pair<int, int>> possible;  // rank and transfer; -1: the next round
    for (int rank = 0; rank < ranks_; ++rank) {
      const State& state = states_[rank];
      if (state.round >= schedule_.rounds(rank)) continue;
      bool finished = true;
      for (size_t i = 0; i < state.transfers.size(); ++i) {
        finished = finished && state.done[i];
        if (MayHappen(rank, i)) possible.emplace_back(rank, static_cast<int>(i));
      }
      if (finished) possible.emplace_back(rank, -1);
    }
    if (possible.empty()) return false;
    const auto [rank, i] = possible[random_() % possible.size()];
    if (i < 0) {
      StartRound(rank, states_[rank].round + 1);
    } else {
      Move(rank, i);
    }
    return true;
  }

  void Move(int rank, int i) {
    State& state = states_[rank];
    const Transfer& t = state.transfers[i];
    State& peer = states_[t.peer];
    state.done[i] = true;
    int first_sent = t.first_chunk;
    if (t.peer != rank) {
      const int send = Sender(rank, i);
      peer.done[send] = true;
      first_sent = peer.transfers[send].first_chunk;
      wrong_size_ = wrong_size_ || peer.transfers[send].chunk_count != t.chunk_count;
    }
    const bool copied = schedule_.copies_sends() || t.peer == rank;
    const std::vector<Value>& sent = schedule_.keeps_input() && t.peer != rank ? initial_[t.peer]
                                     : copied                                  ? peer.before
                                                                               : peer.memory;
    for (int c = 0; c < t.chunk_count && !wrong_size_; ++c) {
      const Value payload = sent[first_sent + c];
      Value& value = state.memory[t.first_chunk + c];
      value = t.kind == TransferKind::kReceive
                  ? payload
                  : Value{value.exact + payload.exact, value.rounded + payload.rounded};
    }
  }

  bool ResultsAreRight() const {
    for (int rank = 0; rank < ranks_; ++rank) {
      for (int chunk = 0; chunk < schedule_.chunks(); ++chunk) {
        const Value& value = states_[rank].memory[chunk];
        if (collective_ == Collective::kReduceScatter && chunk != rank) continue;
        if (collective_ == Collective::kAllToAll) {
          if (!(value == initial_[(rank - chunk + ranks_) % ranks_][chunk])) return false;
          continue;
        }
        if (collective_ == Collective::kAllGather && !(value == initial_[chunk][chunk])) return false;
        if (collective_ == Collective::kBroadcast && !(value == initial_[root_][chunk])) return false;
        if (collective_ == Collective::kAllGather || collective_ == Collective::kBroadcast) continue;
        uint64_t sum = 0;
        for (int from = 0; from < ranks_; ++from) sum += initial_[from][chunk].exact;
        if (value.exact != sum) return false;
        if (collective_ == Collective::kAllReduce && !(value == states_[0].memory[chunk])) return false;
      }
    }
    return true;
  }

  const Schedule& schedule_;
  const Collective collective_;
  const int root_;
  std::mt19937 random_;
  const int ranks_;
  bool wrong_size_ = false;
  std::vector<State> states_;
  std::vector<std::vector<Value>> initial_;
};

bool IsEquivalent(const Schedule& schedule, Collective collective, int root) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    if (!Execution(schedule, collective, root, seed).Succeeds()) return false;
  }
  return true;
}

TEST(ExecutionTest, DetectsErrorsIndependently) {
  const auto run = [](const Schedule& schedule) { return IsEquivalent(schedule, Collective::kAllReduce, 0); };
  for (const std::string& algorithm : AlgorithmsFor(Collective::kAllReduce))
    EXPECT_TRUE(run(*MakeAllReduce(algorithm, 5))) << algorithm;
  Table overwriting(*MakeAllReduce("one-shot", 3));
  overwriting.set_copies_sends(false);
  EXPECT_FALSE(run(overwriting));
  Table other_order(*MakeAllReduce("one-shot", 4));
  std::swap(other_order.At(1, 0)[5], other_order.At(1, 0)[6]);
  EXPECT_FALSE(run(other_order));
  Table stuck(*MakeAllReduce("ring", 3));
  std::swap(stuck.At(1, 0), stuck.At(1, 1));
  EXPECT_FALSE(run(stuck));
}

// Calls `check(kind)` for every single mutation of `table`, and restores it.
class Mutator {
 public:
  Mutator(Table& table, std::function<void(const std::string& kind)> check)
      : table_(table), check_(std::move(check)) {}

  void All() {
    for (int rank = 0; rank < table_.ranks(); ++rank) {
      for (int round = 0; round < table_.rounds(rank); ++round) {
        for (size_t i = 0; i < table_.At(rank, round).size(); ++i) OfTransfer(rank, round, i);
        OfOrder(rank, round);
      }
      OfRounds(rank);
    }
    OfMessages();
    OfAllRanksRounds();
  }

 private:
  using List = std::vector<Transfer>;

  void Try(const std::string& kind, List& list, const std::function<void(List&)>& mutate) {
    const List original = list;
    mutate(list);
    if (list != original) check_(kind);
    list = original;
  }

  void OfTransfer(int rank, int round, size_t i) {
    List& list = table_.At(rank, round);
    const auto attempt = [&](const std::string& kind, const std::function<void(Transfer&)>& mutate) {
      Try(kind, list, [&](List& l) { mutate(l[i]); });
    };
    Try("drop a transfer", list, [&](List& l) { l.erase(l.begin() + i); });
    Try("duplicate a transfer", list, [&](List& l) { l.insert(l.begin() + i, Transfer(l[i])); });
    Try("duplicate a transfer", list, [&](List& l) { l.push_back(Transfer(l[i])); });
    for (int peer = -1; peer <= table_.ranks(); ++peer)
      attempt("change a peer", [&](Transfer& t) { t.peer = peer; });
    for (int chunk = -1; chunk <= table_.chunks(); ++chunk)
      attempt("change a chunk", [&](Transfer& t) { t.first_chunk = chunk; });
    for (int count = -1; count <= table_.chunks() + 1; ++count)
      attempt("change a count", [&](Transfer& t) { t.chunk_count = count; });
    for (TransferKind kind : {TransferKind::kSend, TransferKind::kReceive, TransferKind::kReceiveAdd})
      attempt("change a kind", [&](Transfer& t) { t.kind = kind; });
  }

  void OfOrder(int rank, int round) {
    List& list = table_.At(rank, round);
    for (size_t i = 0; i < list.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const bool receives = list[i].kind != TransferKind::kSend && list[j].kind != TransferKind::kSend;
        Try(receives ? "swap two receives of a round" : "swap a send with another transfer of its round",
            list, [&](List& l) { std::swap(l[i], l[j]); });
      }
    }
  }

  void OfRounds(int rank) {
    std::vector<List>& rounds = table_.Rank(rank);
    const std::vector<List> original = rounds;
    for (size_t a = 0; a < original.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        std::swap(rounds[a], rounds[b]);
        if (rounds != original) check_("swap two rounds of one rank");
        rounds = original;
      }
      rounds.erase(rounds.begin() + a);
      check_(a + 1 == original.size() ? "drop one rank's last round" : "drop a round of one rank");
      rounds = original;
      rounds.push_back(original[a]);
      check_("repeat a round of one rank at its end");
      rounds = original;
    }
  }

  // Changes both ends of a message equally, so that they still match.
  void OfMessages() {
    for (int rank = 0; rank < table_.ranks(); ++rank) {
      for (int round = 0; round < table_.rounds(rank); ++round) {
        std::map<int, int> seen;
        const size_t size = table_.At(rank, round).size();
        for (size_t i = 0; i < size; ++i) {
          const Transfer sent = table_.At(rank, round)[i];
          if (sent.kind != TransferKind::kSend) continue;
          OfMessage(rank, round, i, sent, seen[sent.peer]++);
        }
      }
    }
  }

  void OfMessage(int rank, int round, size_t send, const Transfer& sent, int number) {
    List& from = table_.At(rank, round);
    List& to = table_.At(sent.peer, round);
    size_t receive = 0;
    while (to[receive].kind == TransferKind::kSend || to[receive].peer != rank || number-- > 0) ++receive;
    const List original_from = from, original_to = to;
    const auto both = [&](const std::string& kind, const std::function<void(List&, size_t)>& mutate) {
      mutate(from, send);
      mutate(to, receive);
      if (from != original_from || to != original_to) check_(kind);
      from = original_from;
      to = original_to;
    };
    both("drop a message", [](List& l, size_t i) { l.erase(l.begin() + i); });
    both("send a message twice", [](List& l, size_t i) { l.push_back(Transfer(l[i])); });
    for (int chunk = 0; chunk < table_.chunks(); ++chunk)
      both("send another chunk", [&](List& l, size_t i) { l[i].first_chunk = chunk; });
    for (int count = 1; count <= table_.chunks(); ++count)
      both("send more or fewer chunks", [&](List& l, size_t i) { l[i].chunk_count = count; });
    for (size_t other = 0; other < table_.Rank(rank).size(); ++other) {
      if (int(other) == round || other >= table_.Rank(sent.peer).size()) continue;
      List& other_from = table_.At(rank, other);
      List& other_to = table_.At(sent.peer, other);
      const List before_from = other_from, before_to = other_to;
      other_from.push_back(sent);
      other_to.push_back(to[receive]);
      both("move a message to another round", [](List& l, size_t i) { l.erase(l.begin() + i); });
      other_from = before_from;
      other_to = before_to;
    }
  }

  void OfAllRanksRounds() {
    Table original = table_;
    const int rounds = table_.rounds(0);
    for (int a = 0; a < rounds; ++a) {
      for (int b = 0; b < a; ++b) {
        for (int rank = 0; rank < table_.ranks(); ++rank) std::swap(table_.At(rank, a), table_.At(rank, b));
        check_("swap two rounds of all ranks");
        table_ = original;
      }
      for (int rank = 0; rank < table_.ranks(); ++rank)
        table_.Rank(rank).erase(table_.Rank(rank).begin() + a);
      check_("drop a round of all ranks");
      table_ = original;
      for (int rank = 0; rank < table_.ranks(); ++rank) table_.Rank(rank).push_back(original.Rank(rank)[a]);
      check_("repeat a round of all ranks");
      table_ = original;
    }
  }

  Table& table_;
  const std::function<void(const std::string&)> check_;
};

TEST(CheckScheduleTest, EveryMutationIsRejectedWithItsLocationOrHasNoEffect) {
  struct Count {
    int rejected = 0, equivalent = 0;
  };
  std::map<std::string, Count> counts;
  for (Collective collective : kCollectives) {
    for (const std::string& algorithm : AlgorithmsFor(collective)) {
      for (int ranks : {2, 3, 4, 5, 8}) {
        if (ranks == 8 && collective != Collective::kAllReduce) continue;
        const int root = collective == Collective::kBroadcast ? 1 : 0;
        const ScheduleShape shape = {.ranks = ranks, .ranks_per_node = ranks % 2 == 0 ? 2 : 1, .root = root};
        Table table(*Make(algorithm, collective, shape));
        Mutator(table, [&](const std::string& kind) {
          const absl::Status status = CheckSchedule(table, collective, root);
          if (status.ok()) {
            ++counts[kind].equivalent;
            EXPECT_TRUE(IsEquivalent(table, collective, root))
                << algorithm << " " << Name(collective) << " of " << ranks << ": " << kind;
            return;
          }
          ++counts[kind].rejected;
          for (const char* where : {"rank ", "round", "chunk"})
            EXPECT_NE(status.message().find(where), absl::string_view::npos) << status;
        }).All();
        ASSERT_EQ(CheckSchedule(table, collective, root), absl::OkStatus())
            << "the mutator did not restore the table";
      }
    }
  }
  // Mutations without effect reorder independent transfers, send data that the receiver already has, move a
  // message to another valid round, or drop an empty round. No message is superfluous.
  const std::set<std::string> may_have_no_effect = {
      "swap two receives of a round",   "swap a send with another transfer of its round",
      "swap two rounds of all ranks",   "repeat a round of one rank at its end",
      "repeat a round of all ranks",    "drop one rank's last round",
      "drop a round of one rank",       "send more or fewer chunks",
      "move a message to another round"};
  int rejected = 0;
  for (const auto& [kind, count] : counts) {
    rejected += count.rejected;
    EXPECT_GT(count.rejected, 0) << kind;
    EXPECT_TRUE(count.equivalent == 0 || may_have_no_effect.contains(kind)) << kind;
    std::cout << kind << ": " << count.rejected << " rejected, " << count.equivalent << " without effect\n";
  }
  EXPECT_GT(rejected, 70000);
}

}  // namespace
}  // namespace psring
