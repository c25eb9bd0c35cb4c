#include "experiments/simulator/cluster.h"

#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)psring::ClusterFromJson("mine.json", psring::TextOf(data, size));
  return 0;
}
