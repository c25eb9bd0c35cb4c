// The files of a run that the report shows.
#include "experiments/report/digests.h"
#include "experiments/report/kineto.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = psring::TextOf(data, size);
  (void)psring::DigestSteps(text);
  (void)psring::DigestTrace(text);
  (void)psring::DigestArrivals("ps-async x 2", text);
  (void)psring::ThinCsv(text, 100);
  (void)psring::KinetoTraces(text);
  return 0;
}
