#include "common/parameters.h"

#include <utility>

#include "common/check.h"

namespace psring {

int ParameterLayout::Add(std::string name, std::vector<int> shape, PictureShape picture) {
  size_t count = 1;
  for (const int extent : shape) {
    PSRING_CHECK(extent >= 0);
    count *= static_cast<size_t>(extent);
  }
  tensors_.push_back({std::move(name), std::move(shape), count_, count, picture});
  count_ += count;
  return static_cast<int>(tensors_.size()) - 1;
}

std::vector<Bucket> PlanBuckets(const ParameterLayout& layout, const BucketSizes& sizes) {
  constexpr double kElementsPerMb = (1 << 20) / sizeof(float);
  std::vector<Bucket> buckets;
  size_t end = layout.count();  // elements from here on are in buckets already
  for (size_t i = layout.tensors().size(); i-- > 0;) {
    const size_t first = layout.tensors()[i].first;
    const double limit = (buckets.empty() ? sizes.first_mb : sizes.others_mb) * kElementsPerMb;
    const size_t count = end - first;
    const bool full = static_cast<double>(count) >= limit;
    if (count > 0 && (full || i == 0)) {
      buckets.push_back({static_cast<int>(buckets.size()), first, count});
      end = first;
    }
  }
  return buckets;
}

}  // namespace psring
