#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "experiments/report/digests.h"
#include "experiments/runs/untrusted_json.h"

namespace psring {
namespace {

using Json = UntrustedJson;

constexpr size_t kMostPoints = 150;  // of a curve

// Rank 0's steps of one launch.
struct Launch {
  std::string strategy, part;
  int64_t workers, repeat;
  auto operator<=>(const Launch&) const = default;
};

struct LossPoint {
  double samples, begin_ns, loss;
};

// Averages neighbouring steps to at most kMostPoints.
Json Averaged(const std::vector<LossPoint>& points) {
  const size_t group = (points.size() + kMostPoints - 1) / kMostPoints;
  Json list = Json::array();
  for (size_t begin = 0; begin < points.size(); begin += group) {
    const size_t end = std::min(begin + group, points.size());
    LossPoint sum{0, 0, 0};
    for (size_t i = begin; i < end; ++i) {
      sum.samples += points[i].samples;
      sum.begin_ns += points[i].begin_ns - points.front().begin_ns;
      sum.loss += points[i].loss;
    }
    const double count = static_cast<double>(end - begin);
    list.push_back({sum.samples / count, sum.begin_ns / count * 1e-9, sum.loss / count});
  }
  return list;
}

}  // namespace

std::string DigestSteps(const std::string& text) {
  std::map<std::pair<std::string, int64_t>, std::map<int64_t, int64_t>> staleness;
  std::map<Launch, std::vector<LossPoint>> losses;
  int64_t lines = 0, skipped = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    ++lines;
    const Json step = ParseUntrusted(std::string(line));
    const double workers = NumberAt(step, "workers", 0), rank = NumberAt(step, "rank", -1);
    if (step.is_discarded() || !step.is_object() || !(workers >= 1) || !(workers < 1e6) || !(rank >= 0)) {
      ++skipped;
      continue;
    }
    const std::string strategy = TextAt(step, "strategy");
    const Launch launch{strategy, TextAt(step, "part"), static_cast<int64_t>(workers),
                        static_cast<int64_t>(NumberAt(step, "repeat", 0))};
    const double loss = NumberAt(step, "loss", NAN);
    if (rank == 0 && std::isfinite(loss)) {
      auto& points = losses[launch];
      const double before = points.empty() ? 0 : points.back().samples;
      points.push_back(
          {before + NumberAt(step, "samples", 0) * workers, NumberAt(step, "begin_ns", 0), loss});
    }
    const auto buckets = step.find("buckets");
    if (buckets == step.end() || !buckets->is_array()) continue;
    for (const Json& bucket : *buckets) {
      const double stale = NumberAt(bucket, "staleness", -1);
      if (stale >= 0 && stale < 1e9) ++staleness[{strategy, launch.workers}][static_cast<int64_t>(stale)];
    }
  }
  Json json = {{"lines", lines},
               {"skipped", skipped},
               {"most_points", kMostPoints},
               {"staleness", Json::array()},
               {"loss", Json::array()}};
  for (const auto& [key, counts] : staleness) {
    Json histogram = Json::object();
    for (const auto& [stale, count] : counts) histogram[absl::StrCat(stale)] = count;
    json["staleness"].push_back({{"strategy", key.first}, {"workers", key.second}, {"counts", histogram}});
  }
  // Cost rounds repeat the same first steps, so one represents all.
  for (const auto& [launch, points] : losses) {
    if (launch.part == "cost" && launch.repeat > 0) continue;
    json["loss"].push_back({{"strategy", launch.strategy},
                            {"workers", launch.workers},
                            {"part", launch.part},
                            {"repeat", launch.repeat},
                            {"points", Averaged(points)}});
  }
  return DumpUntrusted(json);
}

std::string ThinCsv(const std::string& text, size_t lines) {
  const std::vector<absl::string_view> all = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (all.size() <= lines || lines < 3) return text;
  std::vector<absl::string_view> kept = {all.front()};
  const size_t body = all.size() - 1, keep = lines - 1;
  for (size_t i = 0; i < keep; ++i) kept.push_back(all[1 + i * (body - 1) / (keep - 1)]);
  return absl::StrCat(absl::StrJoin(kept, "\n"), "\n");
}

}  // namespace psring
