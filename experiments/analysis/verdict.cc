#include "experiments/analysis/verdict.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/text/translate.h"
#include "experiments/analysis/findings.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/analysis/table.h"
#include "experiments/design/plan_text.h"

namespace psring {
namespace {

constexpr double kClearlyLonger = 1.05;  // exchanges in theory

bool SameUpdates(const SummaryRow& row) {
  const StrategyRow& strategy = row.configuration.strategy;
  return strategy.communicates() && strategy.synchronous && !strategy.drops_gradients;
}

bool IsTimed(const SummaryRow& row, int workers) {
  return row.measured_cost && row.configuration.workers == workers && !row.round_samples_per_s.empty() &&
         row.configuration.strategy.communicates() &&
         !(row.link.bits_per_s > 0 && row.configuration.processes() == 1);  // it uses no link
}

std::string TimeText(double ms) { return absl::StrFormat("%.*f", ms < 100 ? 1 : 0, ms); }

// Why `best` is faster than `rival`.
std::string Reason(const SummaryRow& best, const SummaryRow& rival) {
  if (best.configuration.simulated()) return "";
  if (best.link.bits_per_s <= 0)
    return Tr("; this compares programs and processor time on one machine, not networks");
  if (!best.predicted_comm_ms || !rival.predicted_comm_ms) return "";
  const std::string of_best = TimeText(*best.predicted_comm_ms),
                    of_rival = TimeText(*rival.predicted_comm_ms);
  const std::string name = NameWithServers(rival);
  if (*rival.predicted_comm_ms <= kClearlyLonger * *best.predicted_comm_ms) {
    return Tr(
        "; theory, which excludes processor time, predicts no such difference ($0 ms, and $2 ms with $1)",
        of_best, name, of_rival);
  }
  const std::optional<double> best_carries = GradientsThroughLink(best),
                              rival_carries = GradientsThroughLink(rival);
  if (best_carries && rival_carries && *rival_carries > kClearlyLonger * *best_carries) {
    return Tr(", because the busiest link carries $0 gradients one after another with $1, and $2 with $3",
              absl::StrFormat("%.3g", *rival_carries), WayText(rival, TrNoop("$0 ($1)")),
              absl::StrFormat("%.3g", *best_carries), WayText(best, TrNoop("$0 ($1)")));
  }
  return Tr(", because an exchange takes $0 ms in theory, and with $1 $2 ms", of_best, name, of_rival);
}

// How the workers of `best` compare with one process.
struct AgainstOne {
  const SummaryRow* single = nullptr;  // null: it was not measured
  PairedComparison pair;               // `best` / `single`
  bool distribute = true;              // false: the workers are slower, or not shown to be faster
  bool shown = false;                  // a difference

  bool slower() const { return !distribute && pair.ratio < 1 && (shown || !pair.interval); }
};

AgainstOne CompareWithOne(const std::vector<SummaryRow>& rows, const SummaryRow& best) {
  AgainstOne against{.single = FindRow(rows, "single", 1)};
  if (against.single != nullptr &&
      (!against.single->measured_cost || against.single->mean.samples_per_s <= 0))
    against.single = nullptr;
  if (against.single == nullptr) return against;
  const SummaryRow& single = *against.single;
  if (single.round_samples_per_s.size() == best.round_samples_per_s.size()) {
    against.pair = ComparePairs(best.round_samples_per_s, single.round_samples_per_s);
  } else {
    against.pair.ratio = best.mean.samples_per_s / single.mean.samples_per_s;
  }
  against.shown = ShowDifference({against.pair}).front();
  // One round shows nothing, but is all that is known.
  against.distribute = against.pair.ratio > 1 && (against.shown || !against.pair.interval);
  return against;
}

std::string FactorText(const PairedComparison& pair) {
  std::string ratio = absl::StrFormat("%.2f", pair.ratio);
  if (!pair.interval) return ratio;
  return Tr("$0 ($1 to $2)", ratio, absl::StrFormat("%.2f", pair.interval->low),
            absl::StrFormat("%.2f", pair.interval->high));
}

std::string NetworkText(const SummaryRow& row) {
  if (row.configuration.simulated()) return Tr("the simulated network");
  return NameLink(row.link);
}

// The fastest strategy with other updates and the workers of `best`, or null.
const SummaryRow* FastestOfOtherUpdates(const std::vector<SummaryRow>& rows, const SummaryRow& best) {
  const SummaryRow* fastest = nullptr;
  for (const SummaryRow& row : rows) {
    if (!IsTimed(row, best.configuration.workers) || row.configuration.strategy.synchronous) continue;
    if (row.round_samples_per_s.size() != best.round_samples_per_s.size()) continue;
    if (fastest == nullptr || row.mean.samples_per_s > fastest->mean.samples_per_s) fastest = &row;
  }
  return fastest;
}

// The first sentence if the workers should not be used.
std::string UseOneProcess(const std::vector<SummaryRow>& rows, const SummaryRow& best,
                          const AgainstOne& against) {
  const int workers = best.configuration.workers;
  const bool others = std::ranges::any_of(
      rows, [&](const SummaryRow& row) { return IsTimed(row, workers) && !SameUpdates(row); });
  const std::string strategy =
      Tr(others ? TrNoop("the fastest synchronous strategy, $0") : TrNoop("the fastest strategy, $0"),
         NameWithServers(best));
  const std::string network = NetworkText(best);
  if (!against.slower()) {
    return Tr(
        "Use one process: $1 workers on $2 are not shown to be faster; with $3, they process $0 times its "
        "$4/s.",
        FactorText(against.pair), workers, network, strategy, UnitOf(best));
  }
  return Tr("Use one process: it processes $0 $5/s, but $1 workers on $2 process only $3 with $4.",
            WithThousands(against.single->mean.samples_per_s), workers, network,
            WithThousands(best.mean.samples_per_s), strategy, UnitOf(best));
}

// The accuracies of `row` and of `best`, which updates the weights without delay, with as many workers, or
// with the largest other number of several for which both were trained.
std::string AccuracyText(const std::vector<SummaryRow>& rows, const SummaryRow& row, const SummaryRow& best) {
  const int workers = best.configuration.workers;
  const SummaryRow *late = nullptr, *prompt = nullptr;
  for (const SummaryRow& other : rows) {
    const int count = other.configuration.workers;
    if (other.configuration.strategy.name != row.configuration.strategy.name || count < 2) continue;
    const SummaryRow* same = FindRow(rows, best.configuration.strategy.name, count);
    if (!other.test_accuracy || same == nullptr || !same->test_accuracy) continue;
    const int so_far = late == nullptr ? 0 : late->configuration.workers;
    if (so_far == workers || (count < so_far && count != workers)) continue;
    late = &other;
    prompt = same;
  }
  if (late == nullptr) return Tr("compare accuracy, too");
  const std::string seeds = late->trainings == 1 ? Tr("one seed") : Tr("mean of $0 seeds", late->trainings);
  return Tr("see its accuracy ($0, $1 $2; $3 workers, $4)", absl::StrFormat("%.3f", *late->test_accuracy),
            NameWithServers(best), absl::StrFormat("%.3f", *prompt->test_accuracy),
            late->configuration.workers, seeds);
}

// If a strategy with other updates is shown to be faster than what is recommended: one process, or the
// strategy to use if the model is distributed.
std::string AsynchronousIsFaster(const std::vector<SummaryRow>& rows, const SummaryRow& best,
                                 const AgainstOne& against) {
  const SummaryRow* fastest = FastestOfOtherUpdates(rows, best);
  if (fastest == nullptr) return "";
  std::vector<const SummaryRow*> others = {&best};
  if (!against.distribute) others.insert(others.begin(), against.single);
  std::erase_if(others, [&](const SummaryRow* other) {
    return other->round_samples_per_s.size() != fastest->round_samples_per_s.size();
  });
  std::vector<PairedComparison> pairs;
  for (const SummaryRow* other : others) {
    pairs.push_back(ComparePairs(fastest->round_samples_per_s, other->round_samples_per_s));
  }
  const std::vector<bool> shown = ShowDifference(pairs);
  for (size_t i = 0; i < others.size(); ++i) {
    if (pairs[i].ratio <= 1 || !shown[i]) continue;
    return Tr("$0 is $1 times as fast as $2, but its gradients are late: $3.", RankedName(*fastest),
              FactorText(pairs[i]),
              others[i] == against.single ? Tr("one process") : NameWithServers(*others[i]),
              AccuracyText(rows, *fastest, best));
  }
  return "";
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

std::vector<std::string> NamesOf(const std::vector<const SummaryRow*>& rows) {
  std::vector<std::string> names;
  for (const SummaryRow* row : rows) names.push_back(NameWithServers(*row));
  return names;
}

// The sentence that recommends the fastest of `candidates`, or says why it does not.
std::string Choice(const std::vector<const SummaryRow*>& candidates, bool distribute) {
  const SummaryRow& best = *candidates.front();
  const auto [level_rows, next, pair] = Rank(candidates);
  const std::vector<std::string> level = NamesOf(level_rows);
  const std::string network = NetworkText(best);
  const int workers = best.configuration.workers;
  if (next == nullptr) {
    const bool one_round = best.round_samples_per_s.size() < 2;
    return Tr("None of $0 is shown to be faster with $1 workers on $2: $3.",
              absl::StrJoin(NamesOf(candidates), Tr(", ")), workers, network,
              one_round ? Tr("one round gives no interval; run at least three (--repeats)")
                        : Tr("the differences are below 2% or too uncertain for $0; a longer --time_budget "
                             "gives narrower intervals",
                             RoundsText(best.rounds)));
  }
  const std::string names = absl::StrJoin(level, Tr(" or ")), factor = FactorText(pair),
                    other = NameWithServers(*next), reason = Reason(best, *next);
  std::string text =
      distribute ? Tr("Use $0: $1 times as fast as $2 with $3 workers on $4$5.", names, factor, other,
                      workers, network, reason)
                 : Tr("If you distribute the model anyway, use $0: $1 times as fast as $2 with $3 workers$4.",
                      names, factor, other, workers, reason);
  if (level.size() > 1) text += Tr(" No difference between $0 is shown.", absl::StrJoin(level, Tr(" and ")));
  return text;
}

// The worker counts at which several strategies compute the same updates, ascending.
std::set<int> CountsWithChoice(const std::vector<SummaryRow>& rows) {
  std::set<int> counts;
  for (const SummaryRow& row : rows) {
    const int workers = row.configuration.workers;
    if (workers > 1 && Candidates(rows, workers).size() > 1) counts.insert(workers);
  }
  return counts;
}

bool ShownFaster(const SummaryRow& row, const SummaryRow& than) {
  if (row.round_samples_per_s.size() != than.round_samples_per_s.size()) return false;
  const PairedComparison pair = ComparePairs(row.round_samples_per_s, than.round_samples_per_s);
  return pair.ratio > 1 && ShowDifference({pair}).front();
}

// What is compared: the strategies at the largest of `counts` with meaningful times, or at a smaller one that
// is shown to be faster. Empty: no count has meaningful times.
struct Compared {
  std::vector<const SummaryRow*> candidates;  // fastest first
  const SummaryRow* most_workers = nullptr;   // the fastest with the largest count, if it is slower
};

Compared ComparedCandidates(const std::vector<SummaryRow>& rows, std::set<int> counts) {
  const std::vector<int> timed = TimedCounts(rows);
  std::erase_if(counts, [&](int workers) { return std::ranges::find(timed, workers) == timed.end(); });
  Compared compared;
  for (auto workers = counts.rbegin(); workers != counts.rend(); ++workers) {
    std::vector<const SummaryRow*> candidates = Candidates(rows, *workers);
    if (compared.candidates.empty()) {
      compared.candidates = std::move(candidates);
    } else if (ShownFaster(*candidates.front(), *compared.candidates.front())) {
      if (compared.most_workers == nullptr) compared.most_workers = compared.candidates.front();
      compared.candidates = std::move(candidates);
    }
  }
  return compared;
}

}  // namespace

std::vector<std::string> Recommended(const std::vector<SummaryRow>& rows) {
  const std::vector<const SummaryRow*> candidates =
      ComparedCandidates(rows, CountsWithChoice(rows)).candidates;
  if (candidates.empty()) return {};
  if (!CompareWithOne(rows, *candidates.front()).distribute) return {"single"};
  const Ranking ranking = Rank(candidates);
  return ranking.next == nullptr ? std::vector<std::string>()
                                 : InLanguage(Language::kEnglish, [&] { return NamesOf(ranking.level); });
}

std::vector<size_t> RowsOfVerdict(const std::vector<SummaryRow>& rows) {
  const Compared compared = ComparedCandidates(rows, CountsWithChoice(rows));
  if (compared.candidates.empty()) return {};
  const SummaryRow& best = *compared.candidates.front();
  const AgainstOne against = CompareWithOne(rows, best);
  std::vector<const SummaryRow*> used = compared.candidates;
  for (const SummaryRow* row :
       {compared.most_workers, against.single, FindRow(rows, "none", best.configuration.workers),
        FastestOfOtherUpdates(rows, best)}) {
    used.push_back(row);
  }
  if (!against.distribute) used.push_back(&ComputingRow(rows, best, *against.single));
  std::vector<size_t> places;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (std::ranges::find(used, &rows[i]) != used.end()) places.push_back(i);
  }
  return places;
}

std::string Verdict(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires) {
  const std::set<int> counts = CountsWithChoice(rows);
  if (counts.empty()) return "";
  const auto [candidates, most_workers] = ComparedCandidates(rows, counts);
  if (candidates.empty()) {
    return Tr(
        "No strategy is named: the workers share this machine's cores, and no link limits the step, so their "
        "times do not apply to machines with one core per worker.");
  }
  const SummaryRow& best = *candidates.front();
  const AgainstOne against = CompareWithOne(rows, best);
  std::vector<std::string> sentences;
  if (std::ranges::any_of(RowsOfVerdict(rows), [&](size_t row) { return !rows[row].valid; })) {
    sentences.push_back(Tr("Not valid: other programs disturbed the rows marked !."));
  }
  if (!against.distribute) {
    sentences.push_back(UseOneProcess(rows, best, against));
    if (wires) sentences.push_back(DistributeFrom(rows, best, *against.single, *wires));
  }
  sentences.push_back(Choice(candidates, against.distribute));
  if (against.distribute && against.single != nullptr) {
    sentences.push_back(Tr("$2 is $1 times as fast as one process ($0 $3/s).",
                           WithThousands(against.single->mean.samples_per_s), FactorText(against.pair),
                           NameWithServers(best), UnitOf(best)));
  }
  if (most_workers != nullptr) {
    sentences.push_back(Tr("More workers are slower: $0 process $2 $4/s with $1, instead of $3.",
                           most_workers->configuration.workers, NameWithServers(*most_workers),
                           WithThousands(most_workers->mean.samples_per_s),
                           WithThousands(best.mean.samples_per_s), UnitOf(best)));
  }
  sentences.push_back(AsynchronousIsFaster(rows, best, against));
  if (best.TimeBasis() == Basis::kSimulated) sentences.push_back(Tr("Times are simulated."));
  std::erase(sentences, "");
  return absl::StrJoin(sentences, SentenceGap());
}

}  // namespace psring
