#include "experiments/predict/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/bit_rate.h"
#include "common/base/check.h"
#include "common/base/command_line.h"
#include "experiments/texts/language_flag.h"
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
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
      duration > absl::Seconds(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": '", text, "' is no latency; write 25us or 0.5ms"));
  }
  seconds = absl::ToDoubleSeconds(duration);
  return absl::OkStatus();
}

absl::Status Whole(const std::string& flag, const std::string& text, int& value) {
  if (text.empty() || absl::SimpleAtoi(text, &value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": '", text, "' is no whole number"));
}

absl::Status Real(const std::string& flag, const std::string& text, double& value) {
  if (text.empty() || absl::SimpleAtod(text, &value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": '", text, "' is no number"));
}

// "2:1.5": so many workers, so many times as slow.
absl::Status Stragglers(const std::string& text, PredictOptions& options) {
  if (text.empty()) return absl::OkStatus();
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  if (absl::SimpleAtoi(parts.first, &options.slow_workers) && options.slow_workers >= 1 &&
      absl::SimpleAtod(parts.second, &options.slowness) && options.slowness >= 1 &&
      options.slowness <= 1000) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--stragglers: '", text, "' does not say how many workers are how many times as slow, as in 1:2"));
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
  PSRING_RETURN_IF_ERROR(Whole("--gpus_per_node", raw.gpus_per_node, cluster.gpus_per_node));
  PSRING_RETURN_IF_ERROR(Whole("--cards_per_node", raw.cards_per_node, cluster.cards_per_node));
  PSRING_RETURN_IF_ERROR(Whole("--rings", raw.rings, cluster.rings));
  PSRING_RETURN_IF_ERROR(Real("--fraction", raw.fraction, cluster.fraction));
  PSRING_RETURN_IF_ERROR(Real("--oversubscription", raw.oversubscription, cluster.oversubscription));
  return cluster;
}

}  // namespace

absl::StatusOr<std::vector<int>> ParseCounts(const std::string& text, int most) {
  const auto wrong = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "': ", why));
  };
  std::vector<int64_t> list;
  bool goes_on = false;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (part == "...") {
      if (list.size() < 2 || goes_on)
        return wrong("before ... stand two numbers, and behind it the last one, as in 2,4,...,64");
      goes_on = true;
      continue;
    }
    int64_t number = 0;
    if (!absl::SimpleAtoi(part, &number) || number < 1 || number > most) {
      return wrong(absl::StrCat("'", part, "' is no whole number from 1 to ", most));
    }
    if (goes_on) {
      goes_on = false;
      const int64_t last = list.back(), before = list[list.size() - 2];
      int64_t reached = last;
      if (last > before && last % before == 0) {
        while (reached < number) reached *= last / before;
      }
      if (reached == number) {
        for (int64_t next = last; next < number;) list.push_back(next *= last / before);
        continue;
      }
      if (last <= before || number < last || (number - last) % (last - before) != 0) {
        return wrong(absl::StrCat("neither by factor nor by difference does ", before, ",", last,
                                  " go on to ", number));
      }
      if ((number - last) / (last - before) > 10'000) return wrong("that are too many numbers");
      for (int64_t next = last; next < number;) list.push_back(next += last - before);
      continue;
    }
    list.push_back(number);
  }
  if (goes_on) return wrong("behind ... stands the last number, as in 2,4,...,64");
  const std::set<int64_t> sorted(list.begin(), list.end());
  return std::vector<int>(sorted.begin(), sorted.end());
}

CLI::App* AddPredict(CLI::App& app, RawPredictFlags& raw) {
  CLI::App* verb = app.add_subcommand(
      "predict",
      "What a step would cost on machines and networks that are not here: simulated, nothing is run");
  const auto add = [&](const char* group, const char* names, auto& to, const char* value,
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
      absl::StrCat("Several with commas: all-reduces by algorithm (",
                   absl::StrJoin(AlgorithmsFor(Collective::kAllReduce), ", "),
                   "), ps-sync, ps-async, ps-ssp:K, none [ring,ps-sync,ps-async]"));
  add(what, "--workers", raw.workers, "N,...",
      "Several with commas; 2,4,8,...,4096 is understood [2,4,8,...,64]");
  add(what, "--servers", raw.servers, "S,...", "Several with commas; for parameter servers [1]");
  add(what, "--server_placement", raw.server_placement, "PLACE",
      "rank0: all on rank 0's host; dedicated: a machine each; colocated: one beside each of S workers "
      "[rank0]")
      ->check(OneOf({"rank0", "dedicated", "colocated"}));
  add(what, "--ps_schedule", raw.ps_schedule, "WHEN",
      "serial (push everything, then pull) or pipelined [pipelined]")
      ->check(OneOf({"serial", "pipelined"}));
  add(what, "--bucket_mb", raw.bucket_mb, "MIB", "Size of a bucket; the first has 1 at most [25]")
      ->check(RealNumber({}));
  add(what, "--batch", raw.batch, "N",
      "Samples of a worker's step; computing is scaled from the recorded batch")
      ->check(WholeNumber(1, 1'000'000));
  add(what, "--compute_speedup", raw.compute_speedup, "X",
      "Devices so many times as fast as the recorded one [1]")
      ->check(RealNumber({}));
  add(what, "--stragglers", raw.stragglers, "K:X", "K workers X times as slow");
  add(what, "--jitter", raw.jitter, "CV", "Coefficient of variation of a step's computing time [0]")
      ->check(RealNumber({.high = 2, .low_allowed = true, .high_allowed = true}));
  add(what, "--seed", raw.seed, "N", "Of what is random [1]");

  const char* network = "The network";
  add(network, "--cluster", raw.cluster, "NAME",
      absl::StrCat(absl::StrJoin(clusters, "; "), "; or a JSON file. The flags below change it"));
  add(network, "--link", raw.link, "RATE",
      "Of a node's card to other nodes, one direction, with its unit: 25gbit");
  add(network, "--gpus_per_node", raw.gpus_per_node, "N", "Workers on a node [1]");
  add(network, "--intra", raw.intra, "RATE", "Of a GPU to those of its node, one direction: 300gbit");
  add(network, "--cards_per_node", raw.cards_per_node, "N", "[1]");
  add(network, "--rings", raw.rings, "N", "Rings side by side, which use as many cards [1]");
  add(network, "--latency", raw.latency, "TIME", "Of a message between nodes, software included [25us]");
  add(network, "--intra_latency", raw.intra_latency, "TIME", "Within a node [5us]");
  add(network, "--fraction", raw.fraction, "X", "Of the cards' rate that a program gets [0.9]");
  add(network, "--oversubscription", raw.oversubscription, "X",
      "All cards' rates over what the fabric carries [1]");
  add(network, "--profile", raw.profile, "FILE",
      "What psring bench measured (its bench.json): latency and speed of adding are fitted from it");

  add("Results", "--out", raw.out, "DIR",
      "Folder for the results, new or empty; else runs/<UTC time>-predict");
  AddLanguageFlag(*verb, raw.language, "What is printed, and what the page opens with: en or zh")
      ->group("Results");
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
    // Time by sample stays what it was recorded as.
    speedup *= static_cast<double>(flags.workload.batch) / raw.batch;
    flags.workload.batch = raw.batch;
  }
  flags.workload = Faster(std::move(flags.workload), speedup);
  flags.strategies = absl::StrSplit(raw.strategies, ',');
  absl::StatusOr<std::vector<int>> counts = ParseCounts(raw.workers, kMostPredicted);
  if (!counts.ok()) return Wrong("--workers", counts.status());
  flags.workers = *counts;
  counts = ParseCounts(raw.servers, kMostPredicted);
  if (!counts.ok()) return Wrong("--servers", counts.status());
  flags.servers = *counts;
  PSRING_ASSIGN_OR_RETURN(flags.cluster, UnderstandCluster(raw));
  PSRING_RETURN_IF_ERROR(CheckCluster(flags.cluster));
  for (const int workers : flags.workers) PSRING_RETURN_IF_ERROR(CheckWorkers(flags.cluster, workers));
  flags.options = {.buckets = {.first_mb = std::min(1.0, raw.bucket_mb), .others_mb = raw.bucket_mb},
                   .place = raw.server_placement == "dedicated"   ? ServerPlace::kDedicated
                            : raw.server_placement == "colocated" ? ServerPlace::kColocated
                                                                  : ServerPlace::kRank0,
                   .pipelined = raw.ps_schedule == "pipelined",
                   .jitter = raw.jitter,
                   .seed = raw.seed};
  PSRING_RETURN_IF_ERROR(Stragglers(raw.stragglers, flags.options));
  if (flags.options.slow_workers > flags.workers.front()) {
    return absl::InvalidArgumentError(absl::StrCat("--stragglers: ", flags.options.slow_workers, " of ",
                                                   flags.workers.front(), " workers cannot be slow"));
  }
  return flags;
}

}  // namespace psring
