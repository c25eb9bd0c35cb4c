#include "trainer/strategies/table/shard_plan.h"

#include <algorithm>

#include "common/base/check.h"

namespace psring {

std::vector<ShardedBucket> ShardBuckets(const std::vector<Bucket>& buckets, int rank, int ranks) {
  std::vector<ShardedBucket> sharded;
  size_t at = 0;
  const size_t own = static_cast<size_t>(rank), all = static_cast<size_t>(ranks);
  for (const Bucket& bucket : buckets) {
    const auto& [index, first, count] = bucket;
    const size_t each = count / all, rest = count % all;
    sharded.push_back(
        {.bucket = bucket,
         .whole = {index, first, all * each},
         .parts = {{{index, first + own * each, each}, at}, {{index, first + all * each, rest}, at + each}}});
    at += each + rest;
  }
  return sharded;
}

BlockMemory PlanBlocks(const std::vector<ShardedBucket>& buckets, const std::vector<bool>& keeps, int turns) {
  constexpr size_t kAlignment = ParameterLayout::kAlignment;
  PSRING_CHECK(keeps.size() == buckets.size());
  const auto aligned = [](size_t elements) { return (elements + kAlignment - 1) / kAlignment * kAlignment; };
  BlockMemory memory{.keeps = keeps};
  for (const ShardedBucket& bucket : buckets) {
    for (const ShardPart& part : bucket.parts) memory.parts += part.range.count;
  }
  std::vector<size_t> sizes(static_cast<size_t>(turns));
  std::vector<size_t> turn_of(buckets.size());
  for (size_t b = 0, others = 0; b < buckets.size(); ++b) {
    if (keeps[b]) continue;
    turn_of[b] = others++ % sizes.size();
    sizes[turn_of[b]] = std::max(sizes[turn_of[b]], aligned(buckets[b].bucket.count));
  }
  memory.elements = aligned(memory.parts);
  std::vector<size_t> shared;  // by turn
  for (const size_t size : sizes) {
    shared.push_back(memory.elements);
    memory.elements += size;
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    memory.blocks.push_back(keeps[b] ? memory.elements : shared[turn_of[b]]);
    if (keeps[b]) memory.elements += aligned(buckets[b].bucket.count);
  }
  return memory;
}

}  // namespace psring
