#include "trainer/programs/cuts.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The least value of a division of [0, end) into parts, and where parts but the first begin.
struct Division {
  double value;
  std::vector<size_t> begins;
};

// `with`: the value of a division whose last part is [from, to), if the parts before have the value `before`.
// `too_long`: that no division with this or a longer last part is better than `best`. Of equal ones the one
// with the longest last parts.
Division BestDivision(size_t end, int parts,
                      const std::function<double(double before, size_t from, size_t to)>& with,
                      const std::function<bool(size_t from, size_t to, double best)>& too_long) {
  std::vector<double> value(end + 1, kNever);  // by end of the parts so far
  value[0] = 0;
  std::vector<std::vector<size_t>> begin;  // of the last part, by parts and end
  for (int part = 0; part < parts; ++part) {
    std::vector<double> next(end + 1, kNever);
    begin.emplace_back(end + 1);
    for (size_t to = 1; to <= end; ++to) {
      for (size_t from = to; from-- > 0 && !too_long(from, to, next[to]);) {
        const double divided = value[from] == kNever ? kNever : with(value[from], from, to);
        if (divided == kNever || divided > next[to]) continue;
        next[to] = divided;
        begin.back()[to] = from;
      }
    }
    value = std::move(next);
  }
  Division best{.value = value[end], .begins = {}};
  for (size_t part = begin.size(), to = end; part-- > 1;) {
    to = begin[part][to];
    best.begins.push_back(to);
  }
  std::ranges::reverse(best.begins);
  return best;
}

}  // namespace

absl::Status CheckStageCount(const std::vector<size_t>& points, int stages) {
  if (stages > 1 && points.empty()) {
    return InvalidTr("this model cannot be cut into stages; omit --pp");
  }
  if (stages >= 1 && static_cast<size_t>(stages) <= points.size() + 1) return absl::OkStatus();
  return InvalidTr("this model can be cut into 1 to $0 stages, not $1; give another --pp", points.size() + 1,
                   stages);
}

absl::Status CheckCutPoints(const std::vector<size_t>& points, const std::vector<size_t>& cuts) {
  PSRING_RETURN_IF_ERROR(CheckStageCount(points, cuts.empty() ? 1 : 2));
  if (std::ranges::adjacent_find(cuts, std::greater_equal<>()) == cuts.end() &&
      std::ranges::includes(points, cuts)) {
    return absl::OkStatus();
  }
  return InvalidTr(
      "--cuts $0: the model can be cut before the layers $1; give some of them, in increasing order",
      absl::StrJoin(cuts, ","), absl::StrJoin(points, ","));
}

std::vector<size_t> BalancedCuts(const CutUnits& units, int stages) {
  PSRING_CHECK(CheckStageCount(units.points, stages).ok());
  std::vector<size_t> ends = units.points;
  ends.insert(ends.begin(), 0);
  ends.push_back(units.cost.size());
  // Of the units before each end.
  std::vector<double> costs = {0};
  std::vector<size_t> with_weights = {0};
  for (size_t end = 1; end < ends.size(); ++end) {
    double sum = 0;
    size_t count = 0;
    for (size_t unit = ends[end - 1]; unit < ends[end]; ++unit) {
      sum += units.cost[unit];
      count += units.weights.empty() || units.weights[unit] ? 1 : 0;
    }
    costs.push_back(costs.back() + sum);
    with_weights.push_back(with_weights.back() + count);
  }
  bool need_weights = true;  // all stages
  const auto cost = [&](size_t from, size_t to) { return costs[to] - costs[from]; };
  const auto fits = [&](size_t from, size_t to) {
    return !need_weights || with_weights[to] > with_weights[from];
  };
  const auto largest = [&](double before, size_t from, size_t to) {
    return fits(from, to) ? std::max(before, cost(from, to)) : kNever;
  };
  const auto costs_more = [&](size_t from, size_t to, double best) { return cost(from, to) > best; };
  const size_t end = ends.size() - 1;
  double slowest = BestDivision(end, stages, largest, costs_more).value;
  if (slowest == kNever) {
    need_weights = false;
    slowest = BestDivision(end, stages, largest, costs_more).value;
  }
  const auto crossing = [&](double before, size_t from, size_t to) {
    if (!fits(from, to)) return kNever;
    return before + (from == 0 || units.crossing.empty() ? 0 : units.crossing[from - 1]);
  };
  const double most = slowest + 1e-9 * costs.back();  // sums of equal costs differ by rounding
  std::vector<size_t> cuts = BestDivision(end, stages, crossing, [&](size_t from, size_t to, double) {
                               return cost(from, to) > most;
                             }).begins;
  for (size_t& cut : cuts) cut = ends[cut];
  return cuts;
}

}  // namespace psring
