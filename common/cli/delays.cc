#include "common/cli/delays.h"

#include <cmath>
#include <numbers>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/random.h"
#include "common/text/translate.h"
#include "common/text/units.h"

namespace psring {
namespace {

constexpr double kMaxMs = 3.6e6;  // an hour per step must be a typing error
constexpr double kMaxSigma = 10;
constexpr double kMaxFactor = 1000;

absl::Status NoTime(const std::string& text, const std::string& why) {
  return InvalidArgument(
      Tr("'$0' is not a time: $1; write none, 6 (ms), exp:20 or lognormal:20:0.5", text, why));
}

// In (0, 1]: its logarithm is finite.
double Uniform(Random& random) { return (static_cast<double>(random.Next() >> 11) + 1) * 0x1p-53; }

// Box & Muller 1958.
double Normal(Random& random) {
  const double radius = std::sqrt(-2 * std::log(Uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * Uniform(random));
}

}  // namespace

double TimeDistribution::mean_ms() const {
  return kind == Kind::kLogNormal ? scale_ms * std::exp(sigma * sigma / 2) : scale_ms;
}

absl::StatusOr<TimeDistribution> ParseTimeDistribution(const std::string& text) {
  TimeDistribution distribution;
  if (text == "none") return distribution;
  std::vector<std::string> parts = absl::StrSplit(text, ':');
  if (parts.front() == "exp" || parts.front() == "lognormal") {
    const bool log_normal = parts.front() == "lognormal";
    distribution.kind =
        log_normal ? TimeDistribution::Kind::kLogNormal : TimeDistribution::Kind::kExponential;
    parts.erase(parts.begin());
    if (parts.size() != (log_normal ? 2u : 1u)) {
      return NoTime(text, log_normal ? "it needs a median and a sigma" : "it needs a mean");
    }
    if (log_normal && (!absl::SimpleAtod(parts[1], &distribution.sigma) ||
                       !(distribution.sigma >= 0 && distribution.sigma <= kMaxSigma))) {
      return NoTime(text, absl::StrCat("sigma is a number from 0 to ", kMaxSigma));
    }
  } else if (parts.size() != 1) {
    return NoTime(text, absl::StrCat("'", parts.front(), "' is neither exp nor lognormal"));
  }
  if (const std::optional<absl::Duration> with_unit = ParseDurationText(parts[0])) {
    distribution.scale_ms = absl::ToDoubleMilliseconds(*with_unit);
  } else if (!absl::SimpleAtod(parts[0], &distribution.scale_ms)) {
    distribution.scale_ms = -1;
  }
  if (!(distribution.scale_ms >= 0 && distribution.scale_ms <= kMaxMs)) {
    return NoTime(text, absl::StrCat("'", parts[0], "' is not a number of ms from 0 to ", kMaxMs));
  }
  return distribution;
}

double DrawMs(const TimeDistribution& distribution, uint64_t seed, TimeUse use, int worker, int64_t step) {
  if (distribution.kind == TimeDistribution::Kind::kConstant) return distribution.scale_ms;
  // One sequence per worker and use; each step has its own generator.
  Random of_worker(seed, static_cast<uint64_t>(use) << 32 | static_cast<uint32_t>(worker));
  Random random(of_worker.Next(), static_cast<uint64_t>(step));
  if (distribution.kind == TimeDistribution::Kind::kExponential) {
    return -distribution.scale_ms * std::log(Uniform(random));
  }
  return distribution.scale_ms * std::exp(distribution.sigma * Normal(random));
}

absl::StatusOr<std::vector<Straggler>> ParseStragglers(const std::string& text) {
  std::vector<Straggler> stragglers;
  if (text == "none") return stragglers;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> halves = absl::StrSplit(part, ':');
    Straggler straggler;
    if (halves.size() != 2 || !absl::SimpleAtoi(halves[0], &straggler.worker) || straggler.worker < 0 ||
        !absl::SimpleAtod(halves[1], &straggler.factor)) {
      return InvalidArgument(
          Tr("'$0' is not WORKER:FACTOR; write 1:3 for worker 1, three times as slow", part));
    }
    if (!(straggler.factor >= 1 && straggler.factor <= kMaxFactor)) {
      return InvalidArgument("'", part, "': a worker can be from 1 to ", kMaxFactor,
                             " times as slow; slow the other workers down instead");
    }
    if (SlownessOf(stragglers, straggler.worker) != 1) {
      return InvalidArgument("worker ", straggler.worker, " is named twice");
    }
    stragglers.push_back(straggler);
  }
  return stragglers;
}

double SlownessOf(const std::vector<Straggler>& stragglers, int worker) {
  for (const Straggler& straggler : stragglers) {
    if (straggler.worker == worker) return straggler.factor;
  }
  return 1;
}

absl::Status CheckStragglers(const std::string& text, int workers) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<Straggler> stragglers, ParseStragglers(text));
  for (const Straggler& straggler : stragglers) {
    if (straggler.worker < workers) continue;
    return InvalidArgument(workers == 1
                               ? absl::StrCat("--straggler ", text,
                                              ": with 1 worker there is only worker 0; give more --workers")
                               : absl::StrCat("--straggler ", text, ": with ", workers,
                                              " workers they are numbered 0 to ", workers - 1,
                                              "; there is no worker ", straggler.worker));
  }
  return absl::OkStatus();
}

ValueCheck TimeDistributionText() { return ParsedBy(ParseTimeDistribution); }

ValueCheck VirtualTimeText() {
  return [](const std::string& text) {
    if (absl::StartsWith(text, kTracePrefix)) {
      return std::string(text.size() > std::string(kTracePrefix).size() ? "" : "trace: needs a run's folder");
    }
    return std::string(ParseTimeDistribution(text).status().message());
  };
}

ValueCheck StragglersText() { return ParsedBy(ParseStragglers); }

}  // namespace psring
