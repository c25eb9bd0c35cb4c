#include "ring_worker/schedule_check.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

// How often a chunk holds each rank's contribution: 0, 1, or 2 for "more than once".
using Contributions = std::vector<uint8_t>;
constexpr uint8_t kMoreThanOnce = 2;

struct Move {
  Action action;
  int from, to;  // ranks
  int first_chunk, chunk_count;
};

const char* Verb(Action action) {
  switch (action) {
    case Action::kSend:
      return "sends";
    case Action::kReceive:
      return "receives";
    case Action::kReceiveAdd:
      return "receives and adds";
  }
  return "?";
}

std::string Chunks(int first, int count) {
  return count == 1 ? absl::StrCat("chunk ", first) : absl::StrCat("chunks ", first, "-", first + count - 1);
}

class Checker {
 public:
  explicit Checker(const Schedule& schedule)
      : schedule_(schedule), ranks_(schedule.ranks()), chunks_(schedule.chunks()) {}

  absl::Status Check(Goal goal) {
    if (ranks_ < 1 || chunks_ < 1) {
      return Broken(absl::StrCat("it has ", ranks_, " ranks and ", chunks_, " chunks"));
    }
    held_.assign(size_t(ranks_) * chunks_, Contributions(ranks_, 0));
    int rounds = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      rounds = std::max(rounds, schedule_.rounds(rank));
      for (int chunk = 0; chunk < chunks_; ++chunk) Held(rank, chunk)[rank] = 1;
    }
    // A rank finishes a round before it starts the next. So where every transfer meets its partner in the
    // round of the same number, the earliest unfinished round can always finish: no deadlock.
    for (round_ = 0; round_ < rounds; ++round_) {
      absl::Status status = CheckRound();
      if (!status.ok()) return status;
    }
    return CheckOutcome(goal);
  }

 private:
  Contributions& Held(int rank, int chunk) { return held_[size_t(rank) * chunks_ + chunk]; }

  absl::Status Broken(const std::string& what) const {
    return absl::FailedPreconditionError(
        absl::StrCat("schedule ", schedule_.name(), " of ", ranks_, " ranks is broken: ", what));
  }
  absl::Status BrokenAt(const Move& move, bool receiver, const std::string& what) const {
    const int rank = receiver ? move.to : move.from;
    return Broken(absl::StrCat("in round ", round_, ", rank ", rank, " ",
                               Verb(receiver ? move.action : Action::kSend), " ",
                               Chunks(move.first_chunk, move.chunk_count), receiver ? " from" : " to",
                               " rank ", receiver ? move.from : move.to, what));
  }

  absl::Status CheckRound() {
    std::vector<Move> sends, receives;
    std::vector<Transfer> transfers;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (round_ >= schedule_.rounds(rank)) continue;
      schedule_.Round(rank, round_, transfers);
      for (const Transfer& t : transfers) {
        const bool sending = t.action == Action::kSend;
        const Move move = {t.action, sending ? rank : t.peer, sending ? t.peer : rank, t.first_chunk,
                           t.chunk_count};
        if (t.peer < 0 || t.peer >= ranks_ || t.peer == rank) {
          return BrokenAt(move, !sending, ", which is no peer");
        }
        if (t.first_chunk < 0 || t.chunk_count < 1 || t.chunk_count > chunks_ - t.first_chunk) {
          return BrokenAt(move, !sending, absl::StrCat(", but there are chunks 0-", chunks_ - 1));
        }
        (sending ? sends : receives).push_back(move);
      }
    }
    absl::Status status = CheckMeetings(sends, receives);
    if (status.ok()) status = CheckOverwrites(receives);
    if (status.ok()) Apply(receives);
    return status;
  }

  // The k-th send from a to b meets b's k-th receive from a.
  absl::Status CheckMeetings(std::vector<Move>& sends, const std::vector<Move>& receives_in_order) const {
    std::vector<Move> receives = receives_in_order;
    const auto by_pair = [](const Move& a, const Move& b) {
      return std::pair(a.from, a.to) < std::pair(b.from, b.to);
    };
    std::stable_sort(sends.begin(), sends.end(), by_pair);
    std::stable_sort(receives.begin(), receives.end(), by_pair);
    for (size_t i = 0; i < std::max(sends.size(), receives.size()); ++i) {
      if (i >= receives.size() || (i < sends.size() && by_pair(sends[i], receives[i]))) {
        return BrokenAt(sends[i], false, ", which does not receive it in this round");
      }
      if (i >= sends.size() || by_pair(receives[i], sends[i])) {
        return BrokenAt(receives[i], true, ", which does not send it in this round");
      }
      if (sends[i].first_chunk != receives[i].first_chunk ||
          sends[i].chunk_count != receives[i].chunk_count) {
        return BrokenAt(receives[i], true,
                        absl::StrCat(", which sends ", Chunks(sends[i].first_chunk, sends[i].chunk_count)));
      }
    }
    return absl::OkStatus();
  }

  // Additions into one chunk have an order; a copy beside anything else has none.
  absl::Status CheckOverwrites(const std::vector<Move>& receives) const {
    enum : uint8_t { kUntouched, kAdded, kCopied };
    std::vector<uint8_t> touched;
    int rank = -1;
    for (const Move& move : receives) {  // sorted by receiver
      if (move.to != rank) touched.assign(chunks_, kUntouched);
      rank = move.to;
      for (int chunk = move.first_chunk; chunk < move.first_chunk + move.chunk_count; ++chunk) {
        const bool adds = move.action == Action::kReceiveAdd;
        if (touched[chunk] == kCopied || (touched[chunk] == kAdded && !adds)) {
          return BrokenAt(move, true, absl::StrCat(", and chunk ", chunk, " from another in the same round"));
        }
        touched[chunk] = adds ? kAdded : kCopied;
      }
    }
    return absl::OkStatus();
  }

  void Apply(const std::vector<Move>& receives) {
    // Sends read what stood there before the round, so take all of it before the first change.
    std::vector<Contributions> payloads;
    for (const Move& move : receives) {
      for (int i = 0; i < move.chunk_count; ++i) payloads.push_back(Held(move.from, move.first_chunk + i));
    }
    auto payload = payloads.begin();
    for (const Move& move : receives) {
      for (int i = 0; i < move.chunk_count; ++i, ++payload) {
        Contributions& held = Held(move.to, move.first_chunk + i);
        if (move.action == Action::kReceive) {
          held = std::move(*payload);
          continue;
        }
        for (int rank = 0; rank < ranks_; ++rank) {
          held[rank] = std::min<uint8_t>(held[rank] + (*payload)[rank], kMoreThanOnce);
        }
      }
    }
  }

  absl::Status CheckOutcome(Goal goal) {
    for (int rank = 0; rank < ranks_; ++rank) {
      for (int chunk = 0; chunk < chunks_; ++chunk) {
        for (int from = 0; from < ranks_; ++from) {
          const int times = Held(rank, chunk)[from];
          const int wanted = goal == Goal::kAllReduce || from == 0 ? 1 : 0;
          if (times == wanted) continue;
          return Broken(absl::StrCat("after round ", round_ - 1, ", rank ", rank, " holds rank ", from,
                                     "'s contribution to chunk ", chunk,
                                     times == 0   ? " not at all"
                                     : times == 1 ? ", which it should not"
                                                  : " more than once"));
        }
      }
    }
    return absl::OkStatus();
  }

  const Schedule& schedule_;
  const int ranks_;
  const int chunks_;
  int round_ = 0;
  std::vector<Contributions> held_;  // [rank][chunk]
};

}  // namespace

absl::Status CheckSchedule(const Schedule& schedule, Goal goal) { return Checker(schedule).Check(goal); }

}  // namespace psring
