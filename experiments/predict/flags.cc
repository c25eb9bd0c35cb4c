#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/bit_rate.h"
#include "common/base/check.h"
#include "common/base/command_line.h"
#include "common/base/delays.h"
#include "experiments/plan/estimate.h"
#include "experiments/predict/predict.h"
#include "experiments/texts/language_flag.h"
#include "experiments/virtual_cluster/link.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {
namespace {

constexpr int kMostPredicted = 1 << 20;

absl::Status Wrong(const std::string& flag, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

absl::Status Rate(const std::string& flag, const std::string& text, double& bytes_per_s) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<double> bits = ParseBitRate(text);
  if (!bits.ok()) return Wrong(flag, bits.status());
  bytes_per_s = *bits / 8;
  return absl::OkStatus();
}

absl::Status Latency(const std::string& flag, const std::string& text, double& seconds) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<double> latency = ParseLatency(text);
  if (!latency.ok()) return Wrong(flag, latency.status());
  seconds = *latency;
  return absl::OkStatus();
}

// Ascending and distinct.
absl::StatusOr<std::vector<int>> Counts(const std::string& flag, const std::string& text) {
  absl::StatusOr<std::vector<int>> counts = ParseCounts(text, kMostPredicted);
  if (!counts.ok()) return Wrong(flag, counts.status());
  const std::set<int> sorted(counts->begin(), counts->end());
  return std::vector<int>(sorted.begin(), sorted.end());
}

absl::StatusOr<Delays> UnderstandDelays(const RawPredictFlags& raw, int least_workers) {
  Delays delays{.seed = raw.seed};
  PSRING_RETURN_IF_ERROR(CheckStragglers(raw.straggler, least_workers));
  PSRING_ASSIGN_OR_RETURN(const std::vector<Straggler> stragglers, ParseStragglers(raw.straggler));
  for (int worker = 0; worker < least_workers && !stragglers.empty(); ++worker) {
    delays.slowness.push_back(SlownessOf(stragglers, worker));
  }
  PSRING_ASSIGN_OR_RETURN(delays.jitter, ParseTimeDistribution(raw.jitter_ms));
  return delays;
}

absl::StatusOr<Cluster> UnderstandCluster(const RawPredictFlags& raw) {
  Cluster cluster;
  if (!raw.cluster.empty()) {
    PSRING_ASSIGN_OR_RETURN(cluster, LoadCluster(raw.cluster));
  }
  PSRING_RETURN_IF_ERROR(Rate("--link", raw.link, cluster.link_bytes_per_s));
  PSRING_RETURN_IF_ERROR(Rate("--intra", raw.intra, cluster.intra_bytes_per_s));
  PSRING_RETURN_IF_ERROR(Latency("--latency", raw.latency, cluster.latency_s));
  PSRING_RETURN_IF_ERROR(Latency("--intra_latency", raw.intra_latency, cluster.intra_latency_s));
  cluster.gpus_per_node = raw.gpus_per_node.value_or(cluster.gpus_per_node);
  cluster.cards_per_node = raw.cards_per_node.value_or(cluster.cards_per_node);
  cluster.rings = raw.rings.value_or(cluster.rings);
  cluster.fraction = raw.fraction.value_or(cluster.fraction);
  cluster.oversubscription = raw.oversubscription.value_or(cluster.oversubscription);
  return cluster;
}

}  // namespace

CLI::App* AddPredict(CLI::App& app, RawPredictFlags& raw) {
  CLI::App* verb = app.add_subcommand(
      "predict", "Simulate what a step would cost on other machines and networks; nothing is run");
  const auto add = [&](const std::string& group, const char* names, auto& to, const char* value,
                       const std::string& text) {
    return verb->add_option(names, to, text)->group(group)->option_text(value);
  };
  std::vector<std::string> clusters;
  for (const ClusterPreset& preset : ClusterPresets()) {
    clusters.push_back(absl::StrCat(preset.cluster.name, " (", preset.summary, ")"));
  }
  const char* what = "What is predicted";
  add(what, "--workload", raw.workload, "NAME",
      absl::StrCat("Recorded layer times: ", absl::StrJoin(WorkloadNames(), ", "),
                   ", or a CSV file [resnet50]"));
  add(what, "--strategies,--strategy", raw.strategies, "NAMES",
      absl::StrCat("Comma-separated: all-reduces by algorithm (",
                   absl::StrJoin(AlgorithmsFor(Collective::kAllReduce), ", "),
                   "), ps-sync, ps-async, ps-ssp:K, none [ring,ps-sync,ps-async]"));
  add(what, "--workers", raw.workers, "N,...",
      "Comma-separated, or a sequence such as 2,4,8,...,4096 [2,4,8,...,64]");
  add(what, "--servers", raw.servers, "S,...", "Comma-separated; for parameter servers [1]");
  add(InHelpAll(what), "--server_placement", raw.server_placement, "PLACE",
      "rank0: all on rank 0's host; dedicated: a machine each; colocated: one with each of S workers "
      "[rank0]")
      ->check(OneOf({"rank0", "dedicated", "colocated"}));
  add(InHelpAll(what), "--ps_schedule", raw.ps_schedule, "WHEN",
      "pipelined (weights leave bucket by bucket) or serial (after all gradients of the step) [pipelined]")
      ->check(OneOf({"serial", "pipelined"}));
  add(InHelpAll(what), "--bucket_mb", raw.bucket_mb, "MIB", "Size of a bucket; the first has 1 at most [25]")
      ->check(RealNumber({}));
  add(what, "--batch", raw.batch, "N",
      "Samples of a worker's step; computing is scaled from the recorded batch")
      ->check(WholeNumber(1, 1'000'000));
  add(InHelpAll(what), "--compute_speedup", raw.compute_speedup, "X",
      "How many times as fast as the recorded device [1]")
      ->check(RealNumber({}));
  add(what, "--straggler", raw.straggler, "W:F,...", "Worker W (from 0) computes F times as long; or none")
      ->check(StragglersText());
  add(what, "--jitter_ms", raw.jitter_ms, "TIME",
      "A random delay before each step: exp:MEAN, lognormal:MEDIAN:SIGMA, a number, or none")
      ->check(TimeDistributionText());
  add(InHelpAll(what), "--seed", raw.seed, "N", "Of random delays [1]");

  const char* network = "The network";
  add(network, "--cluster", raw.cluster, "NAME",
      absl::StrCat(absl::StrJoin(clusters, "; "), "; or a JSON file. The flags below override it"));
  add(network, "--link", raw.link, "RATE", "Of a node's network card, one direction, with a unit: 25gbit");
  add(network, "--gpus_per_node", raw.gpus_per_node, "N", "Workers on a node [1]")
      ->check(WholeNumber(1, 1024));
  add(network, "--intra", raw.intra, "RATE",
      "Of a GPU to the other GPUs of its node, one direction: 300gbit");
  add(InHelpAll(network), "--cards_per_node", raw.cards_per_node, "N", "Network cards of a node [1]")
      ->check(WholeNumber(1, 64));
  add(InHelpAll(network), "--rings", raw.rings, "N", "Parallel rings, which use as many cards [1]")
      ->check(WholeNumber(1, 64));
  add(network, "--latency", raw.latency, "TIME", "Of a message between nodes, software included [25us]");
  add(InHelpAll(network), "--intra_latency", raw.intra_latency, "TIME", "Within a node [5us]");
  add(InHelpAll(network), "--fraction", raw.fraction, "X",
      "Share of the cards' rate that a program gets [0.9]")
      ->check(RealNumber({}));
  add(InHelpAll(network), "--oversubscription", raw.oversubscription, "X",
      "Sum of the cards' rates over the rate of the fabric [1]")
      ->check(RealNumber({}));
  add(network, "--profile", raw.profile, "FILE",
      "Result of psring bench (its bench.json), from which latency and speed of adding are fitted");

  add("Results", "--out", raw.out, "DIR",
      "Folder for the results, new or empty; else runs/<UTC time>-predict");
  AddLanguageFlag(*verb, raw.language, "Language of the output, and initially of the page: en or zh")
      ->group("Results");
  AddConfigFlag(*verb, "Results");
  return verb;
}

absl::StatusOr<PredictFlags> UnderstandPredict(const RawPredictFlags& raw,
                                               const std::vector<std::string>& command_line) {
  PredictFlags flags{.profile = raw.profile,
                     .files = {raw.workload, raw.cluster, raw.profile},
                     .out = raw.out,
                     .language = LanguageOf(raw.language),
                     .command_line = command_line};
  PSRING_ASSIGN_OR_RETURN(flags.workload, LoadWorkload(raw.workload));
  double speedup = raw.compute_speedup;
  if (raw.batch > 0) {
    // The time per sample stays as recorded.
    speedup *= static_cast<double>(flags.workload.batch) / raw.batch;
    flags.workload.batch = raw.batch;
  }
  flags.workload = Faster(std::move(flags.workload), speedup);
  flags.strategies = absl::StrSplit(raw.strategies, ',');
  PSRING_ASSIGN_OR_RETURN(flags.workers, Counts("--workers", raw.workers));
  PSRING_ASSIGN_OR_RETURN(flags.servers, Counts("--servers", raw.servers));
  PSRING_ASSIGN_OR_RETURN(flags.cluster, UnderstandCluster(raw));
  PSRING_RETURN_IF_ERROR(CheckCluster(flags.cluster));
  for (const int workers : flags.workers) PSRING_RETURN_IF_ERROR(CheckWorkers(flags.cluster, workers));
  flags.options = {.buckets = {.first_mb = std::min(1.0, raw.bucket_mb), .others_mb = raw.bucket_mb},
                   .place = PlaceOf(raw.server_placement),
                   .pipelined = raw.ps_schedule == "pipelined",
                   .seed = raw.seed};
  PSRING_ASSIGN_OR_RETURN(flags.options.delays, UnderstandDelays(raw, flags.workers.front()));
  return flags;
}

}  // namespace psring
