// psring: the front door.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/command_line.h"
#include "common/cuda_device.h"
#include "common/delays.h"
#include "common/launched_as.h"
#include "experiments/bench/bench.h"
#include "experiments/compare/compare.h"
#include "experiments/compare/launches.h"
#include "experiments/compare/plan.h"
#include "experiments/compare/plan_text.h"
#include "experiments/compare/rates.h"
#include "experiments/compare/replay.h"
#include "experiments/compare/train.h"
#include "experiments/host/doctor.h"
#include "experiments/predict/one_gpu.h"
#include "experiments/predict/predict.h"
#include "experiments/processes/interrupt.h"
#include "experiments/report/explain_verb.h"
#include "experiments/report/report_verb.h"
#include "experiments/rerun/rerun_verb.h"
#include "experiments/texts/language_flag.h"

namespace psring {
namespace {

// What a verb's flags are read into, before they are understood.
struct RawFlags {
  TrainingOptions training;
  std::string strategies, workers, servers, repeats, out, time_budget, lrs, like, plan_of, language = "en";
  std::string link = "none", latency = "0", shaping = "auto";
  double target_accuracy = 0;
  bool dry_run = false, predict = false, tensorboard = false, live = false;
  int live_port = 0, metrics_port = -1;
  NodesOptions nodes;
};

ValueCheck ListOf(ValueCheck check) {
  return [check](const std::string& text) {
    for (absl::string_view part : absl::StrSplit(text, ',')) {
      if (const std::string wrong = check(std::string(part)); !wrong.empty()) return wrong;
    }
    return std::string();
  };
}

std::string CheckName(const std::string& text) { return text.empty() ? "a name is missing" : ""; }

std::string CheckSeconds(const std::string& text) {
  return std::string(ParseSeconds(text).status().message());
}

std::string CheckLink(const std::string& text) {
  return text == "auto" ? "" : std::string(ParseLink(text).status().message());
}

constexpr double kLinkOfCpus = 1e9;  // bit/s

// A comparison is of most use where every machine has its own link, and 1 Gbit/s is what two cores can carry.
// GPUs have better wires of their own, unless all run on the CPU for want of them, or because that was asked
// for; what shares memory has none.
double DefaultLink(const RawFlags& raw, const std::vector<int>& workers) {
  if (raw.shaping == "none" || raw.training.fabric == "shm" || raw.training.payload == "shm") return 0;
  const int gpus = CudaDeviceCount();
  return gpus == 0 || DeviceForAll(raw.training, workers, gpus) == "cpu" ? kLinkOfCpus : 0;
}

std::string CheckLatency(const std::string& text) {
  return std::string(ParseLatency(text).status().message());
}

void AddSharedFlags(CLI::App& verb, RawFlags& raw) {
  verb.add_option("--target_accuracy", raw.target_accuracy,
                  "Also say how long training took to the first evaluation with this test accuracy; without "
                  "--eval_every there are 20 of them")
      ->group("Evaluation and checks")
      ->option_text("X")
      ->check(RealNumber({.low = 0, .high = 1}));
  verb.add_option(
          "--like", raw.like,
          "With --clock virtual: computing and exchanges last as long as in this earlier run, step by "
          "step (--compute_ms trace:RUN --network_ms trace:RUN), and its stragglers and delays are taken "
          "over where none are given")
      ->group("Virtual clock (one process computes the real gradients of all workers; times are simulated)")
      ->option_text("RUN")
      ->check(CheckName);
  verb.add_option("--repeats", raw.repeats, "")
      ->group("How often")
      ->option_text("N")
      ->check(WholeNumber(1, 1000));
  verb.add_option("--time_budget", raw.time_budget, "")
      ->group("How often")
      ->option_text("TIME")
      ->check(CheckSeconds);
  verb.add_option("--plan_of", raw.plan_of,
                  "Rounds, steps and samples that are left open are those of this earlier run, not fitted")
      ->group("How often")
      ->option_text("RUN")
      ->check(CheckName);
  verb.add_flag("--dry_run", raw.dry_run, "Print the plan and the expected time, and do nothing")
      ->group("How often");
  verb.add_option("--link", raw.link,
                  "A virtual cluster: the rate of every machine's link, both ways, such as 1gbit or 200mbit; "
                  "none: all processes share this machine's loopback; auto: 1gbit where there is no GPU")
      ->group("Network")
      ->option_text("RATE")
      ->check(CheckLink)
      ->capture_default_str();
  verb.add_option("--latency", raw.latency, "Added to every message of the virtual cluster, one way: 0.5ms")
      ->group("Network")
      ->option_text("TIME")
      ->check(CheckLatency)
      ->capture_default_str();
  verb.add_option(
          "--shaping", raw.shaping,
          "How the link is kept: netns (a network namespace a machine), userspace (psring's transports "
          "hold back), none, or auto")
      ->group("Network")
      ->option_text("HOW")
      ->check(OneOf({"auto", "netns", "userspace", "none"}))
      ->capture_default_str();
  const char* machines = "Several machines (torchrun's words; the same command on each but for --node_rank)";
  verb.add_option("--nnodes", raw.nodes.nodes, "How many machines")
      ->group(machines)
      ->option_text("N")
      ->check(WholeNumber(1, kMostWorkers))
      ->capture_default_str();
  verb.add_option("--nproc_per_node", raw.nodes.per_node,
                  "Processes on each, in place of --workers: as many workers, or times --ranks_per_process")
      ->group(machines)
      ->option_text("N")
      ->check(WholeNumber(1, kMostWorkers));
  verb.add_option("--node_rank", raw.nodes.node, "Which of them this is; 0 leads and prints the result")
      ->group(machines)
      ->option_text("I")
      ->check(WholeNumber(0, kMostWorkers - 1))
      ->capture_default_str();
  verb.add_option("--master_addr", raw.nodes.master_addr, "Node 0's name or address")
      ->group(machines)
      ->option_text("HOST")
      ->check(CheckName);
  verb.add_option("--master_port", raw.nodes.master_port, "On which node 0 listens for the others")
      ->group(machines)
      ->option_text("PORT")
      ->check(WholeNumber(1, 65535))
      ->capture_default_str();
  verb.add_option("--bind", raw.nodes.network.bind,
                  "This machine's address that its processes listen on; else the loopback, or with several "
                  "machines the address that leads to node 0")
      ->group(machines)
      ->option_text("ADDRESS")
      ->check(CheckName);
  verb.add_option("--interface", raw.nodes.network.interface, "The same, by its network interface's name")
      ->group(machines)
      ->option_text("NAME")
      ->check(CheckName);
  verb.add_flag("--live", raw.live,
                "While it runs, serve a page with progress, throughput, loss and link use on this machine's "
                "loopback; its address is printed")
      ->group("Machine and results");
  verb.add_option("--live_port", raw.live_port, "The port of --live; else the system chooses")
      ->group("Machine and results")
      ->option_text("PORT")
      ->check(WholeNumber(1, 65535));
  verb.add_option(
          "--metrics_port", raw.metrics_port,
          "Every worker and server serves steps, bytes, waits and staleness as OpenMetrics: rank r at "
          "http://ADDRESS:PORT+r/metrics, server s at PORT+workers+s; ADDRESS is the loopback or --bind, in "
          "a virtual cluster the node's own; 0: the system chooses, and the addresses are printed")
      ->group("Machine and results")
      ->option_text("PORT")
      ->check(WholeNumber(0, 65535));
  verb.add_flag(
          "--tensorboard", raw.tensorboard,
          "Also write loss, accuracy, samples/s, communication and staleness of every step as TensorBoard's "
          "event files, in tensorboard/ of the run's folder")
      ->group("Machine and results");
  AddLanguageFlag(verb, raw.language, "What is printed, and what the page opens with: en or zh")
      ->group("Machine and results");
  verb.add_option("--out", raw.out, "Folder for the results; else runs/<UTC time>-<verb>")
      ->group("Machine and results")
      ->option_text("DIR")
      ->check(CheckName);
}

CLI::App* AddCompare(CLI::App& app, RawFlags& raw) {
  CLI::App* verb = app.add_subcommand(
      "compare", "Compare strategies: what a step costs under each, and what accuracy it leads to");
  // Flags whose meaning is the verb's own.
  verb->add_option(
          "--strategies,--strategy", raw.strategies,
          "Several, with commas; single and none are added as references. By default none, ring, ps-sync, "
          "ps-async; accuracy of single, ring and ps-async")
      ->group("What is compared")
      ->option_text("NAMES")
      ->check(ListOf(CheckName));
  verb->add_option("--workers", raw.workers,
                   "Several, with commas [1,2,4; on several GPUs 1,2,4,... all; with --straggler 4]")
      ->group("What is compared")
      ->option_text("N,...")
      ->check(ListOf(WholeNumber(1, kMostLogicalWorkers)));
  verb->add_option("--servers", raw.servers,
                   "Parameter servers that share the parameters, each with a slice of every bucket; several, "
                   "with commas; else 1, or one a worker where they are colocated")
      ->group("What is compared")
      ->option_text("S,...")
      ->check(ListOf(WholeNumber(1, kMostServers)));
  AddSharedFlags(*verb, raw);
  verb->add_flag(
          "--predict", raw.predict,
          "Beside every measured row the simulator's prediction of the very same case, and in residuals.csv "
          "where the two part; needs links with a rate (--link)")
      ->group("What is compared");
  verb->add_option(
          "--lr", raw.lrs,
          "Learning rate of one update; of several, with commas, each strategy gets the one with the best "
          "accuracy on 5,000 training samples held out (--validation); else the model's")
      ->group("One step")
      ->option_text("X,...")
      ->check(ListOf(RealNumber({})));
  verb->get_option("--repeats")
      ->description(
          "Rounds of the cost part, and trainings (with the next seed each) of the accuracy part; else as "
          "many rounds as fit into --time_budget, and one training");
  verb->get_option("--time_budget")->description("What is left open is fitted into it [3m]");
  verb->add_option("--steps", raw.training.steps, "Measured steps of a launch in the cost part; else fitted")
      ->group("How often")
      ->option_text("N")
      ->check(WholeNumber(1, 1'000'000'000));
  verb->add_option("--samples", raw.training.samples,
                   "Of each training in the accuracy part, over all workers; else fitted")
      ->group("How often")
      ->option_text("N")
      ->check(WholeNumber(1, INT64_MAX));
  verb->add_option("--epochs", raw.training.epochs, "The same, in passes over the data")
      ->group("How often")
      ->option_text("X")
      ->check(RealNumber({}));
  verb->add_option("--warmup_steps", raw.training.warmup_steps,
                   "Steps before the measured ones in the cost part [3]")
      ->group("How often")
      ->option_text("N")
      ->check(WholeNumber(0, 1'000'000));
  AddTrainingFlags(*verb, raw.training,
                   {"--strategy", "--replicas", "--servers", "--steps", "--samples", "--epochs",
                    "--warmup_steps", "--lr"});
  verb->get_option("--no_eval")->description("Leave the accuracy part out");
  return verb;
}

CLI::App* AddTrain(CLI::App& app, RawFlags& raw) {
  CLI::App* verb = app.add_subcommand("train", "Train one network with one strategy");
  verb->add_option("--strategy,--strategies", raw.strategies, "How replicas are kept in step [single]")
      ->group("What is trained")
      ->option_text("NAME")
      ->check(ListOf(CheckName));
  verb->add_option("--workers", raw.workers, "Workers [1]")
      ->group("What is trained")
      ->option_text("N")
      ->check(ListOf(WholeNumber(1, kMostLogicalWorkers)));
  AddSharedFlags(*verb, raw);
  verb->get_option("--repeats")->description("Trainings, each with the next seed [1]");
  verb->get_option("--time_budget")->description("Refuse to start what should take longer");
  AddTrainingFlags(*verb, raw.training, {"--strategy", "--replicas"});
  return verb;
}

absl::Status UnderstandRates(const RawFlags& raw, CompareOptions& options) {
  if (raw.lrs.empty()) return absl::OkStatus();
  for (absl::string_view text : absl::StrSplit(raw.lrs, ',')) {
    double lr = 0;
    if (!absl::SimpleAtod(text, &lr)) return absl::InvalidArgumentError(absl::StrCat("--lr: '", text, "'"));
    if (std::find(options.lrs.begin(), options.lrs.end(), lr) != options.lrs.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--lr names ", lr, " twice; name it once"));
    }
    options.lrs.push_back(lr);
  }
  if (options.lrs.size() == 1) {
    options.training.lr = options.lrs.front();
    return absl::OkStatus();
  }
  if (!options.training.evaluate) {
    return absl::InvalidArgumentError("--lr with several rates picks by accuracy; leave --no_eval out");
  }
  if (options.training.validation == 0) options.training.validation = kValidationSamples;
  return absl::OkStatus();
}

absl::Status UnderstandLike(const RawFlags& raw, TrainingOptions& training) {
  if (raw.like.empty()) return absl::OkStatus();
  if (training.clock != "virtual")
    return absl::InvalidArgumentError("--like is for --clock virtual; give both");
  const std::string trace = absl::StrCat(kTracePrefix, raw.like);
  if (training.compute_ms.empty()) training.compute_ms = trace;
  if (training.network_ms == "none") training.network_ms = trace;
  PSRING_ASSIGN_OR_RETURN(const std::vector<LaunchNote> launches, ListLaunches(raw.like));
  for (const LaunchNote& launch : launches) {
    if (training.straggler == "none") training.straggler = FlagOf(launch, "--straggler", "none");
    if (training.jitter_ms == "none") training.jitter_ms = FlagOf(launch, "--jitter_ms", "none");
  }
  return absl::OkStatus();
}

// What the parser has let through can be understood; what is left to say no to is said in one line.
absl::StatusOr<ExperimentFlags> Understand(const RawFlags& raw,
                                           const std::vector<std::string>& command_line) {
  ExperimentFlags flags;
  flags.out = raw.out;
  flags.dry_run = raw.dry_run;
  flags.plan_of = raw.plan_of;
  flags.tensorboard = raw.tensorboard;
  flags.live = raw.live;
  flags.live_port = raw.live_port;
  if (raw.live_port != 0 && !raw.live) {
    return absl::InvalidArgumentError("--live_port is the port of --live; give both, or neither");
  }
  flags.metrics_port = raw.metrics_port;
  if (raw.metrics_port >= 0 && raw.training.clock == "virtual") {
    return absl::InvalidArgumentError("--metrics_port is for processes that run; leave --clock virtual out");
  }
  flags.command_line = command_line;
  CompareOptions& options = flags.options;
  options.language = LanguageOf(raw.language);
  options.training = raw.training;
  PSRING_RETURN_IF_ERROR(ApplyWorkload(options.training));
  if (!raw.strategies.empty()) options.strategies = absl::StrSplit(raw.strategies, ',');
  options.workers = DefaultWorkers(raw.training, CudaDeviceCount());
  if (!raw.workers.empty()) {
    options.workers.clear();
    for (absl::string_view text : absl::StrSplit(raw.workers, ',')) {
      int count = 0;
      if (!absl::SimpleAtoi(text, &count))
        return absl::InvalidArgumentError(absl::StrCat("--workers: '", text, "'"));
      options.workers.push_back(count);
    }
  }
  options.servers = raw.servers.empty() ? std::vector<int>{raw.training.servers} : std::vector<int>();
  for (absl::string_view text : absl::StrSplit(raw.servers, ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(text, &options.servers.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("--servers: '", text, "'"));
    }
  }
  if (!raw.repeats.empty() && !absl::SimpleAtoi(raw.repeats, &options.repeats)) {
    return absl::InvalidArgumentError(absl::StrCat("--repeats: '", raw.repeats, "'"));
  }
  flags.link_is_default = raw.link == "auto";
  if (flags.link_is_default) {
    flags.link.bits_per_s = DefaultLink(raw, options.workers);
  } else {
    PSRING_ASSIGN_OR_RETURN(flags.link.bits_per_s, ParseLink(raw.link));
  }
  PSRING_ASSIGN_OR_RETURN(flags.link.latency_s, ParseLatency(raw.latency));
  flags.link.shaping = raw.shaping;
  PSRING_RETURN_IF_ERROR(CheckLink(flags.link));
  if (flags.link.wanted()) {
    if (raw.training.fabric == "shm" || raw.training.payload == "shm") {
      return absl::InvalidArgumentError(
          "machines of a virtual cluster share no memory; leave shm out, or --link and --latency");
    }
    options.training.fabric = "tcp";
  }
  if (!raw.time_budget.empty()) {
    PSRING_ASSIGN_OR_RETURN(options.time_budget_s, ParseSeconds(raw.time_budget));
    flags.time_budget_given = true;
  }
  options.target_accuracy = raw.target_accuracy;
  if (raw.target_accuracy > 0 && !raw.training.evaluate) {
    return absl::InvalidArgumentError("--target_accuracy needs evaluations; leave --no_eval out");
  }
  PSRING_RETURN_IF_ERROR(UnderstandRates(raw, options));
  PSRING_RETURN_IF_ERROR(UnderstandLike(raw, options.training));
  return flags;
}

void ResolveDevice(ExperimentFlags& flags) {
  const int gpus = CudaDeviceCount();
  TrainingOptions& training = flags.options.training;
  const std::string device = DeviceForAll(training, flags.options.workers, gpus);
  if (device != training.device && gpus > 0) {
    std::fprintf(stderr,
                 "psring: note: %d GPU%s: too few for that many workers, so all run on the CPU; to share, "
                 "--device cuda --oversubscribe\n",
                 gpus, gpus == 1 ? "" : "s");
  }
  training.device = device;
}

absl::StatusOr<ExperimentFlags> UnderstandCompare(const RawFlags& raw,
                                                  const std::vector<std::string>& command_line) {
  const NodesOptions& nodes = raw.nodes;
  if (nodes.several() || nodes.per_node > 0 || !nodes.master_addr.empty() || !nodes.network.bind.empty() ||
      !nodes.network.interface.empty()) {
    return absl::InvalidArgumentError(
        "compare runs on one machine, its loopback or a virtual cluster (--link); over several machines "
        "train "
        "each strategy with psring train --nnodes, or see what they would cost: psring predict");
  }
  PSRING_ASSIGN_OR_RETURN(ExperimentFlags flags, Understand(raw, command_line));
  // Whoever waits needs others.
  if (raw.workers.empty() && flags.options.training.straggler != "none") flags.options.workers = {4};
  if (!GoesBeyondOneGpu(flags.options, CudaDeviceCount())) ResolveDevice(flags);
  TrainingOptions checked = flags.options.training;
  checked.steps = 0;          // counts for the cost part: it does not contradict --samples or --epochs
  checked.micro_batches = 1;  // CheckCompareOptions knows the strategies
  PSRING_RETURN_IF_ERROR(ValidateTrainingOptions(checked));
  flags.predict = raw.predict;
  if (flags.predict && checked.clock == "virtual") {
    return absl::InvalidArgumentError(
        "--predict holds a measured run against the simulator; leave --clock virtual out");
  }
  if (flags.predict && flags.link.bits_per_s <= 0) {
    return absl::InvalidArgumentError(
        "--predict needs links with a rate, which the simulator can know; add --link 1gbit");
  }
  return flags;
}

absl::StatusOr<ExperimentFlags> UnderstandTrain(const RawFlags& raw,
                                                const std::vector<std::string>& command_line) {
  PSRING_ASSIGN_OR_RETURN(ExperimentFlags flags, Understand(raw, command_line));
  if (flags.options.strategies.empty()) flags.options.strategies = {"single"};
  PSRING_RETURN_IF_ERROR(CheckNodes(raw.nodes));
  flags.nodes = raw.nodes;
  flags.nodes.timeout = absl::Seconds(raw.training.timeout_s);
  if (flags.nodes.per_node > 0 && !raw.workers.empty()) {
    return absl::InvalidArgumentError("--workers and --nproc_per_node both say how many; give one of them");
  }
  if (raw.workers.empty()) {
    const int server_nodes = flags.nodes.several() ? ServerNodes(raw.training) : 0;
    const int workers = (flags.nodes.nodes - server_nodes) * std::max(1, flags.nodes.per_node) *
                        raw.training.ranks_per_process;
    if (workers < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--server_placement dedicated takes the last --servers machines of --nnodes ",
                       flags.nodes.nodes, ", and leaves none to train; give more machines"));
    }
    flags.options.workers = {workers};
  }
  ResolveDevice(flags);
  if (flags.options.strategies.size() > 1 || flags.options.workers.size() > 1) {
    return absl::InvalidArgumentError(
        "train takes one strategy and one number of workers; for several: psring compare");
  }
  flags.options.training.strategy = flags.options.strategies.front();
  PSRING_RETURN_IF_ERROR(ValidateTrainingOptions(flags.options.training));
  return flags;
}

int Main(int argc, char** argv) {
  ForgetLauncher();  // our processes are numbered by us
  CLI::App app("Compares how data-parallel training keeps its replicas in step.", "psring");
  app.set_version_flag("--version", absl::StrCat("psring ", kVersion), "Print the version");
  app.require_subcommand(1);
  RawFlags compare_raw, train_raw;
  // Curves end lower than they wander when the rate goes down to 0, and accuracies can be told apart sooner.
  compare_raw.training.schedule = "linear";
  // One network for all strategies of a comparison: shared memory would answer another question.
  compare_raw.training.fabric = "tcp";
  compare_raw.link = "auto";
  CLI::App* compare = AddCompare(app, compare_raw);
  CLI::App* train = AddTrain(app, train_raw);
  RawBenchFlags bench_raw;
  CLI::App* bench = AddBench(app, bench_raw);
  std::string replayed;
  CLI::App* replay = app.add_subcommand(
      "replay",
      "Make the live asynchronous runs of a run's folder again, and hold the weights against theirs");
  replay->add_option("run", replayed, "The folder: runs/latest, or one of its record folders")
      ->required()
      ->option_text("RUN");
  RawPredictFlags predict_raw;
  CLI::App* predict = AddPredict(app, predict_raw);
  CLI::App* doctor = app.add_subcommand("doctor", "What this machine has, what is missing, and the mend");
  std::string doctor_language = "en";
  AddLanguageFlag(*doctor, doctor_language, "en or zh");
  RawExplainFlags explain_raw;
  CLI::App* explain = AddExplain(app, explain_raw);
  RawRerunFlags rerun_raw;
  CLI::App* rerun = AddRerun(app, rerun_raw);
  RawReportFlags report_raw;
  CLI::App* report = AddReport(app, report_raw);
  ParseOrExit(app, argc, argv);

  if (explain->parsed()) return RunExplain(explain_raw);

  const Interrupt interrupt;
  Display display(stdout, isatty(STDOUT_FILENO) == 1);
  const std::vector<std::string> command_line(argv, argv + argc);
  if (report->parsed()) return RunReport(report_raw, display);
  if (rerun->parsed()) return RunRerun(rerun_raw, interrupt, display);
  if (doctor->parsed()) return RunDoctor(interrupt, LanguageOf(doctor_language));
  if (replay->parsed()) return RunReplay(replayed, interrupt, display);
  if (bench->parsed()) {
    const absl::StatusOr<BenchFlags> bench_flags = UnderstandBench(bench_raw, command_line);
    if (!bench_flags.ok()) return Fail("psring bench", std::string(bench_flags.status().message()), 2);
    return RunBench(*bench_flags, interrupt, display);
  }
  if (predict->parsed()) {
    const absl::StatusOr<PredictFlags> predict_flags = UnderstandPredict(predict_raw, command_line);
    if (!predict_flags.ok()) return Fail("psring predict", std::string(predict_flags.status().message()), 2);
    return RunPredict(*predict_flags, interrupt, display);
  }
  const bool comparing = compare->parsed();
  const absl::StatusOr<ExperimentFlags> flags =
      comparing ? UnderstandCompare(compare_raw, command_line) : UnderstandTrain(train_raw, command_line);
  if (!flags.ok())
    return Fail(comparing ? "psring compare" : "psring train", std::string(flags.status().message()), 2);
  (void)train;
  if (comparing && GoesBeyondOneGpu(flags->options, CudaDeviceCount())) {
    return CompareOnOneGpu(*flags, !compare_raw.workers.empty(), interrupt, display);
  }
  return comparing ? RunCompare(*flags, interrupt, display) : RunTrain(*flags, interrupt, display);
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) { return psring::Main(argc, argv); }
