// summary.csv, as predict --calibrate reads it, and what is fitted to it.
#include "experiments/plan/rates.h"
#include "experiments/predict/calibrate_run.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = psring::TextOf(data, size);
  (void)psring::ParseRunSteps(text);
  (void)psring::RatesFromCsv(text);
  return 0;
}
