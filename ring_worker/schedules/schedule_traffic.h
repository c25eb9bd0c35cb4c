// What one call of a schedule sends. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "ring_worker/schedules/schedule.h"

namespace psring {

struct ScheduleTraffic {
  int64_t chunks = 1;                   // of the buffer; the figures below count chunks
  std::vector<int64_t> sent, received;  // by rank
  // The most that a rank sends or receives in a round, summed over the rounds. On links of B bytes/s each
  // way, M bytes in one piece take InSequence() M/B seconds, since all ranks finish a round before the next.
  int64_t in_sequence = 0;

  double InSequence() const { return static_cast<double>(in_sequence) / static_cast<double>(chunks); }
  double MeanSent() const;  // by a rank, as a part of the buffer
};

ScheduleTraffic TrafficOf(const Schedule& schedule);

}  // namespace psring
