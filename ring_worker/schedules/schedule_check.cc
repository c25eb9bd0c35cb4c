#include "ring_worker/schedules/schedule_check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {
namespace {

// Sums of the ranks' contributions, each expression stored once: equal numbers mean equal expressions, except
// for the order of an addition's two operands. Number r, below `ranks`, is rank r's contribution.
class Expressions {
 public:
  explicit Expressions(int ranks) : words_((ranks + 63) / 64) {
    for (int rank = 0; rank < ranks; ++rank) {
      once_.resize(once_.size() + words_);
      once_[size_t(rank) * words_ + rank / 64] = uint64_t{1} << rank % 64;
    }
    twice_.resize(once_.size());
  }

  int Sum(int a, int b) {
    if (a > b) std::swap(a, b);
    const auto [found, is_new] = sums_.try_emplace(uint64_t(a) << 32 | uint32_t(b), once_.size() / words_);
    if (is_new) {
      for (size_t word = 0; word < words_; ++word) {
        const uint64_t in_a = once_[a * words_ + word], in_b = once_[b * words_ + word];
        once_.push_back(in_a | in_b);
        twice_.push_back(twice_[a * words_ + word] | twice_[b * words_ + word] | (in_a & in_b));
      }
    }
    return static_cast<int>(found->second);
  }

  // Whether a contribution is part of it more than once.
  bool Repeats(int expression) const {
    const auto first = twice_.begin() + std::ptrdiff_t(expression * words_);
    return std::any_of(first, first + std::ptrdiff_t(words_), [](uint64_t word) { return word != 0; });
  }

  // How often rank's contribution is part of it: 0, 1, or 2 for more than once.
  int Times(int expression, int rank) const {
    const size_t word = size_t(expression) * words_ + rank / 64;
    return static_cast<int>((once_[word] >> rank % 64 & 1) + (twice_[word] >> rank % 64 & 1));
  }

 private:
  const size_t words_;
  std::vector<uint64_t> once_, twice_;  // of each expression `words_` words, a bit a rank
  std::unordered_map<uint64_t, size_t> sums_;
};

std::string Chunks(int first, int count) {
  return count == 1 ? absl::StrCat("chunk ", first) : absl::StrCat("chunks ", first, "-", first + count - 1);
}

class Checker {
 public:
  Checker(const Schedule& schedule, Collective collective, int root)
      : schedule_(schedule),
        collective_(collective),
        root_(root),
        ranks_(schedule.ranks()),
        chunks_(schedule.chunks()),
        expressions_(std::max(ranks_, 1)) {}

  absl::Status Check() {
    PSRING_RETURN_IF_ERROR(CheckShape());
    int rounds = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      rounds = std::max(rounds, schedule_.rounds(rank));
      held_.insert(held_.end(), chunks_, rank);
    }
    received_.assign(held_.size(), false);
    // Equal rounds exclude deadlock: each rank finishes its rounds in order, so consider the lowest round
    // that is not finished everywhere. Every rank that takes part in it has finished all lower ones, hence
    // has started it, and everything that its transfers wait for has been started in it. So it finishes, and
    // by induction so do all rounds.
    for (round_ = 0; round_ < rounds; ++round_) PSRING_RETURN_IF_ERROR(CheckRound());
    return CheckOutcome();
  }

 private:
  struct Move {
    int from, to;  // ranks
    Transfer transfer;
  };

  absl::Status Broken(const std::string& what) const {
    return FailedPrecondition("the ", Name(collective_), " schedule ", schedule_.name(), " of ", ranks_,
                              " ranks is broken: ", what);
  }
  absl::Status BrokenAt(int rank, const Transfer& t, const std::string& what) const {
    const char* const verb = t.kind == TransferKind::kSend      ? " sends "
                             : t.kind == TransferKind::kReceive ? " receives "
                                                                : " receives and adds ";
    return Broken(
        absl::StrCat("in round ", round_, ", rank ", rank, verb, Chunks(t.first_chunk, t.chunk_count),
                     t.kind == TransferKind::kSend ? " to rank " : " from rank ", t.peer, ", ", what));
  }

  absl::Status CheckShape() const {
    if (ranks_ < 1 || chunks_ < 1)
      return Broken(absl::StrCat("it has ", ranks_, " ranks and ", chunks_, " chunks"));
    const bool by_rank = collective_ != Collective::kAllReduce && collective_ != Collective::kBroadcast;
    if (by_rank && chunks_ != ranks_)
      return Broken(absl::StrCat("it has ", chunks_, " chunks, not one a rank"));
    if (schedule_.keeps_input() != (collective_ == Collective::kAllToAll))
      return Broken("keeps_input() is true of an all-to-all, and only of one");
    if (root_ < 0 || root_ >= ranks_) return Broken(absl::StrCat("there is no root ", root_));
    for (int rank = 0; rank < ranks_; ++rank) {
      if (schedule_.rounds(rank) < 0)
        return Broken(absl::StrCat("rank ", rank, " has ", schedule_.rounds(rank), " rounds"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckRound() {
    std::vector<Move> sends, receives;  // receives in the order of their receivers
    std::vector<Transfer> transfers;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (round_ >= schedule_.rounds(rank)) continue;
      schedule_.Round(rank, round_, transfers);
      PSRING_RETURN_IF_ERROR(CheckTransfers(rank, transfers));
      for (const Transfer& t : transfers) {
        if (t.kind == TransferKind::kSend) {
          sends.push_back({rank, t.peer, t});
        } else {
          receives.push_back({t.peer, rank, t});
        }
      }
    }
    PSRING_RETURN_IF_ERROR(CheckMeetings(sends, receives));
    Apply(receives);
    return absl::OkStatus();
  }

  // The rules for a single rank's list.
  absl::Status CheckTransfers(int rank, const std::vector<Transfer>& transfers) {
    constexpr int kNobody = -1;
    first_receive_.assign(chunks_, kNobody);
    for (size_t i = 0; i < transfers.size(); ++i) {
      const Transfer& t = transfers[i];
      if (t.peer < 0 || t.peer >= ranks_) return BrokenAt(rank, t, "which does not exist");
      if (t.peer == rank && t.kind != TransferKind::kReceiveAdd) return BrokenAt(rank, t, "which is itself");
      if (t.first_chunk < 0 || t.chunk_count < 1 || t.chunk_count > chunks_ - t.first_chunk) {
        return BrokenAt(rank, t, absl::StrCat("but there are chunks 0-", chunks_ - 1));
      }
      if (t.kind == TransferKind::kSend) continue;
      for (int chunk = t.first_chunk; chunk < t.first_chunk + t.chunk_count; ++chunk) {
        if (first_receive_[chunk] == kNobody) {
          first_receive_[chunk] = static_cast<int>(i);
          continue;
        }
        const Transfer& first = transfers[first_receive_[chunk]];
        if (first.first_chunk != t.first_chunk || first.chunk_count != t.chunk_count) {
          return BrokenAt(rank, t,
                          absl::StrCat("and ", Chunks(first.first_chunk, first.chunk_count), " from rank ",
                                       first.peer, ": they overlap, but are not the same"));
        }
        if (t.kind == TransferKind::kReceive) {
          return BrokenAt(rank, t,
                          absl::StrCat("which replaces what comes from rank ", first.peer, " before it"));
        }
      }
    }
    for (const Transfer& t : transfers) {
      if (t.kind != TransferKind::kSend || schedule_.copies_sends()) continue;
      for (int chunk = t.first_chunk; chunk < t.first_chunk + t.chunk_count; ++chunk) {
        if (schedule_.keeps_input()) {
          if (!received_[size_t(rank) * chunks_ + chunk]) continue;
          return BrokenAt(rank, t, absl::StrCat("but has already received chunk ", chunk));
        }
        if (first_receive_[chunk] == kNobody) continue;
        return BrokenAt(rank, t,
                        absl::StrCat("and receives into chunk ", chunk, " from rank ",
                                     transfers[first_receive_[chunk]].peer,
                                     ", which may overwrite it before it is read; copies_sends() is false"));
      }
    }
    return absl::OkStatus();
  }

  // The k-th send from a to b matches b's k-th receive from a.
  absl::Status CheckMeetings(std::vector<Move>& sends, const std::vector<Move>& receives_in_order) const {
    std::vector<Move> receives;
    for (const Move& move : receives_in_order) {
      if (move.from != move.to) receives.push_back(move);
    }
    const auto by_pair = [](const Move& a, const Move& b) {
      return std::pair(a.from, a.to) < std::pair(b.from, b.to);
    };
    std::stable_sort(sends.begin(), sends.end(), by_pair);
    std::stable_sort(receives.begin(), receives.end(), by_pair);
    for (size_t i = 0; i < std::max(sends.size(), receives.size()); ++i) {
      if (i >= receives.size() || (i < sends.size() && by_pair(sends[i], receives[i]))) {
        return BrokenAt(sends[i].from, sends[i].transfer,
                        absl::StrCat("which does not receive it", But(sends[i].to)));
      }
      if (i >= sends.size() || by_pair(receives[i], sends[i])) {
        return BrokenAt(receives[i].to, receives[i].transfer,
                        absl::StrCat("which does not send it", But(receives[i].from)));
      }
      const Transfer& sent = sends[i].transfer;
      const Transfer& received = receives[i].transfer;
      if (sent.first_chunk != received.first_chunk || sent.chunk_count != received.chunk_count) {
        return BrokenAt(receives[i].to, received,
                        absl::StrCat("which sends ", Chunks(sent.first_chunk, sent.chunk_count)));
      }
    }
    return absl::OkStatus();
  }

  std::string But(int rank) const {
    const int rounds = schedule_.rounds(rank);
    if (round_ < rounds) return " in this round";
    return absl::StrCat(": it is done after ", rounds, " rounds");
  }

  // Sends read the values before the round, so new values are kept separate until all are formed.
  void Apply(const std::vector<Move>& receives) {
    next_ = held_;
    for (const auto& [from, to, transfer] : receives) {
      for (int chunk = transfer.first_chunk; chunk < transfer.first_chunk + transfer.chunk_count; ++chunk) {
        const int payload = held_[size_t(from) * chunks_ + chunk];
        int& value = next_[size_t(to) * chunks_ + chunk];
        received_[size_t(to) * chunks_ + chunk] = true;
        if (transfer.kind == TransferKind::kReceiveAdd) {
          const int sum = expressions_.Sum(value, payload);
          if (expressions_.Repeats(sum)) NoteRepeat(value, payload, sum, {from, to, transfer}, chunk);
          value = sum;
        } else {
          value = payload;
        }
      }
    }
    held_.swap(next_);
  }

  // `move` adds a and b, which contain a contribution more than once, in `chunk`.
  void NoteRepeat(int a, int b, int sum, const Move& move, int chunk) {
    if (repeats_.contains(sum)) return;
    for (const int part : {a, b}) {
      if (!expressions_.Repeats(part)) continue;
      repeats_.emplace(sum, std::string(repeats_.at(part)));
      return;
    }
    int rank = 0;
    while (expressions_.Times(sum, rank) < 2) ++rank;
    repeats_.emplace(
        sum, absl::StrCat(": in round ", round_, ", rank ", move.to, " adds chunk ", chunk, " from rank ",
                          move.from, ", and both contain rank ", rank, "'s contribution"));
  }

  bool Wants(int rank, int chunk, int from) const {
    if (collective_ == Collective::kAllGather) return from == chunk;
    if (collective_ == Collective::kAllToAll) return (from + chunk) % ranks_ == rank;
    return collective_ != Collective::kBroadcast || from == root_;
  }

  absl::Status CheckOutcome() const {
    for (int rank = 0; rank < ranks_; ++rank) {
      for (int chunk = 0; chunk < chunks_; ++chunk) {
        if (collective_ == Collective::kReduceScatter && chunk != rank) continue;
        const int held = held_[size_t(rank) * chunks_ + chunk];
        const std::string holder =
            absl::StrCat(round_ == 0 ? "without a round" : absl::StrCat("after its last round, ", round_ - 1),
                         ", rank ", rank, " holds ");
        for (int from = 0; from < ranks_; ++from) {
          const int times = expressions_.Times(held, from);
          if (times == (Wants(rank, chunk, from) ? 1 : 0)) continue;
          return Broken(absl::StrCat(holder, "rank ", from, "'s contribution to chunk ", chunk,
                                     times == 0   ? " not at all"
                                     : times == 1 ? ", which it should not"
                                                  : " more than once" + repeats_.at(held)));
        }
        if (collective_ == Collective::kAllReduce && held != held_[chunk]) {
          return Broken(absl::StrCat(holder, "chunk ", chunk,
                                     " added up in another order than rank 0: their bits may differ"));
        }
      }
    }
    return absl::OkStatus();
  }

  const Schedule& schedule_;
  const Collective collective_;
  const int root_;
  const int ranks_;
  const int chunks_;
  int round_ = 0;
  Expressions expressions_;
  std::vector<int> held_, next_;    // [rank][chunk]: numbers of expressions
  std::vector<bool> received_;      // [rank][chunk]: in an earlier round
  std::vector<int> first_receive_;  // [chunk]: in the current rank and round
  // Of each expression with a contribution more than once: where one was first added again.
  std::unordered_map<int, std::string> repeats_;
};

}  // namespace

absl::Status CheckSchedule(const Schedule& schedule, Collective collective, int root) {
  return Checker(schedule, collective, root).Check();
}

}  // namespace psring
