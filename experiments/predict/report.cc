#include "experiments/predict/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bit_rate.h"
#include "common/byte_size.h"
#include "experiments/compare/table.h"
#include "experiments/compare/wrap.h"

namespace psring {
namespace {

bool Communicates(const PredictedRow& row) { return row.point.strategy.needs != StrategyNeeds::kNothing; }

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

// What the published runs cover (benchmarks/published_runs.py): the worst case and the median over their
// rows.
constexpr int kMostValidatedWorkers = 64;
constexpr double kLeastValidatedLink = 10e9 / 8, kMostValidatedLink = 40e9 / 8;

std::string Count(double value) {
  if (value >= 1e6) return absl::StrFormat("%.2fM", 1e-6 * value);
  if (value >= 1e5) return absl::StrFormat("%.0fK", 1e-3 * value);
  return value >= 100 ? WithThousands(value) : absl::StrFormat("%.1f", value);
}

// The fastest of those that communicate, for one number of workers.
const PredictedRow* Fastest(const PredictReport& report, int workers) {
  const PredictedRow* best = nullptr;
  for (const PredictedRow& row : report.rows) {
    if (row.point.workers != workers || !Communicates(row)) continue;
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

std::string CrossoverByWorkers(const PredictReport& report) {
  std::vector<std::string> parts;
  std::string last;
  for (const int workers : WorkerCounts(report)) {
    if (workers == 1) continue;
    const PredictedRow* best = Fastest(report, workers);
    if (best == nullptr || best->name() == last) continue;
    parts.push_back(last.empty() ? absl::StrCat(best->name(), " is fastest with ", workers, " workers")
                                 : absl::StrCat(best->name(), " from ", workers, " on"));
    last = best->name();
  }
  if (parts.empty()) return "";
  if (parts.size() == 1) {
    return absl::StrCat("Crossover in workers: none; ", last,
                        " is fastest for every number of workers asked.");
  }
  return absl::StrCat("Crossover in workers: ", absl::StrJoin(parts, ", "), ".");
}

std::string CrossoverBySize(const PredictReport& report) {
  const auto& sizes = report.findings.fastest_by_size;
  if (sizes.empty()) return "";
  std::vector<std::string> parts;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0 && sizes[i].second == sizes[i - 1].second) continue;
    parts.push_back(absl::StrCat(sizes[i].second, i == 0 ? " at " : " from ",
                                 ByteSizeText(static_cast<uint64_t>(sizes[i].first)), i == 0 ? "" : " on"));
  }
  return absl::StrCat("Crossover in size, of one exchange with ", WorkerCounts(report).back(),
                      " workers that compute nothing beside it: fastest is ", absl::StrJoin(parts, ", "),
                      ".");
}

std::string ServersToMatch(const PredictReport& report) {
  if (report.findings.servers_to_match.empty()) return "";
  std::vector<std::string> parts, none;
  for (const auto& [workers, servers] : report.findings.servers_to_match) {
    if (servers > 0) {
      parts.push_back(absl::StrCat(servers, " with ", workers, " workers"));
    } else {
      none.push_back(absl::StrCat(workers));
    }
  }
  if (!none.empty()) {
    parts.push_back(absl::StrCat(parts.empty() ? "no number" : "no number of them", " with ",
                                 absl::StrJoin(none, ", "), " workers"));
  }
  return absl::StrCat(
      "Servers (", PlaceName(report.predictor->options().place), ") with which ps-sync is no slower than ",
      report.findings.matched_strategy, ": ", absl::StrJoin(parts, ", "), ".",
      report.predictor->options().place == ServerPlace::kRank0
          ? " All of them share rank 0's link: --server_placement dedicated or colocated gives each its own."
          : "");
}

// Spare workers: whose work counts for nothing.
std::string Dropped(const PredictReport& report) {
  std::vector<std::string> parts;
  for (const PredictedRow& row : report.rows) {
    const double share = row.guesses.front().dropped_share;
    if (row.point.workers != WorkerCounts(report).back() || share <= 0) continue;
    parts.push_back(absl::StrFormat("%.1f%% with %s", 100 * share, row.name()));
  }
  if (parts.empty()) return "";
  return absl::StrCat(
      "Of ", WorkerCounts(report).back(),
      " workers' gradients come too late, and are not in samples/s: ", absl::StrJoin(parts, ", "), ".");
}

std::string ClusterText(const Cluster& cluster) {
  std::string text =
      absl::StrFormat("%s of %d GPU%s, %s%s between nodes (%g of it for programs, %g us)",
                      cluster.name.empty() ? "nodes" : absl::StrCat(cluster.name, ": nodes"),
                      cluster.gpus_per_node, cluster.gpus_per_node > 1 ? "s" : "",
                      cluster.cards_per_node > 1 ? absl::StrCat(cluster.cards_per_node, " x ") : "",
                      BitRateText(8 * cluster.link_bytes_per_s), cluster.fraction, 1e6 * cluster.latency_s);
  if (cluster.gpus_per_node > 1) {
    absl::StrAppendFormat(&text, ", %s inside (%g us)", BitRateText(8 * cluster.intra_bytes_per_s),
                          1e6 * cluster.intra_latency_s);
  }
  absl::StrAppendFormat(&text, ", a server adds and updates in %.2f ns a byte",
                        1e9 * (cluster.server_add_s_per_byte + cluster.server_update_s_per_byte));
  if (cluster.rings > 1) absl::StrAppend(&text, ", ", cluster.rings, " rings");
  if (cluster.oversubscription > 1)
    absl::StrAppendFormat(&text, ", oversubscribed %g : 1", cluster.oversubscription);
  return text;
}

std::string Milliseconds(double seconds) {
  return absl::StrFormat(seconds < 10 ? "%.1f" : "%.0f", 1e3 * seconds);
}

std::string TableText(const PredictReport& report) {
  const auto line = [](auto... fields) {
    return absl::StrFormat("%-19s%4s%8s%10s%15s%7s%8s%7s%8s%8s%7s  %s\n", fields...);
  };
  std::string text =
      line("strategy", "ser-", "workers", "samples", "if the network", "effi-", "step", "com-", "ex-",
           "comm.", "stale", "limited by") +
      line("", "vers", "", "/s", "slower-faster", "ciency", "ms", "pute", "posed", "busy", "mean", "");
  int last = 0;
  for (const PredictedRow& row : report.rows) {
    if (last != 0 && row.point.workers != last) text += "\n";
    last = row.point.workers;
    const Prediction& p = row.expected();
    const Interval range = row.samples_per_s();
    const bool talks = Communicates(row);
    std::string limit;
    if (talks && row.point.workers > 1) {
      limit = p.limit == "computing"
                  ? p.limit
                  : absl::StrFormat("%s %.0f%%", p.limit, 100 * std::min(1.0, p.limit_part));
      if (p.method == "theory") limit += ", theory";
    }
    text += line(row.point.strategy.name, row.point.servers > 0 ? absl::StrCat(row.point.servers) : "",
                 absl::StrCat(row.point.workers), Count(p.samples_per_s),
                 absl::StrCat(Count(range.low), "-", Count(range.high)),
                 absl::StrFormat("%.3f", row.efficiency()), Milliseconds(p.step), Milliseconds(p.compute),
                 talks ? Milliseconds(p.exposed) : "", talks ? Milliseconds(p.busy) : "",
                 p.staleness_mean >= 0 ? absl::StrFormat("%.1f", p.staleness_mean) : "", limit);
  }
  return text;
}

std::string VerdictText(const PredictReport& report) {
  const std::optional<Verdict> verdict = VerdictOf(report);
  if (!verdict) return "Verdict: none; it takes two strategies that communicate, and two workers.";
  const std::string interval =
      absl::StrFormat("%.2f (%.2f to %.2f)", verdict->factor, verdict->interval.low, verdict->interval.high);
  const int workers = verdict->winner->point.workers;
  if (!verdict->shown) {
    return absl::StrCat("Verdict: no difference shown between ", verdict->winner->name(), " and ",
                        verdict->next->name(), " with ", workers, " workers: factor ", interval,
                        ", simulated.");
  }
  return absl::StrCat("Verdict: ", verdict->winner->name(), " wins with ", workers,
                      " workers, by a factor of ", interval, " in samples/s over ", verdict->next->name(),
                      ", simulated.");
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

Interval PredictedRow::samples_per_s() const {
  Interval range{guesses.front().samples_per_s, guesses.front().samples_per_s};
  for (const Prediction& guess : guesses) {
    range = {std::min(range.low, guess.samples_per_s), std::max(range.high, guess.samples_per_s)};
  }
  return range;
}

std::string PredictedRow::name() const {
  return point.servers == 0   ? point.strategy.name
         : point.servers == 1 ? absl::StrCat(point.strategy.name, ", 1 server")
                              : absl::StrCat(point.strategy.name, ", ", point.servers, " servers");
}

std::vector<std::string> OutsideValidatedRange(const PredictReport& report) {
  std::vector<std::string> reasons;
  const int workers = WorkerCounts(report).back();
  if (workers > kMostValidatedWorkers) {
    reasons.push_back(absl::StrCat(workers, " workers (checked up to ", kMostValidatedWorkers, ")"));
  }
  const double link = report.cluster.link_bytes_per_s * report.cluster.cards_per_node;
  if (link < kLeastValidatedLink || link > kMostValidatedLink) {
    reasons.push_back(absl::StrCat("nodes with ", BitRateText(8 * link), " (checked from ",
                                   BitRateText(8 * kLeastValidatedLink), " to ",
                                   BitRateText(8 * kMostValidatedLink), ")"));
  }
  if (report.cluster.oversubscription > 1) reasons.push_back("an oversubscribed fabric");
  const bool alone = std::any_of(report.rows.begin(), report.rows.end(), [](const PredictedRow& row) {
    return IsAsynchronousServer(row.point.strategy);
  });
  if (alone) reasons.push_back("asynchronous servers (checked against queueing theory, not against runs)");
  const bool spare = std::any_of(report.rows.begin(), report.rows.end(), [](const PredictedRow& row) {
    return row.guesses.front().dropped_share > 0;
  });
  if (spare)
    reasons.push_back("spare workers (checked against measurements of a few workers, not against runs)");
  return reasons;
}

std::optional<Verdict> VerdictOf(const PredictReport& report) {
  const int workers = WorkerCounts(report).back();
  Verdict verdict;
  verdict.winner = Fastest(report, workers);
  if (workers < 2 || verdict.winner == nullptr) return std::nullopt;
  for (const PredictedRow& row : report.rows) {
    if (row.point.workers != workers || !Communicates(row) || &row == verdict.winner) continue;
    if (verdict.next == nullptr || row.expected().samples_per_s > verdict.next->expected().samples_per_s)
      verdict.next = &row;
  }
  if (verdict.next == nullptr) return std::nullopt;
  // Pairs: both on the same network.
  const auto ratio = [&](size_t i) {
    return verdict.winner->guesses[i].samples_per_s / verdict.next->guesses[i].samples_per_s;
  };
  verdict.factor = ratio(0);
  verdict.interval = {ratio(0), ratio(0)};
  for (size_t i = 1; i < verdict.winner->guesses.size(); ++i) {
    verdict.interval = {std::min(verdict.interval.low, ratio(i)), std::max(verdict.interval.high, ratio(i))};
  }
  verdict.shown = verdict.interval.low > 1.005 || verdict.interval.high < 0.995;
  return verdict;
}

std::vector<Cell> PredictedCells(const PredictReport& report, const PredictedRow& row) {
  const Prediction& p = row.expected();
  const Workload& workload = report.predictor->workload();
  const PredictOptions& options = report.predictor->options();
  const bool talks = Communicates(row), server = row.point.servers > 0,
             alone = IsAsynchronousServer(row.point.strategy);
  const Interval range = row.samples_per_s();
  using Value = decltype(Cell::value);
  const auto when = [](bool there, auto value) { return there ? Value(value) : Value(); };
  const std::vector<std::string> outside = OutsideValidatedRange(report);
  // Every other column is one that only a run can fill.
  const std::vector<std::pair<const char*, Value>> figures = {
      {"run_id", report.run_id},
      {"strategy", row.point.strategy.name},
      {"workers", int64_t{row.point.workers}},
      {"servers", int64_t{row.point.servers}},
      {"placement", when(server, std::string(PlaceName(options.place)))},
      {"algorithm", when(talks, row.point.strategy.algorithm)},
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
      {"comm_busy_ms", when(talks, 1e3 * p.busy)},
      {"wait_ms", when(talks && !alone, 1e3 * p.wait)},
      {"exposed_comm_ms", when(talks, 1e3 * p.exposed)},
      {"predicted_comm_ms", when(talks, 1e3 * p.busy)},
      {"payload_tx_bytes_per_worker", when(talks, p.tx_bytes)},
      {"payload_rx_bytes_per_worker", when(talks, p.rx_bytes)},
      {"predicted_payload_bytes_per_worker", when(talks, p.tx_bytes)},
      {"server_payload_bytes", when(server, p.server_bytes)},
      {"staleness_mean", when(p.staleness_mean >= 0, p.staleness_mean)},
      {"staleness_max", when(p.staleness_max >= 0, p.staleness_max)},
      {"basis", std::string("simulated")},
      {"valid", true},
      {"note", absl::StrFormat(
                   "samples/s %.6g to %.6g where the network is 10%% slower or faster and latency double or "
                   "half%s%s%s",
                   range.low, range.high, p.method == "theory" ? "; theory, too large to simulate" : "",
                   outside.empty() ? "" : "; outside the validated range: ", absl::StrJoin(outside, ", "))},
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

std::string PredictText(const PredictReport& report) {
  const Workload& workload = report.predictor->workload();
  std::string text = Wrap(absl::StrFormat("Predicted, nothing was run (every figure is simulated): %s, %.1f "
                                          "MB of gradients in %d buckets, batch %d a "
                                          "worker, computing %.1f + %.1f ms (%s); %s.",
                                          workload.name, 1e-6 * static_cast<double>(workload.bytes()),
                                          report.predictor->buckets(), workload.batch, workload.forward_ms,
                                          workload.backward_ms, workload.device, ClusterText(report.cluster)),
                          "");
  text += "\n";
  absl::StrAppend(&text, TableText(report),
                  "\nTimes are ms of a worker's mean step. slower-faster: links 10% slower and latency "
                  "doubled, 10% faster "
                  "and\nhalved. limited by: what works most of the time in which anything is under way, and "
                  "how much of it.\n\n");
  std::vector<std::string> sentences = {CrossoverByWorkers(report), CrossoverBySize(report),
                                        ServersToMatch(report), Dropped(report)};
  sentences.insert(sentences.end(), report.notes.begin(), report.notes.end());
  const std::vector<std::string> outside = OutsideValidatedRange(report);
  if (!outside.empty()) {
    sentences.push_back(absl::StrCat(
        "Outside the range in which this was checked against published runs: ", absl::StrJoin(outside, "; "),
        ". Take it as what the model says, not as what will be."));
  }
  for (const std::string& sentence : sentences) {
    if (!sentence.empty()) text += Wrap(sentence, "- ");
  }
  return absl::StrCat(text, "\n", Wrap(VerdictText(report), ""));
}

}  // namespace psring
