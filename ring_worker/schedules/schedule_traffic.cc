#include "ring_worker/schedules/schedule_traffic.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace psring {

double ScheduleTraffic::MeanSent() const {
  const double all = static_cast<double>(std::accumulate(sent.begin(), sent.end(), int64_t{0}));
  return all / static_cast<double>(chunks) / static_cast<double>(sent.size());
}

ScheduleTraffic TrafficOf(const Schedule& schedule) {
  ScheduleTraffic traffic{.chunks = schedule.chunks()};
  std::map<int, int> first_of_class;
  std::vector<int64_t> busiest;  // by round
  std::vector<Transfer> transfers;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto [at, is_first] = first_of_class.try_emplace(schedule.symmetry_class(rank), rank);
    int64_t sent = 0, received = 0;
    for (int round = 0; is_first && round < schedule.rounds(rank); ++round) {
      schedule.Round(rank, round, transfers);
      int64_t out = 0, in = 0;
      for (const Transfer& transfer : transfers) {
        if (transfer.peer == rank) continue;
        (transfer.kind == TransferKind::kSend ? out : in) += transfer.chunk_count;
      }
      if (busiest.size() == static_cast<size_t>(round)) busiest.push_back(0);
      busiest[static_cast<size_t>(round)] = std::max({busiest[static_cast<size_t>(round)], out, in});
      sent += out;
      received += in;
    }
    traffic.sent.push_back(is_first ? sent : traffic.sent[static_cast<size_t>(at->second)]);
    traffic.received.push_back(is_first ? received : traffic.received[static_cast<size_t>(at->second)]);
  }
  traffic.in_sequence = std::accumulate(busiest.begin(), busiest.end(), int64_t{0});
  return traffic;
}

}  // namespace psring
