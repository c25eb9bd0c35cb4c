// From which rate of the links several workers are as fast as one process.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "common/text/translate.h"
#include "experiments/analysis/verdict.h"
#include "experiments/costs/row_exchange.h"
#include "experiments/design/estimate.h"

namespace psring {
namespace {

constexpr double kLeastRate = 1e5, kMaxRate = 1e14;  // bits/s
constexpr double kWideRange = 1.1;                   // a range is printed if its ends differ by more

// Samples of one worker in a step.
double WorkerSamples(const SummaryRow& row) {
  return 1e-3 * row.mean.samples_per_s * row.mean.step_ms / row.configuration.workers;
}

// How much shorter a step's computing is with a core for each worker: 1, or less if `row` was oversubscribed.
double ComputingShare(const SummaryRow& row, const SummaryRow& computing) {
  if (computing.configuration.workers == row.configuration.workers || row.mean.compute_ms <= 0) return 1;
  const double share = WorkerSamples(row) / WorkerSamples(computing) * computing.mean.compute_ms;
  return std::min(1.0, share / row.mean.compute_ms);
}

// With two digits; the ends of a range are rounded away from each other, and a least rate upwards.
std::string Digits(double value, bool up) {
  const double digit = std::pow(10, std::floor(std::log10(value)) - 1);
  const double digits = up ? std::ceil(value / digit - 1e-9) : std::floor(value / digit + 1e-9);
  return absl::StrFormat("%g", digits * digit);
}

// A rate in a unit.
struct RateUnit {
  double bits_per_s;
  const char *text, *flag;
};
constexpr RateUnit kGigabit = {1e9, TrNoop("$0 Gbit/s"), "gbit"},
                   kMegabit = {1e6, TrNoop("$0 Mbit/s"), "mbit"};

}  // namespace

const SummaryRow& ComputingRow(const std::vector<SummaryRow>& rows, const SummaryRow& row,
                               const SummaryRow& single) {
  const SummaryRow* computing = &single;
  for (const SummaryRow& other : rows) {
    const int workers = other.configuration.workers;
    const bool undisturbed = other.configuration.strategy.name == "none" && other.measured_cost &&
                             !other.configuration.oversubscribed && other.mean.samples_per_s > 0;
    if (!undisturbed || workers > row.configuration.workers) continue;
    if (computing == &single || workers > computing->configuration.workers) computing = &other;
  }
  return *computing;
}

std::optional<UsefulRate> LeastUsefulRate(const SummaryRow& row, const SummaryRow& single,
                                          const SummaryRow& computing, const Wires& wires) {
  const std::optional<Scheme> scheme = SchemeOf(row.configuration.strategy);
  const bool has_links = row.link.bits_per_s > 0 && wires.medium_bytes_per_s == 0 && wires.bytes_per_s > 0;
  if (!scheme || *scheme == Scheme::kNone || !has_links || single.mean.samples_per_s <= 0)
    return std::nullopt;
  if (ReplicaRanks(row.configuration.training) > 1) return std::nullopt;  // no theory of its messages
  const CommPattern pattern = PatternOf(row.configuration, *scheme);
  std::vector<double> buckets;
  for (const int64_t elements : row.sample.bucket_elements) {
    buckets.push_back(ExchangeBytes(row.configuration, elements));
  }
  const bool has_rows = row.sample.rows.all() > 0;
  if (has_rows && !RowExchangeOf(pattern, row.sample.rows, wires)) return std::nullopt;
  if (buckets.empty() && !has_rows) return std::nullopt;

  const double usable_share = std::min(1.0, 8 * wires.bytes_per_s / row.link.bits_per_s);
  const double s_per_ms = 1e-3 * ComputingShare(row, computing);  // of the times within backward
  const auto exposed_s = [&](double bits_per_s) {
    Wires faster = WiresOf(row, wires);
    faster.bytes_per_s = usable_share * bits_per_s / 8;
    faster.burst_bytes = 0;
    const double rows_s =
        has_rows ? RowExchangeOf(pattern, row.sample.rows, WiresOfTables(row, faster))->seconds : 0;
    const std::vector<double>& ready_ms = row.mean.bucket_ready_ms;
    if (scheme->schedule == nullptr || !row.mean.computed_ms || buckets.empty() ||
        ready_ms.size() != buckets.size()) {
      return ExchangeSeconds(pattern, buckets, faster) + rows_s;
    }
    std::vector<double> ready_s, cost_s;
    for (size_t b = 0; b < buckets.size(); ++b) {
      ready_s.push_back(s_per_ms * ready_ms[b]);
      cost_s.push_back(ExchangeSeconds(pattern, buckets[b], faster));
    }
    return OverlapBuckets(ready_s, cost_s, s_per_ms * *row.mean.computed_ms).exposed + rows_s;
  };
  const double each = WorkerSamples(row), workers = row.configuration.workers;
  // If one process computes `single_rate` samples/s.
  const auto least = [&](double single_rate) -> std::optional<double> {
    const double computing_rate = &computing == &single ? single_rate : computing.mean.samples_per_s;
    const double allowed_s =
        workers * each / single_rate - each * computing.configuration.workers / computing_rate;
    double too_low = kLeastRate, enough = kMaxRate;
    if (exposed_s(enough) > allowed_s) return std::nullopt;
    while (enough > 1.001 * too_low) {
      const double rate = std::sqrt(too_low * enough);
      (exposed_s(rate) > allowed_s ? too_low : enough) = rate;
    }
    return enough;
  };
  const std::optional<double> rate = least(single.mean.samples_per_s);
  if (!rate) return std::nullopt;
  UsefulRate useful{.bits_per_s = *rate, .low = *rate, .high = rate};
  if (const std::optional<Interval>& interval = single.samples_per_s_95; interval && interval->low > 0) {
    useful.low = least(interval->low).value_or(*rate);
    useful.high = least(interval->high);
  }
  return useful;
}

UsefulLink WorthDistributing(const std::vector<SummaryRow>& rows, const SummaryRow& best,
                             const SummaryRow& single, const Wires& wires) {
  const SummaryRow& computing = ComputingRow(rows, best, single);
  const int workers = best.configuration.workers, computed = computing.configuration.workers;
  std::optional<UsefulRate> rate = LeastUsefulRate(best, single, computing, wires);
  if (!rate) {
    const bool none_suffices =
        computed > 1 && workers * computing.mean.samples_per_s <= computed * single.mean.samples_per_s;
    return {.text = none_suffices ? Tr("on no link: even without communication (none), $0 workers are not "
                                       "faster than one process",
                                       computed)
                                  : ""};
  }
  // Below the rate that was measured, theory has left out what limits this machine.
  if (rate->bits_per_s <= best.link.bits_per_s) return {};
  rate->low = std::max(rate->low, best.link.bits_per_s);
  const bool range = !rate->high || *rate->high > kWideRange * rate->low;
  const std::string cores = computed < workers ? Tr(", with one core per worker") : "";
  const double from = range && rate->high ? *rate->high : rate->bits_per_s;
  const RateUnit& unit = from >= kGigabit.bits_per_s ? kGigabit : kMegabit;
  const std::string low = Digits(rate->low / unit.bits_per_s, /*up=*/false),
                    high = Digits(from / unit.bits_per_s, /*up=*/true);
  if (range && !rate->high) {
    return {.text = Tr("undecided from $0 per link$1 (derived)", Tr(unit.text, low), cores)};
  }
  return {.text = range ? Tr("from $0 per link$1 (derived; between $2 and $3 it is undecided)",
                             Tr(unit.text, high), cores, low, high)
                        : Tr("from $0 per link$1 (derived)", Tr(unit.text, high), cores),
          .rate = high + unit.flag};
}

}  // namespace psring
