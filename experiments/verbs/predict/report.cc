#include "experiments/verbs/predict/report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "common/workloads/devices.h"

namespace psring {
namespace {

std::vector<int> WorkerCounts(const PredictReport& report) {
  std::vector<int> counts;
  for (const PredictedRow& row : report.rows) {
    if (counts.empty() || counts.back() != row.point.workers) counts.push_back(row.point.workers);
  }
  return counts;
}

// With the constants that `row` has in its guess `i`.
Cluster ClusterOf(const PredictReport& report, const PredictedRow& row, size_t i) {
  Cluster cluster = report.cluster;
  PredictOptions options;
  if (i < row.constants.size()) Apply(row.constants[i], cluster, options);
  return cluster;
}

// The rows with the most workers that communicate; all have the same constants.
std::vector<const PredictedRow*> LastRows(const PredictReport& report) {
  std::vector<const PredictedRow*> rows;
  for (const PredictedRow& row : report.rows) {
    if (row.point.workers == MostWorkers(report) && row.point.strategy.communicates()) rows.push_back(&row);
  }
  return rows;
}

// "25 us (12.5 us to 50 us)", or only the first if there is no range.
std::string ValueText(double value, double low, double high, const char* unit) {
  const auto text = [&](double number) { return absl::StrFormat("%.3g%s", number, unit); };
  return low == high ? text(value) : Tr("$0 ($1 to $2)", text(value), text(low), text(high));
}

// What the prediction assumes for all strategies.
void AddAssumptions(const PredictReport& report, const PredictedRow& row, std::vector<std::string>& text) {
  const int nodes = ShapeOf(report.cluster, row.point.workers).nodes;
  std::vector<double> logs;  // of the share of the rate, relative to the first guess
  double share = 0;
  for (size_t i = 0; i < row.constants.size(); ++i) {
    const double guess = WithNodes(ClusterOf(report, row, i), nodes).fraction;
    if (i == 0) share = guess;
    logs.push_back(std::log(guess / share));
  }
  const Interval ratios = RatiosOf(logs, 0);
  std::vector<std::string> parts = {
      Tr("a card keeps $0 of its rate with $1 machines",
         ValueText(100 * share, 100 * share * ratios.low, 100 * share * ratios.high, "%"), nodes)};
  struct Part {
    const char *name, *phrase, *unit;
    double scale;
  };
  for (const auto& [name, phrase, unit, scale] :
       {Part{"compute_cv", TrNoop("computing varies by $0 between machines"), "%", 100},
        Part{"latency_us", TrNoop("a message takes $0"), " us", 1},
        Part{"window_mb", TrNoop("a TCP connection has at most $0 in flight (--window_mb)"), " MiB", 1}}) {
    std::vector<double> values;
    for (const Constants& constants : row.constants) {
      if (const auto at = constants.find(name); at != constants.end()) values.push_back(scale * at->second);
    }
    if (values.empty()) continue;
    const auto [low, high] = std::ranges::minmax(values);
    parts.push_back(Tr(phrase, ValueText(values.front(), low, high, unit)));
  }
  const std::string assumed = absl::StrJoin(parts, Tr("; "));
  text.push_back(row.system == "auto"
                     ? Tr("Assumed for all strategies, as in published systems, most as in $0: $1.",
                          absl::StrJoin(SimilarSystems(report.cluster, row.situation.rdma), ", "), assumed)
                     : Tr("Assumed for all strategies, as in $0: $1.", row.system, assumed));
  const double connection = ClusterOf(report, row, 0).connection_bytes_per_s;
  if (connection > 0 && connection < report.cluster.link_bytes_per_s) {
    text.push_back(Tr("A TCP connection carries at most $0; set --connection if yours carry more.",
                      BitRateText(std::round(8e-6 * connection) * 1e6)));
  }
}

// The constants, and what no published system has.
void AddCalibration(const PredictReport& report, std::vector<std::string>& text) {
  const std::vector<const PredictedRow*> rows = LastRows(report);
  if (rows.empty()) return;
  if (rows.front()->system == "none") {
    return text.push_back(
        Tr("--system none: the described network, without what published systems lose besides. Ranges hold "
           "only the model's own error."));
  }
  AddAssumptions(report, *rows.front(), text);
  if (!report.pipelines.empty()) return;  // their rows have no ranges
  // Each difference once, with the strategies that have it unless all have.
  std::vector<std::pair<std::string, std::vector<std::string>>> differences;
  for (const PredictedRow* row : rows) {
    for (const std::string& difference : row->outside()) {
      auto at = std::ranges::find_if(differences, [&](const auto& one) { return one.first == difference; });
      if (at == differences.end()) at = differences.insert(at, {difference, {}});
      at->second.push_back(row->name());
    }
  }
  if (differences.empty()) {
    return text.push_back(
        Tr("The ranges hold about 9 of 10 published steps, each predicted from the other systems."));
  }
  std::vector<std::string> outside;
  for (const auto& [difference, names] : differences) {
    outside.push_back(names.size() == rows.size() ? difference
                                                  : Tr("$0: $1", absl::StrJoin(names, Tr(", ")), difference));
  }
  text.push_back(Tr("Extrapolated, so the ranges are wider: $0.", absl::StrJoin(outside, Tr("; "))));
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

// Memory that the training needs, and tokens/s.
void AddModel(const PredictReport& report, std::vector<std::string>& text) {
  constexpr double kPerParameter = 16;  // float32 weights, gradients, and Adam's two moments
  const Workload& workload = report.predictor->workload();
  const double needed = kPerParameter / 4 * static_cast<double>(workload.bytes()),
               most = MostMemoryOf(workload.device);
  if (most > 0 && needed > most) {
    text.push_back(
        Tr("Weights, gradients and Adam's two moments need $0 GB (16 bytes per parameter), but a GPU of this "
           "type has at most $1 GB. Training that shards them is not predicted.",
           absl::StrFormat("%.0f", 1e-9 * needed), absl::StrFormat("%.0f", 1e-9 * most)));
  }
  if (!(workload.tokens_per_sample > 0) || !(workload.compute_ms() > 0)) return;
  std::vector<std::string> parts;
  for (const PredictedRow& row : report.rows) {
    if (row.point.workers != MostWorkers(report)) continue;
    const double tokens = row.expected().samples_per_s * workload.tokens_per_sample;
    parts.push_back(Tr("$0 with $1", absl::StrFormat("%.4g", tokens), row.name()));
  }
  text.push_back(Tr("Tokens/s with $0 workers: $1.", MostWorkers(report), absl::StrJoin(parts, Tr(", "))));
}

// Without the number of servers if it depends on the number of workers.
std::string NameIn(const PredictReport& report, const PredictedRow& row) {
  return report.servers_per_node && !row.uneven_share() ? row.point.strategy.name : row.name();
}

// The places from which another one is fastest. `fastest`: (place, name), the name empty if no winner is
// shown.
std::vector<std::string> Changes(const std::vector<std::pair<std::string, std::string>>& fastest,
                                 const char* first, const char* first_without_winner) {
  std::vector<std::string> parts;
  const std::string* last = nullptr;
  for (const auto& [place, name] : fastest) {
    if (last != nullptr && name == *last) continue;
    const char* const phrase = name.empty() ? last ? TrNoop("no winner from $1 on") : first_without_winner
                               : last       ? TrNoop("$0 from $1 on")
                                            : first;
    parts.push_back(Tr(phrase, name, place));
    last = &name;
  }
  return parts;
}

void AddCrossoverByWorkers(const PredictReport& report, std::vector<std::string>& text) {
  std::vector<std::pair<std::string, std::string>> fastest;
  for (const int workers : WorkerCounts(report)) {
    const std::optional<PredictionVerdict> verdict = VerdictAt(report, workers);
    if (!verdict) continue;
    fastest.emplace_back(absl::StrCat(workers), verdict->shown ? NameIn(report, *verdict->winner) : "");
  }
  const std::vector<std::string> parts =
      Changes(fastest, TrNoop("$0 is fastest with $1 workers"), TrNoop("no winner with $1 workers"));
  if (parts.size() == 1) {
    const std::string& name = fastest.front().second;
    text.push_back(
        Tr(name.empty()
               ? TrNoop("Crossover in workers: none; no winner is shown for any requested number of workers.")
               : TrNoop("Crossover in workers: none; $0 is fastest for every requested number of workers."),
           name));
  }
  if (parts.size() > 1) text.push_back(Tr("Crossover in workers: $0.", absl::StrJoin(parts, Tr(", "))));
}

void AddCrossoverBySize(const PredictReport& report, std::vector<std::string>& text) {
  std::vector<std::pair<std::string, std::string>> fastest;
  for (const auto& [bytes, point] : report.findings.fastest_by_size) {
    fastest.emplace_back(ByteSizeText(static_cast<uint64_t>(bytes)),
                         point ? PredictedRow{.point = *point}.name() : "");
  }
  if (fastest.empty()) return;
  const std::vector<std::string> parts =
      Changes(fastest, TrNoop("$0 is fastest from $1 on"), TrNoop("no winner from $1 on"));
  text.push_back(Tr("Crossover in size for one exchange with $0 workers, without computation: $1.",
                    MostWorkers(report), absl::StrJoin(parts, Tr(", "))));
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
  const double server = 1e9 * (cluster.server_add_s_per_byte + cluster.server_update_s_per_byte);
  return NetworkText(cluster) +
         Tr("; a server adds and updates in $0 ns per byte", absl::StrFormat("%.2f", server));
}

std::string RangeText(const PredictReport& report) {
  return DescribedOnly(report) ? Tr("range: the model's own error.")
                               : Tr("range: contains the result in 9 of 10 cases, as it did "
                                    "for published systems that were predicted "
                                    "from the others.");
}

Cluster ExpectedCluster(const PredictReport& report) {
  const std::vector<const PredictedRow*> rows = LastRows(report);
  return rows.empty() ? report.cluster : ClusterOf(report, *rows.front(), 0);
}

// Of the header.
std::string GradientsText(const PredictReport& report) {
  const double mb = 1e-6 * static_cast<double>(report.predictor->workload().bytes()),
               sent = mb * report.predictor->options().wire_part;
  const std::string text = absl::StrFormat("%.1f", mb);
  return sent < mb ? Tr("$0 MB of float32 gradients, sent as $1 MB in 16 bits,", text,
                        absl::StrFormat("%.1f", sent))
                   : Tr("$0 MB of gradients", text);
}

}  // namespace

std::string NetworkText(const Cluster& cluster) {
  std::string text =
      Tr("$0 with $1 GPU$2 each; $3$4 between nodes ($5 of the rate is usable, latency $6 us)",
         cluster.name.empty() ? Tr("nodes") : Tr("$0: nodes", cluster.name), cluster.gpus_per_node,
         cluster.gpus_per_node > 1 ? "s" : "",
         cluster.cards_per_node > 1 ? absl::StrCat(cluster.cards_per_node, " x ") : "",
         BitRateText(8 * cluster.link_bytes_per_s), ThreeDigits(cluster.fraction), 1e6 * cluster.latency_s);
  if (cluster.gpus_per_node > 1) {
    text += Tr("; $0 inside a node (latency $1 us)", BitRateText(8 * cluster.intra_bytes_per_s),
               1e6 * cluster.intra_latency_s);
  }
  if (cluster.rings > 1) text += Tr("; $0 rings", cluster.rings);
  if (cluster.oversubscription > 1) text += Tr("; oversubscribed $0 : 1", cluster.oversubscription);
  return text;
}

std::string FasterWithLinks(const Cluster& cluster, int workers, double factor, const std::string& other) {
  const bool between = ShapeOf(cluster, workers).nodes > 1;
  const double rate = between ? cluster.link_bytes_per_s : cluster.intra_bytes_per_s;
  return Tr(factor > 1 ? TrNoop(" With $0 of $1 or more, $2 would be faster.")
                       : TrNoop(" With $0 of $1 or less, $2 would be faster."),
            between ? Tr("links between nodes") : Tr("links inside a node"), BitRateText(8 * rate * factor),
            other);
}

bool DescribedOnly(const PredictReport& report) {
  return std::ranges::all_of(report.rows, [](const PredictedRow& row) { return row.system == "none"; });
}

std::string KnownText(const std::set<std::string>& given, const Causes& published, const Causes& used) {
  const auto ends = [](const CauseRange& range) {
    return Tr("$0 to $1", ThreeDigits(range.low), ThreeDigits(range.high));
  };
  std::vector<std::string> parts;
  for (const auto& [name, range] : published) {
    if (!given.contains(name)) continue;
    const auto now = used.find(name);
    parts.push_back(now == used.end() || now->second.low == now->second.high
                        ? Tr("$0 (otherwise $1)", name, ends(range))
                        : Tr("$0 ($1, otherwise $2)", name, ends(now->second), ends(range)));
  }
  return parts.empty()
             ? ""
             : Tr("Given or measured, so the ranges are narrower: $0.", absl::StrJoin(parts, Tr(", ")));
}

int MostWorkers(const PredictReport& report) { return report.rows.back().point.workers; }

const char* PlaceName(ServerPlace place) {
  constexpr const char* kNames[] = {"rank0", "dedicated", "colocated"};
  return kNames[static_cast<size_t>(place)];
}

std::string PredictText(const PredictReport& report) {
  const Workload& workload = report.predictor->workload();
  const auto time = [](double ms) { return absl::StrCat(Milliseconds(1e-3 * ms), ms < 1e5 ? " ms" : ""); };
  std::string text =
      Wrap(Tr("Prediction; nothing was run, and every figure is simulated. Workload: $0, $1 in "
              "$2 buckets, batch $3 per worker, forward $4, backward $5 ($6). Cluster: $7.",
              workload.name, GradientsText(report), report.predictor->buckets(), workload.batch,
              time(workload.forward_ms), time(workload.backward_ms), workload.device,
              ClusterText(ExpectedCluster(report))),
           "");
  const bool cuts_model = !report.pipelines.empty();
  absl::StrAppend(
      &text, "\n", cuts_model ? PipelineTable(report) : PredictTable(report), "\n",
      Wrap(cuts_model ? PipelineLegend()
                      : absl::StrCat(Tr("Times are ms of a worker's mean step, or seconds if marked; without "
                                        "computing, the range is that of the step. limited by: the resource "
                                        "that is busy most of the time, and its share."),
                                     SentenceGap(), RangeText(report)),
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
    AddModel(report, sentences);
  }
  for (const std::string& note : report.notes) sentences.push_back(note);
  AddCalibration(report, sentences);
  AddRemarks(report, sentences);
  for (const std::string& sentence : sentences) text += Wrap(sentence, "- ");
  return absl::StrCat(text, "\n", Wrap(cuts_model ? PipelineVerdict(report) : VerdictText(report), ""));
}

}  // namespace psring
