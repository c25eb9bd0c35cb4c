#include "common/measure/arrivals.h"

#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto arrivals = psring::ArrivalsFromBytes(psring::TextOf(data, size));
  if (arrivals.ok()) (void)psring::ToBytes(*arrivals);
  return 0;
}
