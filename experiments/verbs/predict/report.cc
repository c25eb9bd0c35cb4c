#include "experiments/verbs/predict/report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "common/workloads/devices.h"
#include "experiments/analysis/row_queries.h"
#include "experiments/analysis/table.h"

namespace psring {
namespace {

constexpr double kLeastWait = 1e-9;     // in s; less is rounding
constexpr double kShownFactor = 1.005;  // less is printed as 1.00

const char* PlaceName(ServerPlace place) {
  constexpr const char* kNames[] = {"rank0", "dedicated", "colocated"};
  return kNames[static_cast<size_t>(place)];
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

int MostWorkers(const PredictReport& report) { return report.rows.back().point.workers; }

// One sentence for each strategy: its nearest calibrated system, with the most workers.
void AddCalibration(const PredictReport& report, std::vector<std::string>& text) {
  std::set<std::string> named;
  for (const PredictedRow& row : report.rows) {
    if (row.point.workers != MostWorkers(report) || !row.point.strategy.communicates()) continue;
    if (!named.insert(row.point.strategy.name).second) continue;
    if (row.nearest == nullptr) {
      return text.push_back(
          Tr("--system none: no constants of a calibrated system are used. The ranges are valid only for "
             "calibrated systems."));
    }
    const std::string used = row.used.empty() ? Tr("nothing") : ConstantsText(row.used);
    const std::vector<std::string> differences = Differences(row.situation, *row.nearest);
    const char* network = row.nearest->network();
    if (differences.empty()) {
      text.push_back(Tr("$0: calibrated on $1 ($2, $3, up to $4 GPUs). Constants used: $5.",
                        row.point.strategy.name, row.nearest->name, row.nearest->gpu, network,
                        MostGpus(*row.nearest), used));
    } else {
      text.push_back(
          Tr("$0: extrapolated. The nearest calibrated system is $1 ($2, $3, up to $4 GPUs); constants used: "
             "$5. Outside its range: $6.",
             row.point.strategy.name, row.nearest->name, row.nearest->gpu, network, MostGpus(*row.nearest),
             used, absl::StrJoin(differences, Tr("; "))));
    }
  }
}

// The cost of synchrony if computing varies, and omissions of the workload or cluster.
void AddRemarks(const PredictReport& report, std::vector<std::string>& text) {
  double slowest = 1;
  bool servers = false;
  for (const PredictedRow& row : report.rows) {
    if (row.point.workers != MostWorkers(report)) continue;
    slowest = std::max(slowest, row.expected().slowest);
    servers = servers || row.point.servers > 0;
  }
  if (slowest > 1.005) {
    text.push_back(
        Tr("Synchronous steps with $0 workers wait for the slowest machine: computing takes $1 times its "
           "mean. Asynchronous workers do not wait.",
           MostWorkers(report), absl::StrFormat("%.2f", slowest)));
  }
  const Workload& workload = report.predictor->workload();
  if (RecordedOnCpu(workload)) {
    text.push_back(
        Tr("The layer times were recorded on a CPU ($0). They do not describe a GPU; see --device.",
           workload.device));
  }
  if (servers && report.cluster.gpus_per_node > 1 && !report.predictor->options().local_aggregation) {
    text.push_back(
        Tr("Each of a machine's $0 GPUs pushes its own gradient. BytePS, MXNet and TensorFlow add them on "
           "the machine first: --local_aggregation.",
           report.cluster.gpus_per_node));
  }
  if (servers && report.predictor->options().place == ServerPlace::kRank0) {
    text.push_back(Tr(
        "The servers are on worker 0's machine (--server_placement rank0), so its exchange uses no link."));
  }
}

// Without the number of servers if it depends on the number of workers.
std::string NameIn(const PredictReport& report, const PredictedRow& row) {
  return report.servers_per_node && !row.uneven_share() ? row.point.strategy.name : row.name();
}

void AddCrossoverByWorkers(const PredictReport& report, std::vector<std::string>& text) {
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
    parts.push_back(Tr(last == nullptr ? TrNoop("$0 is fastest with $1 workers") : TrNoop("$0 from $1 on"),
                       NameIn(report, *best), workers));
    last = best;
  }
  if (parts.size() == 1) {
    text.push_back(Tr("Crossover in workers: none; $0 is fastest for every requested number of workers.",
                      NameIn(report, *last)));
  }
  if (parts.size() > 1) text.push_back(Tr("Crossover in workers: $0.", absl::StrJoin(parts, Tr(", "))));
}

void AddCrossoverBySize(const PredictReport& report, std::vector<std::string>& text) {
  std::vector<std::string> parts;
  std::string last;
  for (const auto& [bytes, point] : report.findings.fastest_by_size) {
    const std::string name = PredictedRow{.point = point}.name();
    if (name == last) continue;
    parts.push_back(Tr(last.empty() ? TrNoop("$0 at $1") : TrNoop("$0 from $1 on"), name,
                       ByteSizeText(static_cast<uint64_t>(bytes))));
    last = name;
  }
  if (!parts.empty()) {
    text.push_back(
        Tr("Crossover in size for one exchange with $0 workers, without computation: the fastest is $1.",
           MostWorkers(report), absl::StrJoin(parts, Tr(", "))));
  }
}

void AddServersToMatch(const PredictReport& report, std::vector<std::string>& text) {
  if (report.findings.servers_to_match.empty()) return;
  std::vector<std::string> parts, none;
  for (const auto& [workers, servers] : report.findings.servers_to_match) {
    if (servers > 0) {
      parts.push_back(Tr("$0 with $1 workers", servers, workers));
    } else {
      none.push_back(absl::StrCat(workers));
    }
  }
  if (!none.empty()) {
    parts.push_back(Tr(parts.empty() ? TrNoop("no number of servers suffices with $0 workers")
                                     : TrNoop("no number suffices with $0 workers"),
                       absl::StrJoin(none, Tr(", "))));
  }
  const ServerPlace place = report.predictor->options().place;
  text.push_back(Tr("Number of servers ($0) with which ps-sync is at least as fast as $1: $2.$3",
                    PlaceName(place), report.findings.matched_strategy, absl::StrJoin(parts, Tr(", ")),
                    place == ServerPlace::kRank0
                        ? Tr(" All servers share rank 0's link; with --server_placement dedicated or "
                             "colocated each has its own.")
                        : ""));
}

// The share of gradients that are dropped with spare workers.
void AddDropped(const PredictReport& report, std::vector<std::string>& text) {
  std::vector<std::string> parts;
  for (const PredictedRow& row : report.rows) {
    const double share = row.guesses.front().dropped_share;
    if (row.point.workers != MostWorkers(report) || share <= 0) continue;
    parts.push_back(Tr("$0% with $1", absl::StrFormat("%.1f", 100 * share), row.name()));
  }
  if (!parts.empty()) {
    text.push_back(
        Tr("Gradients that are dropped because they arrive too late, with $0 workers: $1. They do not count "
           "in samples/s.",
           MostWorkers(report), absl::StrJoin(parts, Tr(", "))));
  }
}

std::string ClusterText(const Cluster& cluster) {
  std::string text = Tr("$0 with $1 GPU$2 each; $3$4 between nodes ($5 of the rate is usable, latency $6 us)",
                        cluster.name.empty() ? Tr("nodes") : Tr("$0: nodes", cluster.name),
                        cluster.gpus_per_node, cluster.gpus_per_node > 1 ? "s" : "",
                        cluster.cards_per_node > 1 ? absl::StrCat(cluster.cards_per_node, " x ") : "",
                        BitRateText(8 * cluster.link_bytes_per_s), cluster.fraction, 1e6 * cluster.latency_s);
  if (cluster.gpus_per_node > 1) {
    text += Tr("; $0 inside a node (latency $1 us)", BitRateText(8 * cluster.intra_bytes_per_s),
               1e6 * cluster.intra_latency_s);
  }
  const double server = 1e9 * (cluster.server_add_s_per_byte + cluster.server_update_s_per_byte);
  text += Tr("; a server adds and updates in $0 ns per byte", absl::StrFormat("%.2f", server));
  if (cluster.rings > 1) text += Tr("; $0 rings", cluster.rings);
  if (cluster.oversubscription > 1) text += Tr("; oversubscribed $0 : 1", cluster.oversubscription);
  return text;
}

// If the workers of `winner` are not shown to be faster than one.
std::string AgainstOneProcess(const PredictedRow& winner) {
  const Interval range = winner.samples_per_s();
  const double one = winner.single_samples_per_s;
  if (one <= 0 || range.low / one > kShownFactor) return "";
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

std::string VerdictText(const PredictReport& report) {
  const std::optional<PredictionVerdict> verdict = VerdictOf(report);
  if (!verdict)
    return Tr("Verdict: none. A verdict needs two strategies that communicate and at least two workers.");
  const std::string interval =
      Tr("$0 ($1 to $2)", absl::StrFormat("%.2f", verdict->factor),
         absl::StrFormat("%.2f", verdict->interval.low), absl::StrFormat("%.2f", verdict->interval.high));
  const int workers = verdict->winner->point.workers;
  const std::string winner = verdict->winner->name(), next = verdict->next->name();
  const char* const phrase =
      verdict->extrapolated ? TrNoop(
                                  "no winner between $0 and $1 with $2 workers: factor $3; at least one is "
                                  "extrapolated, and their ranges overlap.")
                            : TrNoop("no difference is shown between $0 and $1 with $2 workers: factor $3.");
  const bool one_link = std::max(verdict->winner->point.servers, verdict->next->point.servers) > 1 &&
                        report.predictor->options().place == ServerPlace::kRank0;
  return absl::StrCat(
      Tr("Verdict (simulated): "), AgainstOneProcess(*verdict->winner),
      verdict->shown
          ? Tr("$0 is fastest with $1 workers, $2 times as fast as $3.", winner, workers, interval, next)
          : Tr(phrase, winner, next, workers, interval),
      verdict->shown && verdict->winner->point.strategy.asynchronous()
          ? Tr(" $0 updates the weights with late gradients: compare accuracy, too, with psring compare.",
               verdict->winner->point.strategy.name)
          : "",
      one_link ? Tr(" All servers share rank 0's link; with --server_placement dedicated or colocated each "
                    "has its own.")
               : "");
}

}  // namespace

std::vector<Cluster> NetworkGuesses(const Cluster& cluster) {
  std::vector<Cluster> guesses = {cluster};
  for (const auto& [rate, latency] : {std::pair(0.9, 2.0), {1.1, 0.5}}) {
    Cluster& guess = guesses.emplace_back(cluster);
    guess.fraction = std::min(1.0, cluster.fraction * rate);
    guess.intra_bytes_per_s *= rate;
    guess.latency_s *= latency;
    guess.intra_latency_s *= latency;
  }
  return guesses;
}

bool PredictedRow::extrapolated() const {
  return nearest == nullptr || !Differences(situation, *nearest).empty();
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

std::string PredictedRow::name() const {
  if (point.servers == 0) return point.strategy.name;
  const std::string name = Tr(point.servers == 1 ? TrNoop("$0 on 1 server") : TrNoop("$0 on $1 servers"),
                              point.strategy.name, point.servers);
  const std::optional<double> share = uneven_share();
  return share ? Tr("$0 (one worker makes $1% of the samples)", name, absl::StrFormat("%.0f", 100 * *share))
               : name;
}

std::optional<PredictionVerdict> VerdictOf(const PredictReport& report) {
  const int workers = MostWorkers(report);
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
  if (row.nearest != nullptr) {
    outside = InLanguage(Language::kEnglish, [&] { return Differences(row.situation, *row.nearest); });
  }
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
      {"global_batch", alone ? int64_t{workload.batch} : report.GlobalBatch(row.point.workers)},
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
      {"layout", absl::StrCat("dp", row.point.workers)},
      {"micro_batches", int64_t{1}},
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

std::string PredictText(const PredictReport& report) {
  const Workload& workload = report.predictor->workload();
  const auto tenths = [](double value) { return absl::StrFormat("%.1f", value); };
  std::string text =
      Wrap(Tr("Prediction; nothing was run, and every figure is simulated. Workload: $0, $1 MB of gradients "
              "in $2 buckets, batch $3 per worker, forward $4 ms, backward $5 ms ($6). Cluster: $7.",
              workload.name, tenths(1e-6 * static_cast<double>(workload.bytes())),
              report.predictor->buckets(), workload.batch, tenths(workload.forward_ms),
              tenths(workload.backward_ms), workload.device, ClusterText(report.cluster)),
           "");
  const bool cuts_model = !report.pipelines.empty();
  absl::StrAppend(
      &text, "\n", cuts_model ? PipelineTable(report) : PredictTable(report), "\n",
      Wrap(cuts_model ? PipelineLegend()
                      : Tr("Times are ms of a worker's mean step. range: contains at least 9 of 10 published "
                           "runs that were withheld from the fit. It is wider if extrapolated: links 10% "
                           "slower with twice the latency to 10% faster with half of it. limited by: the "
                           "resource that is busy most of the time, and its share."),
           ""),
      "\n");
  std::vector<std::string> sentences;
  if (cuts_model) {
    sentences = PipelineSentences(report);
  } else {
    AddCrossoverByWorkers(report, sentences);
    AddCrossoverBySize(report, sentences);
    AddServersToMatch(report, sentences);
    AddDropped(report, sentences);
  }
  for (const std::string& note : report.notes) sentences.push_back(note);
  AddCalibration(report, sentences);
  AddRemarks(report, sentences);
  for (const std::string& sentence : sentences) text += Wrap(sentence, "- ");
  return absl::StrCat(text, "\n", Wrap(cuts_model ? PipelineVerdict(report) : VerdictText(report), ""));
}

}  // namespace psring
