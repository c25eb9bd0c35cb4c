#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/io/untrusted_json.h"
#include "common/measure/arrivals.h"
#include "experiments/page/digests.h"
#include "ps_server/consistency/consistency.h"

namespace psring {
namespace {

using Json = UntrustedJson;

constexpr size_t kMaxPoints = 150;        // of a curve
constexpr size_t kLongestLine = 1 << 20;  // a step with 1,000 buckets has 150 KB

// Rank 0's steps of one launch.
struct Launch {
  std::string strategy, part;
  int64_t workers;
  double repeat;
  auto operator<=>(const Launch&) const = default;
};

struct LossPoint {
  double samples, begin_ns, loss;
};

// At most kMaxPoints points, each the mean of neighboring steps.
Json Averaged(const std::vector<LossPoint>& points) {
  const size_t group = (points.size() + kMaxPoints - 1) / kMaxPoints;
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
  std::map<Launch, std::vector<LossPoint>> losses;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line.size() > kLongestLine) continue;
    const Json step = ParseUntrusted(std::string(line));
    const double workers = NumberAt(step, "workers", 0);
    const double loss = NumberAt(step, "loss", NAN);
    if (NumberAt(step, "rank", -1) != 0 || !(workers >= 1 && workers < 1e6) || !std::isfinite(loss)) continue;
    const Launch launch{TextAt(step, "strategy"), TextAt(step, "part"), static_cast<int64_t>(workers),
                        NumberAt(step, "repeat", 0)};
    auto& points = losses[launch];
    const double before = points.empty() ? 0 : points.back().samples;
    points.push_back({before + NumberAt(step, "samples", 0) * workers, NumberAt(step, "begin_ns", 0), loss});
  }
  Json json = {{"most_points", kMaxPoints}, {"loss", Json::array()}};
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

std::string DigestArrivals(const std::string& name, const std::string& bytes) {
  const absl::StatusOr<Arrivals> arrivals = ArrivalsFromBytes(bytes);
  if (!arrivals.ok() || arrivals->updates.empty() || arrivals->workers < 1) return "";
  const auto consistency = MakeConsistency(arrivals->consistency, arrivals->workers);
  if (!consistency.ok()) return "";

  std::vector<int64_t> reads(arrivals->workers, 0), step(arrivals->workers, 0);  // by worker
  Json pushes = Json::array();
  int64_t updates = 0, most = 0;
  double sum = 0;
  for (const uint16_t worker : arrivals->updates.front()) {
    const int64_t before = (*consistency)->version(), stale = before - reads[worker];
    const Consistency::Decision decision = (*consistency)->OnPush(worker, step[worker]++);
    if (!decision.accept || decision.apply_count != 1) return "";
    if (pushes.size() < kMaxPushes) pushes.push_back({worker, reads[worker], before + 1});
    for (const int reader : decision.may_read) reads[reader] = (*consistency)->version();
    ++updates;
    sum += static_cast<double>(stale);
    most = std::max(most, stale);
  }
  if (updates == 0) return "";
  return DumpUntrusted({{"name", name},
                        {"workers", arrivals->workers},
                        {"rule", arrivals->consistency},
                        {"updates", updates},
                        {"staleness_mean", sum / static_cast<double>(updates)},
                        {"staleness_max", most},
                        {"pushes", pushes}});
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
