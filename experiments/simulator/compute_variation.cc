#include "experiments/simulator/compute_variation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/io/csv.h"
#include "common/io/files.h"

namespace psring {
namespace {

constexpr double kLeastDraw = 0.01;  // minimum of a normal draw
constexpr double kMaxCv = 2;
constexpr double kMaxTime = 1e18;  // in any unit; the sum is finite

double NormalBelow(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }
double NormalDensity(double z) { return std::exp(-z * z / 2) / std::sqrt(2 * M_PI); }

// Mean 1; `variance` of the logarithm.
double LogNormalDraw(double variance, double normal) {
  return std::exp(std::sqrt(variance) * normal - variance / 2);
}

absl::StatusOr<ComputeVariation> OfKind(ComputeVariation::Kind kind, const std::string& text) {
  double cv = 0;
  if (!absl::SimpleAtod(text, &cv) || !(cv > 0 && cv <= kMaxCv)) {
    return absl::InvalidArgumentError(absl::StrCat("the coefficient of variation '", text,
                                                   "' must be above 0 and at most ", kMaxCv,
                                                   "; write normal:0.05"));
  }
  return ComputeVariation{.kind = kind, .cv = cv};
}

// Of measured times, one on each line.
absl::StatusOr<ComputeVariation> VariationIn(const std::string& text) {
  CsvReader file(text);
  std::vector<double> times;
  while (true) {
    PSRING_ASSIGN_OR_RETURN(const bool any, file.NextRow());
    if (!any) return VariationOfSamples(std::move(times));
    if (file.fields().size() != 1) return file.Error("it must be one time, with a decimal point");
    PSRING_ASSIGN_OR_RETURN(times.emplace_back(), file.NumberIn("time", file.fields().front(), 0, kMaxTime));
  }
}

}  // namespace

absl::StatusOr<ComputeVariation> VariationOfSamples(std::vector<double> times) {
  if (times.size() < 2) return absl::InvalidArgumentError("at least 2 measured times are needed");
  for (const double time : times) {
    if (!(time > 0 && time <= kMaxTime)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the measured time ", time, " is not above 0 and at most ", kMaxTime));
    }
  }
  const double mean = std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  for (double& time : times) time /= mean;
  std::sort(times.begin(), times.end());
  return ComputeVariation{.kind = ComputeVariation::Kind::kSamples, .samples = std::move(times)};
}

absl::StatusOr<ComputeVariation> ParseComputeVariation(const std::string& text) {
  if (text == "none") return ComputeVariation();
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  if (parts.first == "normal") return OfKind(ComputeVariation::Kind::kNormal, parts.second);
  if (parts.first == "lognormal") return OfKind(ComputeVariation::Kind::kLogNormal, parts.second);
  if (text.find('/') == std::string::npos && text.find('.') == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text,
        "' is not a variation; use none, normal:CV, lognormal:CV or a file of times (./times.txt)"));
  }
  PSRING_ASSIGN_OR_RETURN(const std::string lines, ReadFile(text));
  absl::StatusOr<ComputeVariation> variation = VariationIn(lines);
  if (variation.ok()) return variation;
  return absl::InvalidArgumentError(absl::StrCat(text, ": ", variation.status().message()));
}

absl::StatusOr<Delays> ParseDelays(const std::string& straggler, const std::string& jitter_ms, uint64_t seed,
                                   int workers) {
  Delays delays{.seed = seed};
  PSRING_ASSIGN_OR_RETURN(const std::vector<Straggler> stragglers, ParseStragglers(straggler));
  PSRING_ASSIGN_OR_RETURN(delays.jitter, ParseTimeDistribution(jitter_ms));
  for (int worker = 0; worker < workers && !stragglers.empty(); ++worker) {
    delays.slowness.push_back(SlownessOf(stragglers, worker));
  }
  return delays;
}

double Draw(const ComputeVariation& variation, double normal, double uniform) {
  switch (variation.kind) {
    case ComputeVariation::Kind::kNone:
      return 1;
    case ComputeVariation::Kind::kNormal:
      return std::max(kLeastDraw, 1 + variation.cv * normal);
    case ComputeVariation::Kind::kLogNormal:
      return LogNormalDraw(std::log1p(variation.cv * variation.cv), normal);
    case ComputeVariation::Kind::kSamples: {
      const auto count = static_cast<double>(variation.samples.size());
      return variation.samples[static_cast<size_t>(std::min(uniform * count, count - 1))];
    }
  }
  return 1;
}

double ExpectedMaximum(const ComputeVariation& variation, int count) {
  if (!variation.any() || count <= 1) return 1;
  if (variation.kind == ComputeVariation::Kind::kSamples) {
    // The largest of `count` draws is at most sample i (of m, ascending) with probability (i / m)^count.
    const auto m = static_cast<double>(variation.samples.size());
    double sum = 0;
    for (size_t i = 0; i < variation.samples.size(); ++i) {
      sum += variation.samples[i] *
             (std::pow(static_cast<double>(i + 1) / m, count) - std::pow(static_cast<double>(i) / m, count));
    }
    return sum;
  }
  // Simpson's rule over the normal variate: its density times N F^(N-1).
  constexpr double kFrom = -9, kTo = 12;
  constexpr int kSteps = 8400;
  const double width = (kTo - kFrom) / kSteps;
  double sum = 0;
  for (int i = 0; i <= kSteps; ++i) {
    const double z = kFrom + width * i;
    const double weight = i == 0 || i == kSteps ? 1 : i % 2 == 1 ? 4 : 2;
    sum += weight * Draw(variation, z, 0.5) * count * NormalDensity(z) * std::pow(NormalBelow(z), count - 1);
  }
  return std::max(1.0, sum * width / 3);
}

double RandomDurations::Uniform() { return (static_cast<double>(generator_.Next() >> 11) + 0.5) * 0x1p-53; }
double RandomDurations::Normal() {
  return std::sqrt(-2 * std::log(Uniform())) * std::cos(2 * M_PI * Uniform());
}
double RandomDurations::Exponential(double mean) { return -mean * std::log(Uniform()); }
double RandomDurations::LogNormal(double cv) { return LogNormalDraw(std::log(1 + cv * cv), Normal()); }
double RandomDurations::Varied(const ComputeVariation& variation) {
  const double normal = Normal();
  return Draw(variation, normal, Uniform());
}

}  // namespace psring
