// psring explain: a schedule's rounds in plain words, computed from the very Schedule that the workers run.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "experiments/texts/phrase.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {

struct ExplainFlags {
  std::string algorithm;
  std::string collective = "all_reduce";
  ScheduleShape shape{.ranks = 4};
  int64_t bytes = 4 << 20;  // of the buffer
  Language language = Language::kEnglish;
};

// The whole text, lines of at most 110 characters, except for tables of more chunks than fit. Pure. Errors
// are those of MakeSchedule and ParseCollective, or a number of ranks that nobody would read.
absl::StatusOr<std::string> Explain(const ExplainFlags& flags);

// The glossary: the words that psring's texts use.
std::string ExplainWords(Language language);

}  // namespace psring
