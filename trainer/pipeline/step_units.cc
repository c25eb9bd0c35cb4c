#include "trainer/pipeline/step_units.h"

#include <algorithm>

#include "common/base/check.h"

namespace psring {

std::vector<int> StepUnits::BucketEnds(size_t stage) const {
  std::vector<int> ends;
  for (size_t unit = EndOf(stage); unit-- > stages[stage];) {
    if (buckets[unit].second > buckets[unit].first) ends.push_back(static_cast<int>(unit - stages[stage]));
  }
  return ends;
}

StepUnits PlanUnits(const std::vector<ReadyRange>& complete, const std::vector<Bucket>& buckets,
                    const std::vector<LayerRange>& stages) {
  std::vector<size_t> missing;  // elements, by bucket
  for (const Bucket& bucket : buckets) missing.push_back(bucket.count);
  const auto begins_stage = [&](size_t l) {
    return l == 0 || std::ranges::any_of(stages, [l](const LayerRange& stage) { return stage.first == l; });
  };
  StepUnits units;  // the last first
  size_t next = 0, end = complete.size();
  for (size_t l = complete.size(); l-- > 0;) {
    const size_t range_end = complete[l].first + complete[l].count;
    for (size_t b = next; b < buckets.size(); ++b) {
      const size_t from = std::max(buckets[b].first, complete[l].first);
      const size_t to = std::min(buckets[b].first + buckets[b].count, range_end);
      if (from >= to) continue;
      PSRING_CHECK(to - from <= missing[b]);
      missing[b] -= to - from;
    }
    const size_t first = next;
    while (next < buckets.size() && missing[next] == 0) ++next;
    if (next == first && !begins_stage(l)) continue;
    units.layers.push_back({l, end});
    units.buckets.emplace_back(first, next);
    end = l;
  }
  PSRING_CHECK(next == buckets.size());
  std::ranges::reverse(units.layers);
  std::ranges::reverse(units.buckets);
  for (size_t unit = 0; unit < units.layers.size(); ++unit) {
    if (begins_stage(units.layers[unit].first)) units.stages.push_back(unit);
  }
  return units;
}

std::vector<Bucket> CutBuckets(const std::vector<Bucket>& buckets, const std::vector<ReadyRange>& complete,
                               const std::vector<LayerRange>& stages) {
  // The elements of each stage, in increasing order.
  std::vector<std::pair<ReadyRange, size_t>> owned;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    for (size_t l = stages[stage].first; l < stages[stage].end; ++l) {
      if (complete[l].count > 0) owned.emplace_back(complete[l], stage);
    }
  }
  std::ranges::sort(owned, {}, [](const auto& range) { return range.first.first; });
  std::vector<std::pair<Bucket, size_t>> cut;
  for (const Bucket& bucket : buckets) {
    const size_t begin = cut.size(), bucket_end = bucket.first + bucket.count;
    for (const auto& [range, stage] : owned) {
      const size_t from = std::max(bucket.first, range.first);
      const size_t to = std::min(bucket_end, range.first + range.count);
      if (from >= to) continue;
      if (cut.size() > begin && cut.back().second == stage) {
        cut.back().first.count = to - cut.back().first.first;
      } else {
        cut.push_back({{.first = from, .count = to - from}, stage});
      }
    }
  }
  std::ranges::stable_sort(cut, std::ranges::greater(), [](const auto& part) { return part.second; });
  std::vector<Bucket> result;
  for (const auto& [bucket, stage] : cut) {
    result.push_back(bucket);
    result.back().index = static_cast<int>(result.size()) - 1;
  }
  return result;
}

}  // namespace psring
