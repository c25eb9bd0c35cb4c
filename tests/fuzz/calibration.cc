// summary.csv and bench.json, as predict --calibrate reads them, and what is fitted to them.
#include "experiments/design/rates.h"
#include "experiments/verbs/predict/calibrate_run.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = psring::TextOf(data, size);
  (void)psring::ParseRunSteps(text);
  (void)psring::ParseBenchSteps(text);
  (void)psring::RatesFromCsv(text);
  return 0;
}
