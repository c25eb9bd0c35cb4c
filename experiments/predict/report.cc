#include "experiments/predict/report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"
#include "common/workloads/devices.h"
#include "experiments/summary/row_queries.h"
#include "experiments/summary/table.h"
#include "experiments/texts/findings.h"
#include "experiments/texts/predict.h"
#include "experiments/texts/predict_calibration.h"
#include "experiments/texts/wrap.h"

namespace psring {
namespace {

constexpr double kLeastWait = 1e-9;     // in s; less is rounding
constexpr double kShownFactor = 1.005;  // less is printed as 1.00

const char* PlaceName(ServerPlace place) {
  switch (place) {
    case ServerPlace::kRank0:
      return "rank0";
    case ServerPlace::kDedicated:
      return "dedicated";
    case ServerPlace::kColocated:
      return "colocated";
  }
  return "?";
}

std::string Count(double value) {
  if (value >= 1e6) return absl::StrFormat("%.2fM", 1e-6 * value);
  if (value >= 1e5) return absl::StrFormat("%.0fK", 1e-3 * value);
  return value >= 100 ? WithThousands(value) : absl::StrFormat("%.1f", value);
}

// The fastest strategy that communicates, for one number of workers.
const PredictedRow* Fastest(const PredictReport& report, int workers) {
  const PredictedRow* best = nullptr;
  for (const PredictedRow& row : report.rows) {
    if (row.point.workers != workers || !row.point.strategy.communicates()) continue;
    if (best == nullptr || row.expected().samples_per_s > best->expected().samples_per_s * (1 + 1e-6))
      best = &row;
  }
  return best;
}

std::vector<int> WorkerCounts(const PredictReport& report) {
  std::vector<int> counts;
  for (const PredictedRow& row : report.rows) {
    if (counts.empty() || counts.back() != row.point.workers) counts.push_back(row.point.workers);
  }
  return counts;
}

// One sentence for each strategy: its nearest calibrated system, with the most workers.
void AddCalibration(const PredictReport& report, Sentences& text) {
  std::set<std::string> named;
  for (const PredictedRow& row : report.rows) {
    if (row.point.workers != WorkerCounts(report).back() || !row.point.strategy.communicates()) continue;
    if (!named.insert(row.point.strategy.name).second) continue;
    if (row.nearest == nullptr) return text.Add(kNotCalibrated);
    const std::string used = row.used.empty() ? text.Say(kCalibratedNothing) : ConstantsText(row.used);
    const std::vector<std::string> differences = Differences(row.situation, *row.nearest, text.language());
    const char* network = row.nearest->network;
    if (differences.empty()) {
      text.Add(kCalibratedInside, row.point.strategy.name, row.nearest->name, row.nearest->gpu, network,
               MostGpus(*row.nearest), used);
    } else {
      text.Add(kCalibratedOutside, row.point.strategy.name, row.nearest->name, row.nearest->gpu, network,
               MostGpus(*row.nearest), used, text.Joined(differences, kSemicolon));
    }
  }
}

// The cost of synchrony if computing varies, and omissions of the workload or cluster.
void AddRemarks(const PredictReport& report, Sentences& text) {
  double slowest = 1;
  bool servers = false;
  for (const PredictedRow& row : report.rows) {
    if (row.point.workers != WorkerCounts(report).back()) continue;
    slowest = std::max(slowest, row.expected().slowest);
    servers = servers || row.point.servers > 0;
  }
  if (slowest > 1.005)
    text.Add(kSlowestMachine, WorkerCounts(report).back(), absl::StrFormat("%.2f", slowest));
  const Workload& workload = report.predictor->workload();
  if (RecordedOnCpu(workload)) text.Add(kCpuWorkload, workload.device);
  if (servers && report.cluster.gpus_per_node > 1 && !report.predictor->options().local_aggregation)
    text.Add(kLocalMissing, report.cluster.gpus_per_node);
  if (servers && report.predictor->options().place == ServerPlace::kRank0) text.Add(kBesideOneWorker);
}

// Without the number of servers if it depends on the number of workers.
std::string NameIn(const PredictReport& report, const PredictedRow& row, Language language) {
  return report.servers_per_node && !row.uneven_share() ? row.point.strategy.name : row.name(language);
}

void AddCrossoverByWorkers(const PredictReport& report, Sentences& text) {
  std::vector<std::string> parts;
  const PredictedRow* last = nullptr;
  for (const int workers : WorkerCounts(report)) {
    if (workers == 1) continue;
    const PredictedRow* best = Fastest(report, workers);
    if (best == nullptr) continue;
    const auto same = [&](const PredictedRow* other) {
      return other != nullptr && other->point.strategy.name == best->point.strategy.name &&
             (report.servers_per_node || other->point.servers == best->point.servers);
    };
    if (same(last)) continue;
    parts.push_back(text.Say(last == nullptr ? kFastestWith : kFastestFrom,
                             NameIn(report, *best, text.language()), workers));
    last = best;
  }
  if (parts.size() == 1) text.Add(kNoCrossover, NameIn(report, *last, text.language()));
  if (parts.size() > 1) text.Add(kCrossover, text.Joined(parts));
}

void AddCrossoverBySize(const PredictReport& report, Sentences& text) {
  std::vector<std::string> parts;
  std::string last;
  for (const auto& [bytes, point] : report.findings.fastest_by_size) {
    const std::string name = PredictedRow{.point = point}.name(text.language());
    if (name == last) continue;
    parts.push_back(
        text.Say(last.empty() ? kSizeAt : kSizeFrom, name, ByteSizeText(static_cast<uint64_t>(bytes))));
    last = name;
  }
  if (!parts.empty()) text.Add(kSizeCrossover, WorkerCounts(report).back(), text.Joined(parts));
}

void AddServersToMatch(const PredictReport& report, Sentences& text) {
  if (report.findings.servers_to_match.empty()) return;
  std::vector<std::string> parts, none;
  for (const auto& [workers, servers] : report.findings.servers_to_match) {
    if (servers > 0) {
      parts.push_back(text.Say(kServersWith, servers, workers));
    } else {
      none.push_back(absl::StrCat(workers));
    }
  }
  if (!none.empty()) {
    parts.push_back(text.Say(parts.empty() ? kServersNone : kServersNoneOfThem, text.Joined(none)));
  }
  const ServerPlace place = report.predictor->options().place;
  text.Add(kServersToMatch, PlaceName(place), report.findings.matched_strategy, text.Joined(parts),
           place == ServerPlace::kRank0 ? text.Say(kSharedLink) : "");
}

// The share of gradients that are dropped with spare workers.
void AddDropped(const PredictReport& report, Sentences& text) {
  std::vector<std::string> parts;
  for (const PredictedRow& row : report.rows) {
    const double share = row.guesses.front().dropped_share;
    if (row.point.workers != WorkerCounts(report).back() || share <= 0) continue;
    parts.push_back(text.Say(kDroppedOne, absl::StrFormat("%.1f", 100 * share), row.name(text.language())));
  }
  if (!parts.empty()) text.Add(kDropped, WorkerCounts(report).back(), text.Joined(parts));
}

std::string ClusterText(const Cluster& cluster, Language language) {
  std::string text =
      Say(language, kClusterText,
          cluster.name.empty() ? In(language, kClusterNodes) : Say(language, kClusterNamed, cluster.name),
          cluster.gpus_per_node, cluster.gpus_per_node > 1 ? "s" : "",
          cluster.cards_per_node > 1 ? absl::StrCat(cluster.cards_per_node, " x ") : "",
          BitRateText(8 * cluster.link_bytes_per_s), cluster.fraction, 1e6 * cluster.latency_s);
  if (cluster.gpus_per_node > 1) {
    text += Say(language, kClusterInside, BitRateText(8 * cluster.intra_bytes_per_s),
                1e6 * cluster.intra_latency_s);
  }
  const double server = 1e9 * (cluster.server_add_s_per_byte + cluster.server_update_s_per_byte);
  text += Say(language, kClusterServer, absl::StrFormat("%.2f", server));
  if (cluster.rings > 1) text += Say(language, kClusterRings, cluster.rings);
  if (cluster.oversubscription > 1) text += Say(language, kClusterOversubscribed, cluster.oversubscription);
  return text;
}

std::string Milliseconds(double seconds) {
  return absl::StrFormat("%.*f", seconds < 10 ? 1 : 0, 1e3 * seconds);
}

// The limit of a step, in `language`.
std::string LimitText(const Prediction& prediction, Language language) {
  std::string text = prediction.limit;
  for (const Phrase& phrase : kLimits) {
    if (prediction.limit == phrase.english) text = In(language, phrase);
  }
  if (prediction.limit != kLimits[0].english) {
    absl::StrAppendFormat(&text, " %.0f%%", 100 * std::min(1.0, prediction.limit_part));
  }
  return prediction.method == "theory" ? absl::StrCat(text, In(language, kTheoryMethod)) : text;
}

// Pads to `columns`; right-aligned, or left-aligned if negative.
std::string InColumns(const std::string& text, int columns) {
  const size_t width = static_cast<size_t>(std::abs(columns));
  const std::string space(width - std::min(width, TextColumns(text)), ' ');
  return columns < 0 ? text + space : space + text;
}

std::string TableText(const PredictReport& report, Language language) {
  struct Column {
    Heading heading;
    int columns;
  };
  const Column columns[] = {{kPredictStrategy, -19}, {kPredictServers, 4}, {kPredictWorkers, 8},
                            {kPredictSamples, 10},   {kPredictRange, 15},  {kPredictEfficiency, 7},
                            {kPredictStep, 8},       {kHeadCompute, 7},    {kHeadExposed, 8},
                            {kHeadBusy, 8},          {kHeadStale, 7},      {kPredictLimit, 0}};
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t i = 0; i + 1 < cells.size(); ++i) text += InColumns(cells[i], columns[i].columns);
    return absl::StrCat(text, "  ", cells.back(), "\n");
  };
  std::vector<std::string> above, below;
  for (const Column& column : columns) {
    above.push_back(In(language, column.heading.first));
    below.push_back(In(language, column.heading.second));
  }
  std::string text = line(above) + line(below);
  int last = 0;
  for (const PredictedRow& row : report.rows) {
    if (last != 0 && row.point.workers != last) text += "\n";
    last = row.point.workers;
    const Prediction& p = row.expected();
    const Interval range = row.samples_per_s();
    const bool communicates = row.point.strategy.communicates();
    const std::string limit = communicates && row.point.workers > 1 ? LimitText(p, language) : "";
    text += line({row.point.strategy.name, row.point.servers > 0 ? absl::StrCat(row.point.servers) : "",
                  absl::StrCat(row.point.workers), Count(p.samples_per_s),
                  absl::StrCat(Count(range.low), "-", Count(range.high)),
                  absl::StrFormat("%.3f", row.efficiency()), Milliseconds(p.step), Milliseconds(p.compute),
                  communicates ? Milliseconds(p.exposed) : "", communicates ? Milliseconds(p.busy) : "",
                  p.staleness_mean >= 0 ? absl::StrFormat("%.1f", p.staleness_mean) : "", limit});
    const std::optional<double> most = row.uneven_share();
    if (!most) continue;
    const auto part = [&](const Phrase& name, double share, int workers) {
      const double samples_per_s = share * p.samples_per_s;
      const double step_s = workers * report.predictor->workload().batch / samples_per_s;
      text += line({Say(language, name, absl::StrFormat("%.0f", 100 * share)), "", absl::StrCat(workers),
                    Count(samples_per_s), "", "", Milliseconds(step_s), "", "", "", "", ""});
    };
    part(kOneWorkerLine, *most, 1);
    part(kOtherWorkersLine, 1 - *most, row.point.workers - 1);
  }
  return text;
}

// If the workers of `winner` are not shown to be faster than one.
std::string AgainstOneProcess(const PredictedRow& winner, Language language) {
  const Interval range = winner.samples_per_s();
  const double one = winner.single_samples_per_s;
  if (one <= 0 || range.low / one > kShownFactor) return "";
  const std::string factor =
      Say(language, kBetween, absl::StrFormat("%.2f", winner.expected().samples_per_s / one),
          absl::StrFormat("%.2f", range.low / one), absl::StrFormat("%.2f", range.high / one));
  return Say(language, range.high < one ? kVerdictOneProcess : kVerdictOneProcessLevel, winner.point.workers,
             winner.name(language), factor);
}

std::string VerdictText(const PredictReport& report, Language language) {
  const std::optional<PredictionVerdict> verdict = VerdictOf(report);
  if (!verdict) return In(language, kNoVerdict);
  const std::string interval =
      Say(language, kBetween, absl::StrFormat("%.2f", verdict->factor),
          absl::StrFormat("%.2f", verdict->interval.low), absl::StrFormat("%.2f", verdict->interval.high));
  const int workers = verdict->winner->point.workers;
  const std::string winner = verdict->winner->name(language), next = verdict->next->name(language);
  const Phrase& phrase = verdict->extrapolated ? kVerdictOverlaps : kVerdictEven;
  const bool one_link = std::max(verdict->winner->point.servers, verdict->next->point.servers) > 1 &&
                        report.predictor->options().place == ServerPlace::kRank0;
  return absl::StrCat(In(language, kVerdictHead), AgainstOneProcess(*verdict->winner, language),
                      verdict->shown ? Say(language, kVerdictWins, winner, workers, interval, next)
                                     : Say(language, phrase, winner, next, workers, interval),
                      verdict->shown && verdict->winner->point.strategy.asynchronous()
                          ? Say(language, kVerdictAsynchronous, verdict->winner->point.strategy.name)
                          : "",
                      one_link ? In(language, kSharedLink) : "");
}

}  // namespace

Cluster Guessed(const Cluster& cluster, const NetworkGuess& guess) {
  Cluster guessed = cluster;
  guessed.fraction = std::min(1.0, cluster.fraction * guess.rate);
  guessed.intra_bytes_per_s *= guess.rate;
  guessed.latency_s *= guess.latency;
  guessed.intra_latency_s *= guess.latency;
  return guessed;
}

bool PredictedRow::extrapolated() const {
  return nearest == nullptr || !Differences(situation, *nearest, Language::kEnglish).empty();
}

Interval PredictedRow::samples_per_s() const {
  Interval range{expected().samples_per_s / kCalibratedFactor, expected().samples_per_s * kCalibratedFactor};
  if (!extrapolated()) return range;
  for (const Prediction& guess : guesses) {
    range = {std::min(range.low, guess.samples_per_s), std::max(range.high, guess.samples_per_s)};
  }
  return range;
}

std::optional<double> PredictedRow::uneven_share() const {
  const bool uneven = !guesses.empty() && point.strategy.asynchronous() &&
                      expected().most_share * point.workers > kUnevenShare;
  return uneven ? std::optional<double>(expected().most_share) : std::nullopt;
}

std::string PredictedRow::name(Language language) const {
  if (point.servers == 0) return point.strategy.name;
  const std::string name =
      Say(language, point.servers == 1 ? kServerOne : kServerMany, point.strategy.name, point.servers);
  const std::optional<double> share = uneven_share();
  return share ? Say(language, kOneWorkerMakes, name, absl::StrFormat("%.0f", 100 * *share)) : name;
}

std::optional<PredictionVerdict> VerdictOf(const PredictReport& report) {
  const int workers = WorkerCounts(report).back();
  PredictionVerdict verdict;
  verdict.winner = Fastest(report, workers);
  if (workers < 2 || verdict.winner == nullptr) return std::nullopt;
  for (const PredictedRow& row : report.rows) {
    if (row.point.workers != workers || !row.point.strategy.communicates() || &row == verdict.winner)
      continue;
    if (verdict.next == nullptr || row.expected().samples_per_s > verdict.next->expected().samples_per_s)
      verdict.next = &row;
  }
  if (verdict.next == nullptr) return std::nullopt;
  const PredictedRow &winner = *verdict.winner, &next = *verdict.next;
  verdict.factor = winner.expected().samples_per_s / next.expected().samples_per_s;
  verdict.extrapolated = winner.extrapolated() || next.extrapolated();
  // Independent errors: their variances (of the logarithm) add.
  const double both = std::pow(kCalibratedFactor, std::sqrt(2.0));
  verdict.interval = {verdict.factor / both, verdict.factor * both};
  if (verdict.extrapolated) {
    const Interval of_winner = winner.samples_per_s(), of_next = next.samples_per_s();
    verdict.interval = {of_winner.low / of_next.high, of_winner.high / of_next.low};
  }
  verdict.shown = verdict.interval.low > kShownFactor;
  return verdict;
}

std::vector<Cell> PredictedCells(const PredictReport& report, const PredictedRow& row) {
  const Prediction& p = row.expected();
  const Workload& workload = report.predictor->workload();
  const PredictOptions& options = report.predictor->options();
  const bool communicates = row.point.strategy.communicates(), server = row.point.servers > 0,
             alone = row.point.strategy.asynchronous();
  const Interval range = row.samples_per_s();
  using Value = decltype(Cell::value);
  const auto when = [](bool there, auto value) { return there ? Value(value) : Value(); };
  std::vector<std::string> outside;
  if (row.nearest != nullptr) outside = Differences(row.situation, *row.nearest, Language::kEnglish);
  // The other columns apply only to real runs.
  const std::vector<std::pair<const char*, Value>> figures = {
      {"run_id", report.run_id},
      {"strategy", row.point.strategy.name},
      {"workers", int64_t{row.point.workers}},
      {"servers", int64_t{row.point.servers}},
      {"placement", when(server, std::string(PlaceName(options.place)))},
      {"ps_schedule", when(server, std::string(options.pipelined ? "pipelined" : "serial"))},
      {"algorithm", when(communicates, row.point.strategy.algorithm)},
      {"device", workload.device},
      {"shaping", std::string("simulated")},
      {"link_mbps", 8e-6 * report.cluster.link_bytes_per_s * report.cluster.cards_per_node},
      {"model", workload.name},
      {"parameters", workload.bytes() / 4},
      {"batch_per_worker", int64_t{workload.batch}},
      {"global_batch", int64_t{workload.batch} * (alone ? 1 : row.point.workers)},
      {"bucket_mb", options.buckets.others_mb},
      {"seed", static_cast<int64_t>(options.seed)},
      {"samples_per_s", p.samples_per_s},
      {"samples_per_s_lo95", Value()},
      {"speedup", row.efficiency() * row.point.workers},
      {"efficiency", row.efficiency()},
      {"step_ms", 1e3 * p.step},
      {"compute_ms", 1e3 * p.compute},
      {"comm_busy_ms", when(communicates, 1e3 * p.busy)},
      {"wait_ms", when(communicates && !alone, p.wait < kLeastWait ? 0 : 1e3 * p.wait)},
      {"exposed_comm_ms", when(communicates, 1e3 * p.exposed)},
      {"predicted_comm_ms", when(communicates, 1e3 * p.busy)},
      {"payload_tx_bytes_per_worker", when(communicates, p.tx_bytes)},
      {"payload_rx_bytes_per_worker", when(communicates, p.rx_bytes)},
      {"predicted_payload_bytes_per_worker", when(communicates, p.tx_bytes)},
      {"server_payload_bytes", when(server, p.server_bytes)},
      {"staleness_mean", when(p.staleness_mean >= 0, p.staleness_mean)},
      {"staleness_max", when(p.staleness_max >= 0, p.staleness_max)},
      {"most_samples_share", when(alone, p.most_share)},
      {"basis", std::string("simulated")},
      {"valid", true},
      {"note",
       absl::StrFormat(
           "samples/s %.6g to %.6g in 9 of 10 withheld published runs%s%s%s%s", range.low, range.high,
           row.nearest == nullptr ? "" : absl::StrCat("; nearest calibrated system: ", row.nearest->name),
           p.method == "theory" ? "; theory, too large to simulate" : "",
           outside.empty() ? "" : "; extrapolated: ", absl::StrJoin(outside, ", "))},
  };
  std::vector<Cell> cells = Cells(SummaryRow{});
  for (Cell& cell : cells) {
    if (std::string(cell.column) == "schema_version") continue;
    cell.value = Value();
    for (const auto& [column, value] : figures) {
      if (std::string(cell.column) == column) cell.value = value;
    }
    if (cell.basis != Basis::kGiven) cell.basis = Basis::kSimulated;
  }
  return cells;
}

std::string PredictText(const PredictReport& report, Language language) {
  const Workload& workload = report.predictor->workload();
  const auto tenths = [](double value) { return absl::StrFormat("%.1f", value); };
  std::string text =
      Wrap(Say(language, kPredictHead, workload.name, tenths(1e-6 * static_cast<double>(workload.bytes())),
               report.predictor->buckets(), workload.batch, tenths(workload.forward_ms),
               tenths(workload.backward_ms), workload.device, ClusterText(report.cluster, language)),
           "");
  absl::StrAppend(&text, "\n", TableText(report, language), "\n", Wrap(In(language, kPredictColumns), ""),
                  "\n");
  Sentences sentences(language);
  AddCrossoverByWorkers(report, sentences);
  AddCrossoverBySize(report, sentences);
  AddServersToMatch(report, sentences);
  AddDropped(report, sentences);
  for (const std::string& note : report.notes) sentences.AddText(note);
  AddCalibration(report, sentences);
  AddRemarks(report, sentences);
  for (const std::string& sentence : sentences.list()) text += Wrap(sentence, "- ");
  return absl::StrCat(text, "\n", Wrap(VerdictText(report, language), ""));
}

}  // namespace psring
