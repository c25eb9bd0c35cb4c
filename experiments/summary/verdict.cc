#include "experiments/summary/verdict.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "experiments/plan/estimate.h"
#include "experiments/plan/plan_text.h"
#include "experiments/summary/row_queries.h"
#include "experiments/summary/table.h"
#include "experiments/texts/findings.h"
#include "experiments/texts/verdict.h"

namespace psring {
namespace {

constexpr double kLeastRate = 1e5, kMostRate = 1e14;  // bits/s
constexpr double kClearlyLonger = 1.05;               // exchanges in theory

bool SameUpdates(const SummaryRow& row) {
  const StrategyInfo& strategy = row.configuration.strategy;
  return strategy.communicates() && strategy.synchronous && !strategy.drops_gradients;
}

bool IsTimed(const SummaryRow& row, int workers) {
  return row.measured_cost && row.configuration.workers == workers && !row.round_samples_per_s.empty() &&
         row.configuration.strategy.communicates() &&
         !(row.link.bits_per_s > 0 && row.configuration.processes() == 1);  // it uses no link
}

// "2.9 Gbit/s"; two digits, rounded up, because it is the least rate.
std::string RateText(double bits_per_s, Language language) {
  const bool giga = bits_per_s >= 1e9;
  const double value = bits_per_s / (giga ? 1e9 : 1e6);
  const double digit = std::pow(10, std::floor(std::log10(value)) - 1);
  return Say(language, giga ? kGigabits : kMegabits,
             absl::StrFormat("%g", std::ceil(value / digit - 1e-9) * digit));
}

std::string TimeText(double ms) { return absl::StrFormat("%.*f", ms < 100 ? 1 : 0, ms); }

// Why `best` is faster than `rival`.
std::string Reason(const SummaryRow& best, const SummaryRow& rival, Language language) {
  if (best.configuration.simulated()) return "";
  if (best.link.bits_per_s <= 0) return In(language, kOneMachineOnly);
  if (!best.predicted_comm_ms || !rival.predicted_comm_ms) return "";
  const std::string of_best = TimeText(*best.predicted_comm_ms),
                    of_rival = TimeText(*rival.predicted_comm_ms);
  const std::string name = NameWithServers(rival, language);
  if (*rival.predicted_comm_ms <= kClearlyLonger * *best.predicted_comm_ms) {
    return Say(language, kTheoryDisagrees, of_best, name, of_rival);
  }
  if (rival.configuration.servers() == 1 && best.configuration.strategy.uses_group) {
    return In(language, kBecauseOneServer);
  }
  return Say(language, kBecauseTheory, of_best, name, of_rival);
}

// Compares `best` with one process; empty without that row.
std::string AgainstSingle(const std::vector<SummaryRow>& rows, const SummaryRow& best,
                          const std::optional<Wires>& wires, Language language) {
  const SummaryRow* single = FindRow(rows, "single", 1);
  if (single == nullptr || !single->measured_cost || single->mean.samples_per_s <= 0) return "";
  const double factor = best.mean.samples_per_s / single->mean.samples_per_s;
  const std::string rate = WithThousands(single->mean.samples_per_s);
  if (factor > 1) {
    return Say(language, kSpeedupOverSingle, rate, absl::StrFormat("%.2f", factor),
               NameWithServers(best, language));
  }
  const int workers = best.configuration.workers;
  const std::optional<double> from =
      wires ? LeastUsefulRate(best, *single, FindRow(rows, "none", workers), *wires) : std::nullopt;
  // Below the rate that was measured, theory has left out what limits this machine.
  const bool helps = from && *from > best.link.bits_per_s;
  return Say(language, helps ? kDistributeFrom : kDoNotDistribute, rate, workers,
             helps ? RateText(*from, language) : "");
}

std::string AsynchronousIsFaster(const std::vector<SummaryRow>& rows, const SummaryRow& best,
                                 Language language) {
  const SummaryRow* fastest = nullptr;
  for (const SummaryRow& row : rows) {
    if (!IsTimed(row, best.configuration.workers) || row.configuration.strategy.synchronous) continue;
    if (row.round_samples_per_s.size() != best.round_samples_per_s.size()) continue;
    if (fastest == nullptr || row.mean.samples_per_s > fastest->mean.samples_per_s) fastest = &row;
  }
  if (fastest == nullptr) return "";
  const PairedComparison pair = ComparePairs(fastest->round_samples_per_s, best.round_samples_per_s);
  if (pair.ratio <= 1 || !ShowDifference({pair}).front()) return "";
  return Say(language, kAsynchronousIsFaster, NameWithServers(*fastest, language),
             absl::StrFormat("%.2f", pair.ratio), NameWithServers(best, language));
}

// The strategies with the same updates, fastest first.
std::vector<const SummaryRow*> Candidates(const std::vector<SummaryRow>& rows, int workers) {
  std::vector<const SummaryRow*> candidates;
  for (const SummaryRow& row : rows) {
    if (IsTimed(row, workers) && SameUpdates(row)) candidates.push_back(&row);
  }
  std::ranges::stable_sort(candidates,
                           [](auto* a, auto* b) { return a->mean.samples_per_s > b->mean.samples_per_s; });
  const auto comparable = [&](const SummaryRow* row) {
    return row->round_samples_per_s.size() == candidates.front()->round_samples_per_s.size();
  };
  std::erase_if(candidates, [&](const SummaryRow* row) { return !comparable(row); });
  return candidates;
}

struct Ranking {
  std::vector<const SummaryRow*> level;  // the fastest, and those not shown to be slower
  const SummaryRow* next = nullptr;      // the fastest of those that are slower, or null
  PairedComparison pair;                 // with `next`
};

// `candidates`: fastest first, at least one.
Ranking Rank(const std::vector<const SummaryRow*>& candidates) {
  const SummaryRow& best = *candidates.front();
  std::vector<PairedComparison> comparisons;
  for (size_t i = 1; i < candidates.size(); ++i) {
    comparisons.push_back(ComparePairs(best.round_samples_per_s, candidates[i]->round_samples_per_s));
  }
  const std::vector<bool> shown = ShowDifference(comparisons);
  Ranking ranking{.level = {&best}};
  for (size_t i = 1; i < candidates.size(); ++i) {
    if (!shown[i - 1]) {
      ranking.level.push_back(candidates[i]);
    } else if (ranking.next == nullptr) {
      ranking.next = candidates[i];
      ranking.pair = comparisons[i - 1];
    }
  }
  return ranking;
}

std::vector<std::string> NamesOf(const std::vector<const SummaryRow*>& rows, Language language) {
  std::vector<std::string> names;
  for (const SummaryRow* row : rows) names.push_back(NameWithServers(*row, language));
  return names;
}

// The sentence that recommends the fastest of `candidates`, or says why it does not.
std::string Choice(const std::vector<const SummaryRow*>& candidates, Language language) {
  const SummaryRow& best = *candidates.front();
  const auto [level_rows, next, pair] = Rank(candidates);
  const std::vector<std::string> level = NamesOf(level_rows, language);
  const std::string link =
      best.configuration.simulated() ? In(language, kVirtualNetwork) : DescribeLink(best.link, language);
  const std::string network = link.substr(0, link.find(" ("));  // without the kind of shaping
  const int workers = best.configuration.workers;
  if (next == nullptr) {
    const bool one_round = best.round_samples_per_s.size() < 2;
    return Say(language, kVerdictNone, Joined(language, NamesOf(candidates, language)), workers, network,
               one_round ? std::string(In(language, kOneRoundOnly))
                         : Say(language, kTooUncertain, RoundsText(best.rounds, language)));
  }
  std::string factor = absl::StrFormat("%.2f", pair.ratio);
  if (pair.interval) {
    factor = Say(language, kBetween, factor, absl::StrFormat("%.2f", pair.interval->low),
                 absl::StrFormat("%.2f", pair.interval->high));
  }
  std::string text = Say(language, kVerdictUse, Joined(language, level, kVerdictOr), factor,
                         NameWithServers(*next, language), workers, network, Reason(best, *next, language));
  if (level.size() > 1) text += Say(language, kVerdictLevel, Joined(language, level, kAnd));
  return text;
}

// The worker counts at which several strategies compute the same updates.
std::vector<int> CountsWithChoice(const std::vector<SummaryRow>& rows) {
  std::vector<int> counts;
  for (const SummaryRow& row : rows) {
    const int workers = row.configuration.workers;
    if (workers > 1 && Candidates(rows, workers).size() > 1) counts.push_back(workers);
  }
  return counts;
}

// Those of the largest of `counts` with meaningful times; empty: there is none.
std::vector<const SummaryRow*> TimedCandidates(const std::vector<SummaryRow>& rows, std::vector<int> counts) {
  const std::vector<int> timed = TimedCounts(rows);
  std::erase_if(counts, [&](int workers) { return std::ranges::find(timed, workers) == timed.end(); });
  if (counts.empty()) return {};
  return Candidates(rows, std::ranges::max(counts));
}

}  // namespace

std::optional<double> LeastUsefulRate(const SummaryRow& row, const SummaryRow& single, const SummaryRow* none,
                                      const Wires& wires) {
  const std::optional<Scheme> scheme = SchemeOf(row.configuration.strategy);
  const bool has_links = row.link.bits_per_s > 0 && wires.medium_bytes_per_s == 0 && wires.bytes_per_s > 0;
  if (!scheme || *scheme == Scheme::kNone || !has_links || single.mean.samples_per_s <= 0)
    return std::nullopt;
  const CommPattern pattern = PatternOf(row.configuration, *scheme);
  std::vector<double> buckets;
  for (const int64_t elements : row.sample.bucket_elements) {
    buckets.push_back(ExchangeBytes(row.configuration, elements));
  }
  if (buckets.empty()) return std::nullopt;

  const double equal_ms = row.mean.samples_per_s * row.mean.step_ms / single.mean.samples_per_s;
  const double allowed_s = 1e-3 * (equal_ms - (none != nullptr ? none->mean.step_ms : row.mean.compute_ms));
  const double usable_share = std::min(1.0, 8 * wires.bytes_per_s / row.link.bits_per_s);
  const auto exposed_s = [&](double bits_per_s) {
    Wires faster = WiresOf(row, wires);
    faster.bytes_per_s = usable_share * bits_per_s / 8;
    faster.burst_bytes = 0;
    const std::vector<double>& ready_ms = row.mean.bucket_ready_ms;
    if (scheme->kind != Scheme::Kind::kAllReduce || !row.mean.computed_ms ||
        ready_ms.size() != buckets.size()) {
      return ExchangeSeconds(pattern, buckets, faster);
    }
    std::vector<double> ready_s, cost_s;
    for (size_t b = 0; b < buckets.size(); ++b) {
      ready_s.push_back(1e-3 * ready_ms[b]);
      cost_s.push_back(ExchangeSeconds(pattern, {buckets[b]}, faster));
    }
    return OverlapBuckets(ready_s, cost_s, 1e-3 * *row.mean.computed_ms).exposed;
  };
  double too_low = kLeastRate, enough = kMostRate;
  if (exposed_s(enough) > allowed_s) return std::nullopt;
  while (enough > 1.001 * too_low) {
    const double rate = std::sqrt(too_low * enough);
    (exposed_s(rate) > allowed_s ? too_low : enough) = rate;
  }
  return enough;
}

std::vector<std::string> Recommended(const std::vector<SummaryRow>& rows) {
  const std::vector<const SummaryRow*> candidates = TimedCandidates(rows, CountsWithChoice(rows));
  if (candidates.empty()) return {};
  const Ranking ranking = Rank(candidates);
  return ranking.next == nullptr ? std::vector<std::string>() : NamesOf(ranking.level, Language::kEnglish);
}

std::string Verdict(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires,
                    Language language) {
  const std::vector<int> counts = CountsWithChoice(rows);
  if (counts.empty()) return "";
  const std::vector<const SummaryRow*> candidates = TimedCandidates(rows, counts);
  if (candidates.empty()) return In(language, kVerdictCrowded);
  const SummaryRow& best = *candidates.front();
  std::vector<std::string> sentences = {Choice(candidates, language),
                                        AgainstSingle(rows, best, wires, language),
                                        AsynchronousIsFaster(rows, best, language)};
  if (best.TimeBasis() == Basis::kSimulated) sentences.push_back(In(language, kVerdictSimulated));
  if (std::ranges::any_of(candidates, [](const SummaryRow* row) { return !row->valid; })) {
    sentences.push_back(In(language, kVerdictDisturbed));
  }
  std::erase(sentences, "");
  return absl::StrJoin(sentences, language == Language::kChinese ? "" : " ");
}

}  // namespace psring
