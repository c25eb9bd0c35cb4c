#include "experiments/summary/validity.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "experiments/summary/row_queries.h"
#include "experiments/summary/verdict.h"
#include "experiments/texts/findings.h"
#include "experiments/texts/validity.h"

namespace psring {
namespace {

using Rows = std::vector<const SummaryRow*>;

const char* Gap(Language language) { return language == Language::kChinese ? "" : " "; }

template <typename Keeps>
Rows Those(const Rows& rows, Keeps keeps) {
  Rows those;
  std::ranges::copy_if(rows, std::back_inserter(those), keeps);
  return those;
}

bool Shares(const SummaryRow* row) { return row->mean.gpus_shared > 0; }

bool IsBesidePsring(const SummaryRow* row) { return !Shares(row) && row->other_psring > 0; }

bool IsDisturbed(const SummaryRow* row) { return !Shares(row) && row->other_psring == 0; }

std::string NamesIn(const Rows& rows, Language language) {
  std::vector<std::string> names;
  for (const SummaryRow* row : rows) names.push_back(row->configuration.name());
  return Joined(language, names);
}

std::string MostForeign(const Rows& rows) {
  double most = 0;
  for (const SummaryRow* row : rows) most = std::max(most, row->foreign_cpu_pct);
  return absl::StrFormat("%.0f", most);
}

// Why the times of `rows` are not valid. `all`: the number of rows of the run.
void AddDisturbance(const Rows& rows, size_t all, Sentences& why) {
  const Rows gpus = Those(rows, Shares), others = Those(rows, IsDisturbed),
             beside = Those(rows, IsBesidePsring);
  const auto named = [&](const Rows& those) {
    return those.size() == all ? why.Say(kEveryRow) : NamesIn(those, why.language());
  };
  if (!gpus.empty()) why.Add(kRowsShareGpus, named(gpus));
  if (!beside.empty()) why.Add(kRowsBesidePsring, named(beside), beside.front()->other_psring);
  if (!others.empty()) why.Add(kRowsDisturbed, named(others), MostForeign(others));
}

// What limits the use of valid times.
void AddLimits(const std::vector<SummaryRow>& rows, const Rows& all, int cores, int rounds, Sentences& why) {
  const Rows several = Those(all, [](auto* row) { return row->configuration.workers > 1; });
  const Rows oversubscribed = Those(several, [&](auto* row) {
    return row->configuration.oversubscribed && !NetworkDecides(rows, row->configuration.workers);
  });
  if (!oversubscribed.empty()) {
    why.Add(
        kRowsShareCores,
        oversubscribed.size() == rows.size() ? why.Say(kEveryRow) : NamesIn(oversubscribed, why.language()),
        cores, cores == 1 ? "core" : "cores");
  }
  const bool no_links = std::ranges::all_of(several, [](auto* row) {
    return row->link.shaping == Shaping::kNone && !row->configuration.on_machines;
  });
  if (!several.empty() && no_links) why.Add(kWithoutLinks);
  if (rounds == 1) why.Add(kNoIntervals);
}

// Of the row with the fewest; 0: only trainings.
int Rounds(const Rows& rows) {
  int fewest = 0;
  for (const SummaryRow* row : rows) {
    if (!row->round_step_ms.empty() && (fewest == 0 || row->rounds < fewest)) fewest = row->rounds;
  }
  return fewest;
}

Validity Of(const char* state, const Phrase& title, const Sentences& why) {
  const Language language = why.language();
  return {.state = state, .title = In(language, title), .why = absl::StrJoin(why.list(), Gap(language))};
}

}  // namespace

std::string Validity::Text(Language language) const { return absl::StrCat(title, Gap(language), why); }

std::optional<Validity> ValidityOf(const std::vector<SummaryRow>& rows, std::optional<int> cores,
                                   Language language) {
  if (rows.empty()) return std::nullopt;
  Rows all, used, wrong, beside;
  for (const SummaryRow& row : rows) all.push_back(&row);
  for (const size_t place : RowsOfVerdict(rows)) used.push_back(all[place]);
  if (used.empty()) used = all;
  for (const SummaryRow* row : all) {
    if (row->valid) continue;
    (std::ranges::find(used, row) != used.end() ? wrong : beside).push_back(row);
  }
  Sentences why(language);
  if (!wrong.empty()) {
    if (used.size() < all.size()) why.Add(kUsesInvalidRows);
    AddDisturbance(wrong, all.size(), why);
    if (!std::ranges::all_of(wrong, Shares)) why.Add(kRepeatWhenIdle);
    if (!beside.empty()) why.Add(kOtherInvalidRows, NamesIn(beside, language));
    return Of("invalid", kInvalid, why);
  }
  if (rows.front().TimeBasis() == Basis::kSimulated) {
    const Configuration& first = rows.front().configuration;
    if (first.scaled()) {
      why.Add(kSlowed, first.training.time_scale);
    } else {
      why.Add(kVirtualTimes);
    }
    return Of("simulated", kOnlySimulated, why);
  }
  if (!cores) {
    why.Add(kRecordsOfOneLaunch);
    return Of("limited", kLimited, why);
  }
  const int rounds = Rounds(all);
  AddLimits(rows, all, *cores, rounds, why);
  const bool limited = !why.list().empty();
  if (!limited) why.Add(beside.empty() ? kUndisturbed : kUsedRowsUndisturbed, rounds, MostForeign(used));
  if (!beside.empty()) {
    AddDisturbance(beside, all.size(), why);
    return Of("limited", kPartlyValid, why);
  }
  return limited ? Of("limited", kLimited, why) : Of("valid", kValid, why);
}

}  // namespace psring
