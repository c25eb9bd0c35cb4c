#include "trainer/pipeline/step_units.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

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

std::vector<Bucket> UnitBuckets(const Model& model, const std::vector<size_t>& cut_points, bool recompute) {
  const std::vector<ReadyRange> complete = model.CompleteAfterLayers();
  std::vector<size_t> begins = cut_points;
  if (begins.empty()) {
    begins.resize(complete.size());
    std::iota(begins.begin(), begins.end(), size_t{0});
  }
  if (recompute) {
    for (const LayerRange& unit : model.RecomputedUnits()) {
      std::erase_if(begins, [&](size_t l) { return unit.first < l && l < unit.end; });
    }
  }
  std::vector<Bucket> buckets;
  std::vector<ReadyRange> runs;  // of adjacent elements, of the layers of the unit so far
  for (size_t l = complete.size(); l-- > 0;) {
    if (complete[l].count > 0) runs.push_back(complete[l]);
    std::ranges::sort(runs, {}, &ReadyRange::first);
    for (size_t i = runs.size(); i-- > 1;) {
      if (runs[i - 1].first + runs[i - 1].count != runs[i].first) continue;
      runs[i - 1].count += runs[i].count;
      runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (l > 0 && (runs.size() > 1 || std::ranges::find(begins, l) == begins.end())) continue;
    for (const ReadyRange& run : std::exchange(runs, {})) {
      buckets.push_back({.index = static_cast<int>(buckets.size()), .first = run.first, .count = run.count});
    }
  }
  return buckets;
}

std::vector<BucketRange> BucketsOfLayers(const std::vector<ReadyRange>& parameters,
                                         const std::vector<Bucket>& buckets) {
  std::vector<BucketRange> of_layers;
  for (const ReadyRange& own : parameters) {
    BucketRange& range = of_layers.emplace_back();
    size_t at = own.first;
    while (at < own.first + own.count) {
      const auto with = std::ranges::find_if(buckets, [&](const Bucket& bucket) {
        return bucket.first <= at && at < bucket.first + bucket.count;
      });
      PSRING_CHECK(with != buckets.end());
      const size_t index = static_cast<size_t>(with - buckets.begin());
      PSRING_CHECK(at == own.first || index == range.second);
      if (at == own.first) range.first = index;
      range.second = index + 1;
      at = with->first + with->count;
    }
  }
  return of_layers;
}

std::vector<bool> UsedBesideOthers(const StepUnits& units, const std::vector<BucketRange>& of_layers,
                                   size_t buckets) {
  std::vector<bool> beside(buckets);
  for (size_t unit = 0; unit < units.layers.size(); ++unit) {
    const auto [first, end] = units.buckets[unit];
    for (size_t bucket = first; bucket < end && end - first > 1; ++bucket) beside[bucket] = true;
    for (size_t l = units.layers[unit].first; l < units.layers[unit].end; ++l) {
      for (size_t bucket = of_layers[l].first; bucket < of_layers[l].second; ++bucket) {
        if (bucket < first || bucket >= end) beside[bucket] = true;
      }
    }
  }
  return beside;
}

std::vector<bool> WithTied(const StepUnits& units, const std::vector<Bucket>& buckets,
                           const std::vector<ReadyRange>& tied) {
  std::vector<bool> with(buckets.size());
  for (const auto& [first, end] : units.buckets) {
    const bool has = std::any_of(
        buckets.begin() + static_cast<std::ptrdiff_t>(first),
        buckets.begin() + static_cast<std::ptrdiff_t>(end), [&](const Bucket& bucket) {
          return std::ranges::any_of(tied, [&](const ReadyRange& tensor) {
            return bucket.first < tensor.first + tensor.count && tensor.first < bucket.first + bucket.count;
          });
        });
    for (size_t bucket = first; bucket < end; ++bucket) with[bucket] = has;
  }
  return with;
}

std::vector<Bucket> CutBuckets(const std::vector<Bucket>& buckets, const std::vector<ReadyRange>& complete,
                               const std::vector<LayerRange>& stages, const std::vector<ReadyRange>& alone) {
  // The elements of each stage, in increasing order.
  std::vector<std::pair<ReadyRange, size_t>> owned;
  std::set<size_t> begins;  // where a bucket must not continue
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    for (size_t l = stages[stage].first; l < stages[stage].end; ++l) {
      size_t from = complete[l].first;
      const size_t end = from + complete[l].count;
      for (const ReadyRange& tensor : alone) {
        if (tensor.first < from || tensor.first + tensor.count > end) continue;
        if (from < tensor.first) owned.push_back({{from, tensor.first - from}, stage});
        owned.push_back({tensor, stage});
        from = tensor.first + tensor.count;
        begins.insert({tensor.first, from});
      }
      if (from < end) owned.push_back({{from, end - from}, stage});
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
      if (cut.size() > begin && cut.back().second == stage && !begins.contains(from)) {
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
