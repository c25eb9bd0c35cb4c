// The records of a launch, and what is computed from them.
#include "common/measure/records.h"

#include "common/measure/step_times.h"
#include "experiments/analysis/launch_figures.h"
#include "tests/experiments/test_catalog.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = psring::TextOf(data, size);
  (void)psring::StepTimesFromJson(text);
  const auto step = psring::StepRecordFromJson(text);
  const auto server = psring::ServerResultFromJson(text);
  const auto rank = psring::RankResultFromJson(text);
  psring::RunRecords records;
  records.ranks = {rank.value_or(psring::RankResult()), psring::RankResult()};
  records.steps = {{step.value_or(psring::StepRecord())}, {psring::StepRecord()}};
  records.servers = {server.value_or(psring::ServerResult())};
  for (const char* strategy : {"ring", "ps-async"}) {
    (void)psring::FiguresOf(psring::TestConfiguration(strategy, 2), records);
  }
  return 0;
}
