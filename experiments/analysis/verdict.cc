#include "experiments/analysis/verdict.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/analysis/findings.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/analysis/table.h"
#include "experiments/design/plan.h"

namespace psring {
namespace {

constexpr double kClearlyLonger = 1.05;  // exchanges in theory
constexpr size_t kMaxFacts = 3;

bool SameUpdates(const SummaryRow& row) {
  const StrategyRow& strategy = row.configuration.strategy;
  return strategy.communicates() && strategy.synchronous && !strategy.drops_gradients;
}

bool IsTimed(const SummaryRow& row, int workers) {
  return row.measured_cost && row.configuration.workers == workers && !row.round_samples_per_s.empty() &&
         row.configuration.strategy.communicates() &&
         !(row.link.bits_per_s > 0 && row.configuration.processes() == 1);  // it uses no link
}

std::string TimeText(double ms) { return Fixed(ms, ms < 100 ? 1 : 0); }

// Why `best` is faster than `rival`; empty: not known.
std::string Reason(const SummaryRow& best, const SummaryRow& rival) {
  if (best.configuration.simulated() || best.link.bits_per_s <= 0) return "";
  if (!best.predicted_comm_ms || !rival.predicted_comm_ms) return "";
  const std::string of_best = TimeText(*best.predicted_comm_ms),
                    of_rival = TimeText(*rival.predicted_comm_ms);
  const std::string name = NameWithServers(best), other = NameWithServers(rival);
  if (*rival.predicted_comm_ms <= kClearlyLonger * *best.predicted_comm_ms) {
    return Tr(
        "Theory, which excludes processor time, does not predict that $0 is faster than $1: an exchange "
        "takes $2 and $3 ms.",
        name, other, of_best, of_rival);
  }
  const std::optional<double> best_carries = GradientsThroughLink(best),
                              rival_carries = GradientsThroughLink(rival);
  if (best_carries && rival_carries && *rival_carries > kClearlyLonger * *best_carries) {
    const std::string carries = ThreeDigits(*best_carries);
    return Tr(carries == "1" ? TrNoop("$0 is faster: with $1 workers, the busiest link carries $2 gradient "
                                      "with $0, and $3 with $4.")
                             : TrNoop("$0 is faster: with $1 workers, the busiest link carries $2 gradients "
                                      "with $0, and $3 with $4."),
              name, best.configuration.workers, carries, ThreeDigits(*rival_carries),
              WayText(rival, TrNoop("$0 ($1)")));
  }
  return Tr("$0 is faster because an exchange takes $1 ms in theory, and with $2 $3 ms.", name, of_best,
            other, of_rival);
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

// "2.70 times as fast as ps-sync (95%: 2.66 to 2.75)".
std::string FactorText(const PairedComparison& pair, const std::string& than) {
  const std::string text = Tr("$0 times as fast as $1", Fixed(pair.ratio), than);
  if (!pair.interval) return text;
  return text + Tr(" (95%: $0 to $1)", Fixed(pair.interval->low), Fixed(pair.interval->high));
}

bool HasRate(const SummaryRow& row) { return !row.configuration.simulated() && row.link.bits_per_s > 0; }

// "1 Gbit/s".
std::string NetworkText(const SummaryRow& row) {
  if (row.configuration.simulated()) return Tr("the simulated network");
  if (row.configuration.on_machines) return Tr("the network of these machines");
  if (!HasRate(row)) return NameLink(row.link);
  const std::string rate = BitRateText(row.link.bits_per_s);
  return row.link.latency_s > 0 ? rate + Tr(" with $0 ms of latency", row.link.latency_s * 1e3) : rate;
}

// A number of workers that begins a sentence: "Four".
std::string CountAtStart(int workers) {
  constexpr std::array kWords = {"Two",   "Three", "Four", "Five",   "Six",   "Seven",
                                 "Eight", "Nine",  "Ten",  "Eleven", "Twelve"};
  const int place = workers - 2;
  const bool has_word = place >= 0 && place < static_cast<int>(kWords.size());
  return has_word && CurrentLanguage() == Language::kEnglish ? kWords[place] : absl::StrCat(workers);
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
  return Tr("see its accuracy ($0, $1 $2; $3 workers, $4)", Fixed(*late->test_accuracy, 3),
            NameWithServers(best), Fixed(*prompt->test_accuracy, 3), late->configuration.workers, seeds);
}

// The fact that a strategy with other updates is shown to be faster than what is recommended: one process, or
// the strategy to use if the model is distributed. Empty: none is.
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
    const bool one = others[i] == against.single;
    return Tr("$0, $1, but its gradients are late: $2", RankedName(*fastest),
              FactorText(pairs[i], one ? Tr("one process") : NameWithServers(*others[i])),
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

// The verdict's line. `names`: the recommended strategies; empty: none is shown to be faster.
std::string LineOf(const std::string& names, const std::vector<const SummaryRow*>& candidates,
                   const AgainstOne& against) {
  const SummaryRow& best = *candidates.front();
  const int workers = best.configuration.workers;
  const std::string network = NetworkText(best), unit = UnitOf(best), name = NameWithServers(best),
                    speed = WithThousands(best.mean.samples_per_s);
  const std::string one = against.single == nullptr ? "" : WithThousands(against.single->mean.samples_per_s);
  if (against.slower()) {
    return Tr("Use one process: $0 $1/s. $2 workers on $3: $4 ($5).", one, unit, CountAtStart(workers),
              network, speed, name);
  }
  if (!against.distribute) {
    return Tr(HasRate(best) ? TrNoop("Undecided at $0: one process $1 $2/s, $3 workers $4 ($5).")
                            : TrNoop("Undecided on $0: one process $1 $2/s, $3 workers $4 ($5)."),
              network, one, unit, workers, speed, name);
  }
  if (names.empty() && against.single == nullptr) {
    return Tr("No winner among $0 with $1 workers on $2.", absl::StrJoin(NamesOf(candidates), Tr(", ")),
              workers, network);
  }
  const std::string use =
      names.empty() ? Tr("Use $0 workers: $1 $2/s on $3 ($4).", workers, speed, unit, network, name)
                    : Tr("Use $0 with $1 workers: $2 $3/s on $4.", names, workers, speed, unit, network);
  return against.single == nullptr ? use : absl::StrCat(use, SentenceGap(), Tr("One process: $0.", one));
}

// How the fastest of `candidates` compares with the next one; or why none is shown to be faster.
VerdictFact RankingFact(const std::string& names, const std::vector<const SummaryRow*>& candidates,
                        const Ranking& ranking, bool distribute) {
  if (ranking.next != nullptr) {
    return {Tr(distribute ? TrNoop("fastest strategy") : TrNoop("if you must")),
            Tr("$0, $1", names, FactorText(ranking.pair, NameWithServers(*ranking.next)))};
  }
  const SummaryRow& best = *candidates.front();
  return {Tr("no winner"),
          Tr("$0: $1", absl::StrJoin(NamesOf(candidates), Tr(", ")),
             best.round_samples_per_s.size() < 2
                 ? Tr("one round gives no interval; run at least three (--repeats)")
                 : Tr("the differences are below 2% or too uncertain for $0", RoundsText(best.rounds)))};
}

// The fastest layout that copies the model beside the fastest that cuts it into stages or, without `stages`,
// only divides its matrices or sequences; empty: one of them is missing.
std::string CopyOrCutOf(const std::vector<const SummaryRow*>& candidates, bool stages) {
  const auto of = [](const SummaryRow* row) -> const TrainingOptions& { return row->configuration.training; };
  const auto copy = std::ranges::find_if(candidates, [&](auto* row) { return ReplicaRanks(of(row)) == 1; });
  const auto cut = std::ranges::find_if(
      candidates, [&](auto* row) { return (of(row).pp > 1) == stages && ReplicaRanks(of(row)) > 1; });
  return cut == candidates.end() || copy == candidates.end() ? "" : CopyOrCut(**copy, **cut);
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
  const AgainstOne against = CompareWithOne(rows, *candidates.front());
  if (!against.distribute)
    return against.slower() ? std::vector<std::string>{"single"} : std::vector<std::string>();
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

RunVerdict VerdictOf(const std::vector<SummaryRow>& rows, const std::optional<Wires>& wires) {
  const std::set<int> counts = CountsWithChoice(rows);
  if (counts.empty()) return {};
  const auto [candidates, most_workers] = ComparedCandidates(rows, counts);
  if (candidates.empty()) {
    return {.line = Tr("No winner: the workers share this machine's cores, and no link limits the step.")};
  }
  const SummaryRow& best = *candidates.front();
  const AgainstOne against = CompareWithOne(rows, best);
  const Ranking ranking = Rank(candidates);
  const std::string names = ranking.next == nullptr ? "" : absl::StrJoin(NamesOf(ranking.level), Tr(" or "));
  std::vector<std::string> line = {LineOf(names, candidates, against)};
  if (std::ranges::any_of(RowsOfVerdict(rows), [&](size_t row) { return !rows[row].valid; })) {
    line.insert(line.begin(), Tr("Not valid."));
  }
  if (best.TimeBasis() == Basis::kSimulated) line.push_back(Tr("Simulated."));
  RunVerdict verdict{.line = absl::StrJoin(line, SentenceGap())};

  std::vector<VerdictFact>& facts = verdict.facts;
  if (!against.distribute && wires) {
    const UsefulLink link = WorthDistributing(rows, best, *against.single, *wires);
    facts.push_back({Tr("worth distributing"), link.text});
    if (!link.rate.empty()) verdict.next_flags.push_back(absl::StrCat("--link ", link.rate));
  }
  facts.push_back(RankingFact(names, candidates, ranking, against.distribute));
  facts.push_back({Tr("servers' wire"), ServerWireText(candidates)});
  facts.push_back({Tr("copy or cut"), CopyOrCutOf(candidates, /*stages=*/true)});
  facts.push_back({Tr("copy or divide"), CopyOrCutOf(candidates, /*stages=*/false)});
  if (against.single != nullptr && !against.slower()) {
    facts.push_back({Tr("gain"), FactorText(against.pair, Tr("one process"))});
  }
  if (most_workers != nullptr) {
    facts.push_back(
        {Tr("more workers"), Tr("$0 are slower: $1 $2/s ($3), not $4", most_workers->configuration.workers,
                                WithThousands(most_workers->mean.samples_per_s), UnitOf(best),
                                NameWithServers(*most_workers), WithThousands(best.mean.samples_per_s))});
  }
  if (const int most = *counts.rbegin(); most > (most_workers ? *most_workers : best).configuration.workers)
    facts.push_back({Tr("more workers"), Tr("$0 share cores, so their times are not compared", most)});
  facts.push_back({Tr("not comparable"), AsynchronousIsFaster(rows, best, against)});
  std::erase_if(facts, [](const VerdictFact& fact) { return fact.text.empty(); });
  while (facts.size() > kMaxFacts) {
    verdict.details.insert(verdict.details.begin(), Tr("$0: $1.", facts.back().label, facts.back().text));
    facts.pop_back();
  }
  if (ranking.next != nullptr) verdict.details.push_back(Reason(best, *ranking.next));
  if (ranking.level.size() > 1) {
    verdict.details.push_back(
        Tr("No difference between $0 is shown.", absl::StrJoin(NamesOf(ranking.level), Tr(" and "))));
  }
  std::erase(verdict.details, "");
  const bool undecided = !against.distribute && !against.slower();
  if ((ranking.next == nullptr || undecided) && best.rounds > 0) {
    verdict.next_flags.push_back(absl::StrCat("--repeats ", std::max(5, 3 * best.rounds)));
  }
  return verdict;
}

std::string FactsText(const RunVerdict& verdict) {
  size_t columns = 0;
  for (const VerdictFact& fact : verdict.facts) columns = std::max(columns, TextColumns(fact.label));
  std::string text;
  for (const VerdictFact& fact : verdict.facts) {
    text += Wrap(fact.text, absl::StrCat("  ", PadRight(fact.label, columns), "   "));
  }
  return text;
}

}  // namespace psring
