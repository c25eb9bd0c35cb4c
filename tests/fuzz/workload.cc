#include "common/workloads/workload.h"

#include "common/workloads/changes.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto workload = psring::ParseWorkload("mine.csv", psring::TextOf(data, size));
  if (!workload.ok()) return 0;
  (void)psring::LayoutOf(*workload);
  std::vector<int> place;
  const psring::ParameterLayout layout = psring::DeclaredLayoutOf(*workload, place);
  (void)psring::BucketReadyMs(*workload, psring::PlanBuckets(psring::LayoutOf(*workload), {}));
  (void)psring::PlanBuckets(layout, place, {});
  (void)psring::InPieces(*workload, int64_t{1} << 30);
  return 0;
}
