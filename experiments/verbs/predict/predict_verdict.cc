#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/verbs/predict/report.h"

namespace psring {
namespace {

constexpr double kShownFactor = 1.005;  // less is printed as 1.00

bool Competes(const PredictedRow& row, int workers) {
  return row.point.workers == workers && row.point.strategy.communicates();
}

bool IsFaster(const PredictedRow& row, const PredictedRow* than) {
  return than == nullptr || row.expected().samples_per_s > than->expected().samples_per_s * (1 + 1e-6);
}

// Rounded up.
double TwoDigits(double value) {
  const double digit = std::pow(10, std::floor(std::log10(value)) - 1);
  return std::ceil(value / digit) * digit;
}

// If the workers of `winner` are not shown to be faster than one.
std::string AgainstOneProcess(const PredictedRow& winner) {
  const Interval range = winner.samples_per_s();
  const double one = winner.single_samples_per_s;
  if (!(one > 0) || std::isinf(one) || range.low / one > kShownFactor) return "";
  const std::string factor =
      Tr("$0 ($1 to $2)", absl::StrFormat("%.2f", winner.expected().samples_per_s / one),
         absl::StrFormat("%.2f", range.low / one), absl::StrFormat("%.2f", range.high / one));
  return Tr(range.high < one
                ? TrNoop("use one process: $0 workers with the fastest strategy, $1, reach only $2 times its "
                         "samples/s. If you distribute the model anyway: ")
                : TrNoop("use one process: $0 workers are not shown to be faster; with the fastest strategy, "
                         "$1, they reach $2 times its samples/s. If you distribute the model anyway: "),
            winner.point.workers, winner.name(), factor);
}

// If most of the workers' time is waiting: what they achieve, and which links would change it.
std::string WorkOf(const PredictReport& report, const PredictedRow& winner) {
  if (!DoesLittle(winner)) return "";
  const double workers = winner.point.workers * winner.efficiency();
  std::string text = Tr(" The $0 workers do the work of $1.", winner.point.workers,
                        absl::StrFormat("%.*f", workers < 10 ? 1 : 0, workers));
  if (const std::optional<double>& rate = report.findings.half_work_bits_per_s) {
    text += std::isinf(*rate)
                ? Tr(" Faster links would not make it half of theirs.")
                : Tr(" For half of theirs, links of at least $0 are needed.", BitRateText(TwoDigits(*rate)));
  }
  return text;
}

}  // namespace

std::string VerdictText(const PredictReport& report) {
  const std::optional<PredictionVerdict> verdict = VerdictAt(report, MostWorkers(report));
  if (!verdict)
    return Tr("Verdict: none. A verdict needs two strategies that communicate and at least two workers.");
  const std::string interval =
      Tr("$0 ($1 to $2)", absl::StrFormat("%.2f", verdict->factor),
         absl::StrFormat("%.2f", verdict->interval.low), absl::StrFormat("%.2f", verdict->interval.high));
  const int workers = verdict->winner->point.workers;
  const std::string winner = verdict->winner->name(), next = verdict->next->name();
  const bool one_link = std::max(verdict->winner->point.servers, verdict->next->point.servers) > 1 &&
                        report.predictor->options().place == ServerPlace::kRank0;
  return absl::StrCat(
      Tr("Verdict (simulated): "), AgainstOneProcess(*verdict->winner),
      verdict->shown
          ? Tr("$0 is fastest with $1 workers, $2 times as fast as $3.", winner, workers, interval, next)
          : Tr("no difference is shown between $0 and $1 with $2 workers: factor $3.", winner, next, workers,
               interval),
      WorkOf(report, *verdict->winner),
      verdict->shown && verdict->winner->point.strategy.asynchronous()
          ? Tr(" $0 updates the weights with late gradients: compare accuracy, too, with psring compare.",
               verdict->winner->point.strategy.name)
          : "",
      one_link ? Tr(" All servers share rank 0's link; with --server_placement dedicated or colocated each "
                    "has its own.")
               : "");
}

std::vector<std::string> PredictedRow::outside() const {
  return system == "none" ? std::vector<std::string>() : Differences(situation);
}

Interval PredictedRow::samples_per_s() const {
  std::vector<double> logs;
  for (const Prediction& guess : guesses)
    logs.push_back(std::log(guess.samples_per_s / expected().samples_per_s));
  const double speed = expected().samples_per_s;
  const Interval ratios = RatiosOf(logs, error());
  // Communication does not make computing faster.
  return {speed * ratios.low,
          std::max(speed, std::min(speed * ratios.high, point.workers * single_samples_per_s))};
}

bool DoesLittle(const PredictedRow& row) { return row.efficiency() > 0 && row.efficiency() < 0.5; }

std::optional<double> PredictedRow::uneven_share() const {
  const bool uneven = !guesses.empty() && point.strategy.asynchronous() &&
                      expected().most_share * point.workers > kUnevenShare;
  return uneven ? std::optional<double>(expected().most_share) : std::nullopt;
}

std::string PredictedRow::name() const {
  if (point.servers == 0) return point.strategy.name;
  const std::string name = Tr(point.servers == 1 ? TrNoop("$0 on 1 server") : TrNoop("$0 on $1 servers"),
                              point.strategy.name, point.servers);
  const std::optional<double> share = uneven_share();
  return share ? Tr("$0 (one worker makes $1% of the samples)", name, absl::StrFormat("%.0f", 100 * *share))
               : name;
}

std::optional<PredictionVerdict> VerdictAt(const PredictReport& report, int workers) {
  PredictionVerdict verdict;
  for (const PredictedRow& row : report.rows) {
    if (Competes(row, workers) && IsFaster(row, verdict.winner)) verdict.winner = &row;
  }
  if (workers < 2 || verdict.winner == nullptr) return std::nullopt;
  // Other numbers of servers are compared only if there is no other strategy.
  for (const bool same_strategy : {false, true}) {
    for (const PredictedRow& row : report.rows) {
      const bool same = row.point.strategy.name == verdict.winner->point.strategy.name;
      if (same == same_strategy && &row != verdict.winner && Competes(row, workers) &&
          IsFaster(row, verdict.next))
        verdict.next = &row;
    }
    if (verdict.next != nullptr) break;
  }
  if (verdict.next == nullptr) return std::nullopt;
  const PredictedRow &winner = *verdict.winner, &next = *verdict.next;
  verdict.factor = winner.expected().samples_per_s / next.expected().samples_per_s;
  PSRING_CHECK(winner.guesses.size() == next.guesses.size());
  std::vector<double> logs;  // of the factor, relative to the expected one
  for (size_t i = 0; i < winner.guesses.size(); ++i) {
    logs.push_back(
        std::log(winner.guesses[i].samples_per_s / next.guesses[i].samples_per_s / verdict.factor));
  }
  const Interval ratios = RatiosOf(logs, std::hypot(winner.error(), next.error()));
  verdict.interval = {verdict.factor * ratios.low, verdict.factor * ratios.high};
  verdict.shown = verdict.interval.low > kShownFactor;
  return verdict;
}

}  // namespace psring
