#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/cli/command_line.h"
#include "common/cli/delays.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "common/workloads/changes.h"
#include "common/workloads/devices.h"
#include "experiments/design/estimate.h"
#include "experiments/verbs/predict/causes.h"
#include "experiments/verbs/predict/layout_answer.h"
#include "experiments/verbs/predict/pipeline_flags.h"
#include "experiments/verbs/predict/predict.h"
#include "experiments/virtual_cluster/link.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {
namespace {

constexpr int kMaxPredicted = 1 << 20;

absl::Status Wrong(const std::string& flag, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

absl::StatusOr<double> BytesPerSecond(const std::string& rate) {
  PSRING_ASSIGN_OR_RETURN(const double bits_per_s, ParseBitRate(rate));
  return bits_per_s / 8;
}

// Ascending and distinct.
absl::StatusOr<std::vector<int>> Counts(const std::string& flag, const std::string& text) {
  absl::StatusOr<std::vector<int>> counts = ParseCounts(text, kMaxPredicted);
  if (!counts.ok()) return Wrong(flag, counts.status());
  const std::set<int> sorted(counts->begin(), counts->end());
  return std::vector<int>(sorted.begin(), sorted.end());
}

bool LinkComesFromProfile(const RawPredictFlags& raw) {
  return raw.link.empty() && raw.cluster.empty() && !raw.profile.empty();
}

absl::StatusOr<Cluster> UnderstandCluster(const RawPredictFlags& raw,
                                          const std::optional<MachineProfile>& profile) {
  Cluster cluster;
  if (!raw.cluster.empty()) {
    PSRING_ASSIGN_OR_RETURN(cluster, LoadCluster(raw.cluster));
  }
  if (LinkComesFromProfile(raw)) {
    cluster.link_bytes_per_s = profile->link_bytes_per_s;
    if (profile->link_bytes_per_s > 0) cluster.fraction = 1;  // it is what a program gets
  }
  struct TextFlag {
    const char* name;
    const std::string& text;
    absl::StatusOr<double> (*parse)(const std::string& text);
    double& value;
  };
  for (const auto& [name, text, parse, value] :
       {TextFlag{"--link", raw.link, BytesPerSecond, cluster.link_bytes_per_s},
        TextFlag{"--intra", raw.intra, BytesPerSecond, cluster.intra_bytes_per_s},
        TextFlag{"--latency", raw.latency, ParseLatency, cluster.latency_s},
        TextFlag{"--intra_latency", raw.intra_latency, ParseLatency, cluster.intra_latency_s},
        TextFlag{"--connection", raw.connection, BytesPerSecond, cluster.connection_bytes_per_s},
        TextFlag{"--barrier", raw.barrier, ParseLatency, cluster.barrier_s}}) {
    if (text.empty()) continue;
    const absl::StatusOr<double> parsed = parse(text);
    if (!parsed.ok()) return Wrong(name, parsed.status());
    value = *parsed;
  }
  cluster.gpus_per_node = raw.gpus_per_node.value_or(cluster.gpus_per_node);
  cluster.cards_per_node = raw.cards_per_node.value_or(cluster.cards_per_node);
  cluster.rings = raw.rings.value_or(cluster.rings);
  cluster.fraction = raw.fraction.value_or(cluster.fraction);
  cluster.oversubscription = raw.oversubscription.value_or(cluster.oversubscription);
  cluster.node_loss = raw.node_loss.value_or(cluster.node_loss);
  for (const auto& [ns, to] : {std::pair(raw.server_add_ns, &cluster.server_add_s_per_byte),
                               {raw.server_update_ns, &cluster.server_update_s_per_byte},
                               {raw.server_worker_ns, &cluster.server_worker_s_per_byte}}) {
    if (ns) *to = 1e-9 * *ns;
  }
  return cluster;
}

// The constants that flags or a --cluster set; `cluster` is the result of both.
std::set<std::string> Given(const RawPredictFlags& raw, const Cluster& cluster) {
  std::set<std::string> given;
  const Cluster described;  // a value of --cluster counts if it is not the default
  for (const auto& [set, name] :
       {std::pair(raw.fraction.has_value() || cluster.fraction != described.fraction ||
                      (LinkComesFromProfile(raw) && cluster.link_bytes_per_s > 0),
                  "fraction"),
        {!raw.latency.empty() || cluster.latency_s != described.latency_s || !raw.profile.empty(),
         "latency_us"},
        {raw.compute_varies != "none", "compute_cv"},
        {raw.node_loss.has_value() || cluster.node_loss > 0, "node_loss"},
        {raw.server_worker_ns.has_value() || cluster.server_worker_s_per_byte > 0, "server_worker_ns"},
        {!raw.barrier.empty() || cluster.barrier_s > 0, "barrier_us"},
        {raw.window_mb.has_value() || cluster.connection_bytes_per_s > 0, "window_mb"}}) {
    if (set) given.insert(name);
  }
  return given;
}

// "fraction, latency_us"
template <typename Rows>
std::string Names(const Rows& rows) {
  return absl::StrJoin(rows, ", ", [](std::string* out, const auto& row) { absl::StrAppend(out, row.name); });
}

// Sets the cost of the servers' wire, if a profile has it and no flag or --cluster gives it.
absl::Status UnderstandServerWire(const RawPredictFlags& raw, PredictFlags& flags) {
  flags.server_wire = raw.server_wire.empty() ? "grpc" : raw.server_wire;
  const double cost = flags.profile ? ServerSecondsPerByte(*flags.profile, flags.server_wire) : 0;
  if (!raw.server_wire.empty() && raw.calibrate.empty() && cost <= 0) {
    return absl::InvalidArgumentError(Tr(
        "--server_wire $0 needs the measured cost of this wire: --profile with a run of bench --collective "
        "all_reduce,ps_push_pull --transport tcp --server_wire grpc,stream",
        raw.server_wire));
  }
  double& host = flags.cluster.server_worker_s_per_byte;
  if (host <= 0 && !raw.server_worker_ns) host = cost;
  return absl::OkStatus();
}

absl::Status UnderstandCalibrate(const RawPredictFlags& raw, PredictFlags& flags) {
  flags.calibrate = raw.calibrate;
  flags.workload_given = !raw.workload.empty();
  if (raw.fit.empty()) return absl::OkStatus();
  if (raw.calibrate.empty()) return absl::InvalidArgumentError(Tr("--fit needs --calibrate RUN"));
  flags.fitted = absl::StrSplit(raw.fit, ',');
  for (const std::string& name : flags.fitted) {
    if (FindConstant(name) != nullptr) continue;
    return absl::InvalidArgumentError(
        Tr("--fit: unknown constant '$0'; use one of $1", name, Names(ConstantInfos())));
  }
  if (flags.fitted.size() > 2) {
    return absl::InvalidArgumentError(Tr("--fit: a run determines at most two constants; name one or two"));
  }
  return absl::OkStatus();
}

// What training with shards does not support is not predicted either.
absl::Status CheckShards(const RawPredictFlags& raw, const PredictFlags& flags) {
  bool any_divides = false;
  for (const std::string& name : flags.strategies) {
    const absl::StatusOr<StrategyRow> strategy = FindStrategy(name);
    if (!strategy.ok() || !strategy->shards_updates) continue;
    any_divides = true;
    for (const int workers : flags.workers) {
      TrainingOptions training;
      training.wire = raw.wire;
      training.dp_shard = workers > 1 ? raw.dp_shard : 0;
      PSRING_RETURN_IF_ERROR(CheckShardFlags(training, *strategy, workers));
    }
  }
  if (any_divides || raw.dp_shard == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      Tr("--dp_shard is for zero1, zero2 and fsdp; name one, or omit the flag"));
}

}  // namespace

CLI::App* AddPredict(CLI::App& app, RawPredictFlags& raw) {
  CLI::App* verb = app.add_subcommand(
      "predict", "Simulate what a step would cost on other machines and networks; nothing is run");
  const auto add = [&](const std::string& group, const char* names, auto& to, const char* value,
                       const std::string& text, const ValueCheck& check = {}) {
    CLI::Option* const option = verb->add_option(names, to, text)->group(group)->option_text(value);
    if (check) option->check(check);
  };
  const std::string clusters =
      absl::StrJoin(ClusterPresets(), "; ", [](std::string* out, const ClusterPreset& preset) {
        absl::StrAppend(out, preset.cluster.name, " (", preset.summary, ")");
      });
  const char* what = "What is predicted";
  add(what, "--workload", raw.workload, "NAME",
      absl::StrCat("Recorded layer times: ", absl::StrJoin(WorkloadNames(), ", "),
                   ", or a CSV file [resnet50]"));
  add(what, "--strategies,--strategy", raw.strategies, "NAME,...",
      absl::StrCat("Comma-separated: all-reduces by algorithm (",
                   absl::StrJoin(AlgorithmsFor(Collective::kAllReduce), ", "),
                   "), zero1, zero2, fsdp, ps-sync, ps-async, ps-ssp:K, ps-backup:B, none "
                   "[ring,ps-sync,ps-async; with --pp: ring]"));
  add(what, "--workers", raw.workers, "N,...",
      "Comma-separated, or a sequence such as 2,4,8,...,4096 [2,4,8,...,64; with --pp P: P]");
  add(what, "--servers", raw.servers, "S,...",
      "Comma-separated; for parameter servers; or nodes: one for each machine with workers [1]");
  add(InHelpAll(what), "--server_placement", raw.server_placement, "PLACE",
      "dedicated: a machine each; colocated: one with each of S workers; rank0: all on rank 0's host, which "
      "then uses no link [dedicated]",
      OneOf({"rank0", "dedicated", "colocated"}));
  add(InHelpAll(what), "--ps_schedule", raw.ps_schedule, "WHEN",
      "pipelined (weights leave bucket by bucket) or serial (after all gradients of the step) [pipelined]",
      OneOf({"serial", "pipelined"}));
  add(InHelpAll(what), "--bucket_mb", raw.bucket_mb, "MIB", "Size of a bucket; the first has at most 1 [25]",
      RealNumber({}));
  verb->add_flag("--local_aggregation", raw.local_aggregation,
                 "Workers of a machine add their gradients, and one of them pushes the sum")
      ->group(what);
  add(InHelpAll(what), "--partition_mb", raw.partition_mb, "MIB",
      "Divide larger tensors into pieces of at most this size [0: whole tensors]",
      RealNumber({.low_allowed = true}));
  add(InHelpAll(what), "--overlap", raw.overlap, "WHEN",
      "backward: send a gradient as soon as it is ready; none: after backward has ended [backward]",
      OneOf({"backward", "none"}));
  verb->add_flag("--exchange_only", raw.exchange_only, "Ignore computing: a step is one exchange")
      ->group(InHelpAll(what));
  add(InHelpAll(what), "--dp_shard", raw.dp_shard, "S",
      "zero1, zero2, fsdp: so many consecutive workers, such as those of a node, have one copy of the state "
      "together [all workers]",
      WholeNumber(2, kMaxPredicted));
  add(what, "--wire", raw.wire, "TYPE",
      "Type of the gradients that are sent: float32, bfloat16 or float16 [float32]",
      OneOf({"float32", "bfloat16", "float16"}));
  add(what, "--compute_varies", raw.compute_varies, "HOW",
      "How computing time varies between machines: normal:CV, lognormal:CV, or a file of measured times, one "
      "per line [by --system; none: it does not vary]");
  add(what, "--batch", raw.batch, "N",
      "Samples per worker and step, or with --pp per micro-batch; computing time is scaled from the recorded "
      "batch",
      WholeNumber(1, 1'000'000));
  add(what, "--device", raw.device, "NAME",
      absl::StrCat("Use the published computing speed of ", Names(MeasuredDevices()),
                   " [the recorded device]"));
  add(InHelpAll(what), "--compute_speedup", raw.compute_speedup, "X",
      "How many times as fast as the recorded device, or as that of --device [1]", RealNumber({}));
  add(what, "--straggler", raw.straggler, "W:F,...", "Worker W (from 0) computes F times as long; or none",
      StragglersText());
  add(what, "--jitter_ms", raw.jitter_ms, "TIME",
      "A random delay before each step: exp:MEAN, lognormal:MEDIAN:SIGMA, a number, or none",
      TimeDistributionText());
  add(InHelpAll(what), "--seed", raw.seed, "N", "Seed of random delays [1]");

  AddPipelineFlags(*verb, raw);
  AddLayoutFlags(*verb, raw);

  const char* network = "The network";
  add(network, "--cluster", raw.cluster, "NAME",
      absl::StrCat(clusters, "; or a JSON file. The flags below override it"));
  add(network, "--link", raw.link, "RATE", "Rate of a node's network card in one direction, such as 25gbit",
      ParsedBy(ParseBitRate));
  add(network, "--gpus_per_node", raw.gpus_per_node, "N", "Workers on a node [1]", WholeNumber(1, 1024));
  add(network, "--intra", raw.intra, "RATE",
      "Rate between a GPU and the other GPUs of its node, in one direction, such as 300gbit",
      ParsedBy(ParseBitRate));
  add(InHelpAll(network), "--cards_per_node", raw.cards_per_node, "N", "Network cards of a node [1]",
      WholeNumber(1, 64));
  add(InHelpAll(network), "--rings", raw.rings, "N", "Parallel rings, which use as many cards [1]",
      WholeNumber(1, 64));
  add(network, "--latency", raw.latency, "TIME",
      "Latency of a message between nodes, including software [25us]", ParsedBy(ParseLatency));
  add(InHelpAll(network), "--intra_latency", raw.intra_latency, "TIME",
      "Latency of a message within a node [5us]", ParsedBy(ParseLatency));
  add(InHelpAll(network), "--fraction", raw.fraction, "X",
      "Share of the cards' rate that is usable [by --system; none: 0.9]", RealNumber({}));
  add(InHelpAll(network), "--oversubscription", raw.oversubscription, "X",
      "Sum of the cards' rates over the rate of the fabric [1]", RealNumber({}));
  add(InHelpAll(network), "--connection", raw.connection, "RATE",
      "Highest rate of one TCP connection [its window over the round trip]", ParsedBy(ParseBitRate));
  add(InHelpAll(network), "--window_mb", raw.window_mb, "MIB",
      "Largest window of a TCP connection, limited by socket buffers: so many MiB are in flight in a round "
      "trip of twice the latency [3]",
      RealNumber({}));
  add(InHelpAll(network), "--node_loss", raw.node_loss, "X",
      "With n nodes on the switches, 1/(1 + X (log2 n - 1)) of a card's rate is usable [by --system; none: "
      "0]");
  add(InHelpAll(network), "--barrier", raw.barrier, "TIME",
      "Duration of one round of the barrier after a synchronous step; it has log2(machines) rounds [no "
      "barrier]",
      ParsedBy(ParseLatency));
  add(InHelpAll(network), "--server_add_ns", raw.server_add_ns, "NS",
      "A server's time per byte to add a gradient [0.1]");
  add(InHelpAll(network), "--server_update_ns", raw.server_update_ns, "NS",
      "A server's time per byte for its optimizer, once per update [0.1]");
  add(InHelpAll(network), "--server_worker_ns", raw.server_worker_ns, "NS",
      "A server's time per byte that a worker pushes or pulls: receive, copy, send [0]");
  add(InHelpAll(network), "--server_wire", raw.server_wire, "NAME",
      "What servers' payload travels on: grpc, or stream, psring's own connections. With --profile, its "
      "measured cost is the default of --server_worker_ns; with --calibrate, the fit is to its rows [grpc]",
      OneOf({"grpc", "stream"}));
  add(InHelpAll(network), "--network", raw.network, "KIND",
      "tcp or rdma; auto: by the latency; rdma takes less than 10us [auto]", OneOf({"auto", "tcp", "rdma"}));
  add(InHelpAll(network), "--system", raw.system, "NAME",
      absl::StrCat(
          "What is lost besides the described network: auto: as in published systems, most as in those "
          "with similar links; as in one of ",
          Names(PublishedSystems()), "; or none [auto]"));
  add("Results", "--calibrate", raw.calibrate, "RUN",
      "Instead of a prediction, fit the model to the measured steps of a run (its folder or summary.csv), or "
      "to the exchanges of bench --nnodes. The "
      "largest number of workers is withheld and predicted; prints the errors");
  add(InHelpAll("Results"), "--fit", raw.fit, "NAME,...",
      absl::StrCat("With --calibrate: at most two of ", Names(ConstantInfos()),
                   " [fraction and latency_us; servers: fraction and server_worker_ns]"));
  verb->add_flag(
          "--published", raw.published,
          "Instead of a prediction, predict each published system from the others, and print all errors "
          "and ranges")
      ->group(InHelpAll("Results"));
  add(network, "--profile", raw.profile, "RUN",
      "Run of psring bench (its folder or bench.json), to which latency and the speed of adding are fitted; "
      "of several machines (--nnodes) also the links' rate, without --link");

  add("Results", "--out", raw.out, "DIR",
      "Folder for the results, new or empty; default: runs/<UTC time>-predict");
  AddLanguageFlag(*verb, "Language of the output, and initially of the page: en or zh")->group("Results");
  AddConfigFlag(*verb, "Results");
  return verb;
}

absl::StatusOr<PredictFlags> UnderstandPredict(const RawPredictFlags& typed,
                                               const std::vector<std::string>& command_line) {
  const RawPredictFlags raw = WithLayoutDefaults(typed);
  PredictFlags flags{.published = raw.published,
                     .files = {raw.workload, raw.cluster, raw.profile},
                     .out = raw.out,
                     .command_line = command_line};
  if (raw.published) return flags;
  PSRING_ASSIGN_OR_RETURN(flags.workload, LoadWorkload(raw.workload.empty() ? "resnet50" : raw.workload));
  if (raw.batch > 0) {
    // The time per sample stays as recorded.
    flags.workload = Faster(std::move(flags.workload), double(flags.workload.batch) / raw.batch);
    flags.workload.batch = raw.batch;
  }
  if (!raw.device.empty()) {
    absl::StatusOr<Workload> on = OnDevice(flags.workload, raw.device);
    if (!on.ok()) return Wrong("--device", on.status());
    flags.workload = *std::move(on);
    if (raw.compute_speedup != 1)
      flags.workload.device =
          absl::StrFormat("%g times as fast as %s", raw.compute_speedup, flags.workload.device);
  }
  flags.workload = Faster(std::move(flags.workload), raw.compute_speedup);
  if (raw.partition_mb > 0) {
    flags.workload = InPieces(flags.workload, std::llround(raw.partition_mb * (1 << 20)));
  }
  if (raw.overlap == "none") flags.workload = AfterBackward(std::move(flags.workload));
  if (raw.exchange_only) flags.workload = WithoutComputing(std::move(flags.workload));
  const bool cuts_model = raw.pp > 0;
  flags.strategies = absl::StrSplit(!raw.strategies.empty() ? raw.strategies
                                    : cuts_model            ? "ring"
                                                            : "ring,ps-sync,ps-async",
                                    ',');
  const std::string default_workers = cuts_model ? absl::StrCat(raw.pp) : "2,4,8,...,64";
  PSRING_ASSIGN_OR_RETURN(flags.workers,
                          Counts("--workers", raw.workers.empty() ? default_workers : raw.workers));
  flags.servers_per_node = raw.servers == "nodes";
  if (!flags.servers_per_node) {
    PSRING_ASSIGN_OR_RETURN(flags.servers, Counts("--servers", raw.servers));
  }
  if (!raw.profile.empty()) {
    PSRING_ASSIGN_OR_RETURN(flags.profile, LoadMachineProfile(raw.profile));
  }
  PSRING_ASSIGN_OR_RETURN(flags.cluster, UnderstandCluster(raw, flags.profile));
  PSRING_RETURN_IF_ERROR(UnderstandServerWire(raw, flags));
  flags.rdma = raw.network == "auto" ? RdmaShare(flags.cluster) : raw.network == "rdma" ? 1 : 0;
  flags.window_mb = raw.window_mb;
  flags.given = Given(raw, flags.cluster);
  flags.system = raw.system;
  if (raw.system != "auto" && raw.system != "none") {
    const absl::StatusOr<const PublishedSystem*> system = FindSystem(raw.system);
    if (!system.ok()) return Wrong("--system", system.status());
  }
  PSRING_RETURN_IF_ERROR(UnderstandCalibrate(raw, flags));
  // A calibration takes the rate from the run if no flag gives it.
  if (flags.calibrate.empty() || flags.cluster.link_bytes_per_s > 0) {
    PSRING_RETURN_IF_ERROR(CheckCluster(flags.cluster));
  }
  for (const int workers : flags.workers) PSRING_RETURN_IF_ERROR(CheckWorkers(flags.cluster, workers));
  flags.options = {.buckets = {.first_mb = std::min(1.0, raw.bucket_mb), .others_mb = raw.bucket_mb},
                   .place = PlaceOf(raw.server_placement),
                   .pipelined = raw.ps_schedule == "pipelined",
                   .seed = raw.seed,
                   .wire_part = raw.wire == "float32" ? 1 : 0.5,
                   .dp_shard = raw.dp_shard,
                   .local_aggregation = raw.local_aggregation};
  if (raw.local_aggregation && flags.cluster.gpus_per_node == 1) {
    return absl::InvalidArgumentError(
        Tr("--local_aggregation needs several workers on a machine; use --gpus_per_node 8, for example"));
  }
  absl::StatusOr<ComputeVariation> variation = ParseComputeVariation(raw.compute_varies);
  if (!variation.ok()) return Wrong("--compute_varies", variation.status());
  flags.options.variation = *std::move(variation);
  const int least = flags.workers.front();
  PSRING_RETURN_IF_ERROR(CheckStragglers(raw.straggler, least));
  PSRING_ASSIGN_OR_RETURN(flags.options.delays, ParseDelays(raw.straggler, raw.jitter_ms, raw.seed, least));
  PSRING_RETURN_IF_ERROR(UnderstandLayoutSearch(raw, flags));
  PSRING_RETURN_IF_ERROR(CheckShards(raw, flags));
  PSRING_ASSIGN_OR_RETURN(flags.pipeline, UnderstandPipeline(raw, flags));
  return flags;
}

}  // namespace psring
