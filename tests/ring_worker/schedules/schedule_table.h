// A schedule that tests can change.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ring_worker/schedules/schedule.h"

namespace psring {

inline std::unique_ptr<Schedule> Make(const std::string& algorithm, Collective collective,
                                      ScheduleShape shape) {
  return MakeSchedule(algorithm, collective, shape).value();
}
inline std::unique_ptr<Schedule> MakeAllReduce(const std::string& algorithm, int ranks) {
  return Make(algorithm, Collective::kAllReduce, {.ranks = ranks});
}

// A schedule as a table that tests can change.
class Table final : public Schedule {
 public:
  explicit Table(const Schedule& original)
      : chunks_(original.chunks()),
        copies_sends_(original.copies_sends()),
        keeps_input_(original.keeps_input()),
        rounds_(original.ranks()) {
    for (int rank = 0; rank < original.ranks(); ++rank) {
      rounds_[rank].resize(original.rounds(rank));
      for (int round = 0; round < original.rounds(rank); ++round)
        original.Round(rank, round, rounds_[rank][round]);
    }
  }

  std::string name() const override { return "table"; }
  int ranks() const override { return static_cast<int>(rounds_.size()); }
  int chunks() const override { return chunks_; }
  int rounds(int rank) const override { return static_cast<int>(rounds_[rank].size()); }
  void Round(int rank, int round, std::vector<Transfer>& transfers) const override {
    transfers = rounds_[rank][round];
  }
  bool copies_sends() const override { return copies_sends_; }
  bool keeps_input() const override { return keeps_input_; }

  std::vector<Transfer>& At(int rank, int round) { return rounds_[rank][round]; }
  std::vector<std::vector<Transfer>>& Rank(int rank) { return rounds_[rank]; }
  void set_copies_sends(bool copies) { copies_sends_ = copies; }

 private:
  int chunks_;
  bool copies_sends_, keeps_input_;
  std::vector<std::vector<std::vector<Transfer>>> rounds_;  // [rank][round]
};

}  // namespace psring
