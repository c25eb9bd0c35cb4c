// psring explain: describes the rounds of the Schedule that the workers run, in sentences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ring_worker/schedules/schedule.h"
#include "trainer/strategies/table/strategy_table.h"

namespace psring {

struct ExplainFlags {
  std::string algorithm;
  std::string collective = "all_reduce";
  ScheduleShape shape{.ranks = 4};
  int64_t bytes = 4 << 20;  // size of the buffer
};

// Returns lines of at most 110 characters. Pure. Errors: those of MakeSchedule and ParseCollective;
// InvalidArgument above kMaxPlayed ranks.
absl::StatusOr<std::string> Explain(const ExplainFlags& flags, const ScheduleTable& rows = ScheduleRows());

// What happens in a step of `strategy`, from its row in the table. Lines of at most 110 characters. Pure.
// InvalidArgument: the strategy needs more workers.
absl::StatusOr<std::string> ExplainStep(const StrategyRow& strategy, int workers);

// The glossary of psring's texts: all of it, its terms, and the entry of a term (empty if it has none).
std::string ExplainWords();
std::vector<std::string> Terms();
std::string ExplainTerm(const std::string& term);

}  // namespace psring
