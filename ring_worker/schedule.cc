#include "ring_worker/schedule.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"

namespace psring {

ChunkRange ChunkBounds(size_t count, int chunks, int first_chunk, int chunk_count) {
  PSRING_CHECK(chunks > 0 && first_chunk >= 0 && chunk_count >= 0 && first_chunk + chunk_count <= chunks);
  // floor(c * count / chunks) without c * count, which can overflow.
  const size_t quotient = count / chunks;
  const size_t remainder = count % chunks;
  const auto start = [&](size_t chunk) { return chunk * quotient + chunk * remainder / chunks; };
  const size_t first = start(first_chunk);
  return {first, start(size_t(first_chunk) + chunk_count) - first};
}

const std::vector<ScheduleRow>& AllReduceSchedules() {
  static const auto& rows = *new std::vector<ScheduleRow>{
      {"ring", "scatter-reduce, then all-gather, each to the next neighbour", RingAllReduce},
      {"star", "the parameter-server pattern: rank 0 gathers, adds, hands back", StarAllReduce},
  };
  return rows;
}

absl::StatusOr<std::unique_ptr<Schedule>> MakeAllReduceSchedule(const std::string& name, int ranks) {
  if (ranks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a schedule needs at least one rank, not ", ranks));
  }
  std::vector<std::string> names;
  for (const ScheduleRow& row : AllReduceSchedules()) {
    if (name == row.name) return row.make(ranks);
    names.push_back(row.name);
  }
  return absl::NotFoundError(
      absl::StrCat("unknown algorithm \"", name, "\"; there are ", absl::StrJoin(names, ", ")));
}

}  // namespace psring
