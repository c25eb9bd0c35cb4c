#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/analysis/table.h"
#include "experiments/analysis/verdict.h"
#include "experiments/design/plan.h"

namespace psring {
namespace {

using Rows = std::vector<const SummaryRow*>;

template <typename Keeps>
Rows Those(const Rows& rows, Keeps keeps) {
  Rows those;
  std::ranges::copy_if(rows, std::back_inserter(those), keeps);
  return those;
}

bool Shares(const SummaryRow* row) { return row->mean.gpus_shared > 0; }

bool HasTimes(const SummaryRow* row) { return !Shares(row); }

std::string MostForeign(const Rows& rows) {
  double most = 0;
  for (const SummaryRow* row : rows) most = std::max(most, row->foreign_cpu_pct);
  return Fixed(most, 0);
}

// Why the times of `rows` are not valid. `all`: the number of rows of the run.
void AddDisturbance(const Rows& rows, size_t all, std::vector<std::string>& why) {
  const Rows gpus = Those(rows, Shares), timed = Those(rows, HasTimes),
             others = Those(rows, [](const SummaryRow*row) { return IsDisturbed(*row); }),
             beside = Those(rows, [](const SummaryRow*row) { return IsBesidePsring(*row); });
  if (!gpus.empty()) {
    why.push_back(Tr("Ranks share a GPU in $0: the run shows that it works, not how fast it is.",
                     NamesOrEveryRow(gpus, all)));
  }
  if (timed.empty()) return;
  why.push_back(Tr("Do not trust the times and speeds of $0. Counted bytes and formulas are not affected.",
                   NamesOrEveryRow(timed, all)));
  if (!others.empty()) {
    const std::string least = Fixed(
                          std::ranges::min(others, {}, &SummaryRow::foreign_cpu_pct)->foreign_cpu_pct, 0),
                      most = MostForeign(others);
    why.push_back(Tr("Other programs used $0% of the processors; the limit is a third.",
                     least == most ? most : Tr("$0 to $1", least, most)));
  }
  std::set<int> processes;
  for (const SummaryRow* row : beside) processes.insert(row->other_psring);
  if (!processes.empty()) {
    why.push_back(Tr("Another psring (process $0) was running.", absl::StrJoin(processes, Tr(", "))));
  }
}

// What limits the use of valid times.
void AddLimits(const std::vector<SummaryRow>& rows, const Rows& all, int cores, int rounds,
               std::vector<std::string>& why) {
  const Rows several = Those(all, [](auto* row) { return row->configuration.workers > 1; });
  const Rows oversubscribed = Those(several, [&](auto* row) {
    return row->configuration.oversubscribed && !NetworkDecides(rows, row->configuration.workers);
  });
  if (!oversubscribed.empty()) {
    why.push_back(
        Tr("Workers share $1 $2 in $0: their times do not apply to machines with one core per worker.",
           NamesOrEveryRow(oversubscribed, rows.size()), cores, cores == 1 ? "core" : "cores"));
  }
  const bool no_links = std::ranges::all_of(several, [](auto* row) {
    return row->link.shaping == Shaping::kNone && !row->configuration.on_machines;
  });
  if (!several.empty() && no_links)
    why.push_back(Tr("All ranks share one machine without links, so the times do not apply to a network."));
  if (rounds == 1) why.push_back(Tr("One round: no intervals."));
}

// Of the row with the fewest; 0: only trainings.
int Rounds(const Rows& rows) {
  int fewest = 0;
  for (const SummaryRow* row : rows) {
    if (!row->round_step_ms.empty() && (fewest == 0 || row->rounds < fewest)) fewest = row->rounds;
  }
  return fewest;
}

Validity Of(const char* state, const char* title, const std::vector<std::string>& why) {
  return {.state = state, .title = Tr(title), .why = absl::StrJoin(why, SentenceGap())};
}

}  // namespace

std::string Validity::Text() const { return absl::StrCat(title, SentenceGap(), why); }

std::optional<Validity> ValidityOf(const std::vector<SummaryRow>& rows, std::optional<int> cores) {
  if (rows.empty()) return std::nullopt;
  Rows all, used, wrong;
  for (const SummaryRow& row : rows) all.push_back(&row);
  for (const size_t place : RowsOfVerdict(rows)) used.push_back(all[place]);
  if (used.empty()) used = all;
  for (const SummaryRow* row : all) {
    if (!row->valid) wrong.push_back(row);
  }
  std::vector<std::string> why;
  if (!std::ranges::all_of(used, &SummaryRow::valid)) {
    AddDisturbance(wrong, all.size(), why);
    if (!std::ranges::all_of(wrong, Shares)) why.push_back(Tr("End these programs first, then run again."));
    return Of("invalid", TrNoop("Not valid."), why);
  }
  if (rows.front().TimeBasis() == Basis::kSimulated) {
    const Configuration& first = rows.front().configuration;
    if (first.scaled()) {
      why.push_back(Tr("Links and computing ran $0 times slower, and times are divided by $0.",
                       first.training.time_scale));
    } else {
      why.push_back(Tr("Times come from a virtual clock; the training and its accuracy are real."));
    }
    return Of("simulated", TrNoop("Simulated."), why);
  }
  if (!cores) {
    why.push_back(
        Tr("One launch: no intervals. Its records do not say where it ran and whether other programs "
           "disturbed it."));
    return Of("limited", TrNoop("Valid with limits."), why);
  }
  const int rounds = Rounds(all);
  AddLimits(rows, all, *cores, rounds, why);
  const bool limited = !why.empty();
  if (!limited) {
    why.push_back(Tr(wrong.empty() ? TrNoop("Rounds: $0. Other programs used at most $1% of the processors.")
                                   : TrNoop("For the rows that the answer uses, rounds: $0; other programs "
                                            "used at most $1% of the processors."),
                     rounds, MostForeign(used)));
  }
  if (!wrong.empty()) {
    AddDisturbance(wrong, all.size(), why);
    return Of("limited", TrNoop("The answer is valid, but other rows are not."), why);
  }
  return limited ? Of("limited", TrNoop("Valid with limits."), why) : Of("valid", TrNoop("Valid."), why);
}

std::string SettingsText(const std::vector<SummaryRow>& rows, std::optional<int> cores) {
  if (rows.empty()) return "";
  const Configuration& configuration = rows.front().configuration;
  std::vector<std::string> parts = {configuration.model.name};
  const int64_t parameters = std::max(rows.front().sample.parameters, configuration.model.parameters);
  if (parameters > 0) parts.push_back(absl::StrCat(MegabytesOf(parameters), " MB"));
  std::set<int> workers;
  double bits_per_s = 0;
  for (const SummaryRow& row : rows) {
    workers.insert(row.configuration.workers);
    bits_per_s = std::max(bits_per_s, row.link.bits_per_s);
  }
  parts.push_back(Tr(*workers.rbegin() == 1 ? TrNoop("$0 worker") : TrNoop("$0 workers"),
                     absl::StrJoin(workers, Tr(", "))));
  if (bits_per_s > 0) parts.push_back(BitRateText(bits_per_s));
  const std::string_view state = ValidityOf(rows, cores)->state;
  parts.push_back(state == "valid"       ? Tr("valid")
                  : state == "limited"   ? Tr("valid with limits")
                  : state == "simulated" ? Tr("simulated")
                                         : Tr("not valid"));
  Rows all;
  for (const SummaryRow& row : rows) all.push_back(&row);
  if (const int rounds = Rounds(all); rounds > 0) parts.push_back(RoundsText(rounds));
  std::erase(parts, "");
  return absl::StrJoin(parts, Tr(", "));
}

}  // namespace psring
