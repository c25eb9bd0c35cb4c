// The flags of training: what each is called and says, which values it takes, and back to a command line.
#include "common/options/training_flags.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <concepts>
#include <limits>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/command_line.h"
#include "common/base/delays.h"
#include "common/workloads/workload.h"

namespace psring {
namespace {

constexpr uint64_t kMostInt = INT_MAX;
constexpr uint64_t kMostInt64 = INT64_MAX;
constexpr RealRange kPositive = {};

std::string CheckDevice(const std::string& text) {
  if (absl::StartsWith(text, "cuda:")) {
    const std::string wrong = WholeNumber(0, 1023)(text.substr(5));
    return wrong.empty() ? "" : absl::StrCat("'", text, "' names no GPU: ", wrong);
  }
  const std::vector<std::string> words = {"auto", "cpu", "cuda"};
  if (std::find(words.begin(), words.end(), text) != words.end()) return "";
  const std::string nearest = NearestWord(text, words);
  return absl::StrCat("'", text, "' is none of auto, cpu, cuda, cuda:I",
                      nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"));
}

std::string CheckGiven(const std::string& text) { return text.empty() ? "it is empty" : ""; }

struct Row {
  const char* flag;
  const char* group;
  const char* value;  // what help shows for the value
  std::string help;
};

// The one table. `visit` gets a row, its field and its check; a switch instead gets the value it sets.
// `Options` is TrainingOptions, const or not.
template <typename Options, typename Visitor>
void VisitFlags(Options& o, Visitor& visit) {
  const char* group = "What is trained";
  visit(Row{"--strategy", group, "NAME", "How replicas are kept in step"}, o.strategy, CheckGiven);
  visit(Row{"--model", group, "NAME", "The network"}, o.model, CheckGiven);
  visit(Row{"--width", group, "N", "Neurons in each hidden layer of mlp and mlp-small; else the model's own"},
        o.width, WholeNumber(1, 1 << 16));
  visit(Row{"--workload", group, "NAME",
            absl::StrCat("Replay a recorded one in the network's place, its computing on a timer: ",
                         absl::StrJoin(WorkloadNames(), ", "), ", or a file.csv")},
        o.workload, CheckGiven);
  visit(Row{"--compute_speedup", group, "X", "How many times as fast the workload's device computes"},
        o.compute_speedup, RealNumber({.low = 1e-3, .high = 1e3, .low_allowed = true, .high_allowed = true}));
  visit(Row{"--data", group, "NAME", "fashion-mnist, mnist or synthetic"}, o.data,
        OneOf({"fashion-mnist", "mnist", "synthetic"}));
  visit(Row{"--data_dir", group, "DIR", "The folder of the four idx files; else where Debian puts them"},
        o.data_dir, CheckGiven);
  visit(
      Row{"--device", group, "DEVICE", "auto, cpu, cuda (a GPU for each rank of a host, in turn) or cuda:I"},
      o.device, CheckDevice);
  visit.Switch(Row{"--oversubscribe", group, "", "Let ranks share a GPU: shows that it works, not how fast"},
               o.oversubscribe, true);
  visit(Row{"--threads", group, "N", "Cores that an op may use, per worker"}, o.threads,
        WholeNumber(1, 4096));
  visit(Row{"--ranks_per_process", group, "K",
            "One process carries K ranks, each a thread with a device and a replica of its own; torchrun, "
            "mpirun "
            "and srun count processes, so that the world is theirs times K"},
        o.ranks_per_process, WholeNumber(1, 1024));
  visit(
      Row{"--precision", group, "TYPE",
          "Of forward and backward: float32; tf32 (GPUs: float32 whose products keep 10 bits, as PyTorch has "
          "it with set_float32_matmul_precision(\"high\")); or bfloat16, with weights, gradients and "
          "optimizer in float32"},
      o.precision, OneOf({"float32", "tf32", "bfloat16"}));

  visit.Switch(Row{"--cuda_graph", group, "",
                   "GPUs: record forward and backward in the second step and repeat them from then on, by a "
                   "call a layer instead of one a kernel; with single, none and NCCL (a process a rank) the "
                   "whole step with its all-reduces, by one call"},
               o.cuda_graph, true);

  group = "How long (one of --steps, --samples, --epochs; else 1 epoch)";
  visit(Row{"--steps", group, "N", "Measured steps per worker"}, o.steps, WholeNumber(1, kMostInt64));
  visit(Row{"--samples", group, "N", "Samples over all workers"}, o.samples, WholeNumber(1, kMostInt64));
  visit(Row{"--epochs", group, "X", "Passes over the data"}, o.epochs, RealNumber(kPositive));
  visit(Row{"--warmup_steps", group, "N", "Steps per worker before the measured ones"}, o.warmup_steps,
        WholeNumber(0, kMostInt64));

  group = "One step";
  visit(Row{"--batch", group, "N", "Samples per worker and step"}, o.batch, WholeNumber(1, kMostInt));
  visit(Row{"--micro_batches", group, "N",
            "Batches added up to one step, in order: what N workers do (single only)"},
        o.micro_batches, WholeNumber(1, kMostInt));
  visit(Row{"--replicas", group, "N",
            "Devices in the one process of the strategy dp, each with a batch (psring: --workers)"},
        o.replicas, WholeNumber(1, 1024));
  visit(
      Row{"--accumulate", group, "K",
          "Batches of each worker whose gradients are added up to one step; workers synchronise in the last "
          "alone"},
      o.accumulate, WholeNumber(1, kMostInt));
  visit(Row{"--drop_last", group, "BOOL",
            "true: an epoch's last step is left out where the samples do not fill it; false: it is made of "
            "those "
            "there are, each counted once, and workers may have fewer, or none"},
        o.drop_last, OneOf({"true", "false"}));
  visit(Row{"--optimizer", group, "NAME", "sgd, momentum or adam"}, o.optimizer,
        OneOf({"sgd", "momentum", "adam"}));
  visit(Row{"--lr", group, "X", "Learning rate of one update; else the model's"}, o.lr,
        RealNumber(kPositive));
  visit(Row{"--momentum", group, "X", "Momentum; else the strategy's: 0.9, asynchronous 0"}, o.momentum,
        RealNumber({.low = 0, .high = 1, .low_allowed = true}));
  visit(Row{"--schedule", group, "NAME", "Learning rate: constant, or linear (down to 0)"}, o.schedule,
        OneOf({"constant", "linear"}));
  visit(Row{"--warmup_epochs", group, "X", "Epochs in which the rate rises to the scaled one"},
        o.warmup_epochs, RealNumber({.low = 0, .low_allowed = true}));
  visit.Switch(
      Row{"--linear_scaling", group, "", "Multiply the learning rate by the workers behind an update"},
      o.linear_scaling, true);
  visit(
      Row{"--clip_norm", group, "X",
          "Clip the mean gradient to this norm over all parameters; 0: not. Synchronous strategies; a server "
          "then answers only when the whole gradient is there"},
      o.clip_norm, RealNumber({.low = 0, .low_allowed = true}));
  visit(Row{"--bucket_mb", group, "X", "MiB of gradient that are sent together"}, o.bucket_mb,
        RealNumber({.low = 0, .high = 1 << 20, .high_allowed = true}));
  visit(Row{"--seed", group, "N", "Seed of weights and sample order"}, o.seed,
        WholeNumber(0, std::numeric_limits<uint64_t>::max()));

  group = "Evaluation and checks";
  visit(Row{"--eval_every", group, "N", "Steps between evaluations; 0: only at the end"}, o.eval_every,
        WholeNumber(0, kMostInt64));
  visit.Switch(Row{"--no_eval", group, "", "Do not evaluate"}, o.evaluate, false);
  visit(Row{"--validation", group, "N", "Hold the last N of the shuffled training samples out of training"},
        o.validation, WholeNumber(0, kMostInt));
  visit(Row{"--score", group, "NAME", "What evaluations are of: test, or validation (the samples held out)"},
        o.score, OneOf({"test", "validation"}));
  visit.Switch(Row{"--check_replicas", group, "", "Hash the weights after every step"}, o.check_replicas,
               true);
  visit.Switch(Row{"--align_steps", group, "",
                   "All ranks begin every step together, to measure one exchange at a time"},
               o.align_steps, true);

  group = "Collectives";
  visit(Row{"--backend", group, "NAME", "Whose collectives: native, gloo, mpi or nccl; else the strategy's"},
        o.backend, OneOf({"native", "gloo", "mpi", "nccl"}));
  visit(Row{"--fabric", group, "NAME",
            "What payload moves over: auto (what suits each), tcp or shm (shared memory)"},
        o.fabric, OneOf({"auto", "tcp", "shm"}));

  group = "Parameter server and waiting";
  visit(Row{"--ps_schedule", group, "NAME",
            "pipelined (a bucket's reply comes as soon as it may) or serial (push everything, then pull)"},
        o.ps_schedule, OneOf({"serial", "pipelined"}));
  visit(
      Row{"--payload", group, "NAME",
          "Between workers and server: shm (shared memory; gRPC carries control), grpc, or auto (as --fabric "
          "says, else a GPU's memory where both are on GPUs of one host, or shm where they share memory)"},
      o.payload, OneOf({"auto", "grpc", "shm"}));
  visit(Row{"--servers", group, "S",
            "Servers that share the parameters, each with a slice of every bucket; else 1, or one a worker "
            "where they are colocated"},
        o.servers, WholeNumber(1, kMostServers));
  visit(Row{"--server_placement", group, "NAME",
            "rank0 (on rank 0's host and device), dedicated (on machines of their own) or colocated (one "
            "beside "
            "each worker)"},
        o.server_placement, OneOf({"rank0", "dedicated", "colocated"}));
  visit.Switch(Row{"--deterministic", group, "", "The server adds in rank order, not in order of arrival"},
               o.deterministic, true);
  visit(
      Row{"--on_worker_loss", group, "WHAT",
          "stop, or continue with the workers that remain; else synchronous modes stop, asynchronous go on"},
      o.on_worker_loss, OneOf({"stop", "continue"}));
  visit(Row{"--worker_timeout", group, "S",
            "Seconds in which a worker whose connection to the server broke may come back"},
        o.worker_timeout_s, RealNumber({.low = 0, .high = 1e6, .low_allowed = true, .high_allowed = true}));
  visit(Row{"--reject_nonfinite", group, "BOOL", "The server refuses gradients with NaN or infinity in them"},
        o.reject_nonfinite, OneOf({"true", "false"}));
  visit(Row{"--staging_mb", group, "MB",
            "Asynchronous strategies: memory of a server for gradients and answers on their way, for all "
            "workers "
            "together; whoever finds none waits"},
        o.staging_mb, WholeNumber(1, 1 << 20));
  visit(Row{"--staleness_lr", group, "NAME",
            "Asynchronous strategies: inverse divides a late gradient's learning rate by its staleness; or "
            "none"},
        o.staleness_lr, OneOf({"none", "inverse"}));
  visit(
      Row{"--wire", group, "TYPE",
          "Gradients on their way to a server or around a ring: float32, or bfloat16 or float16, whose error "
          "is added to the worker's next gradient; a server's weights come back in float32"},
      o.wire, OneOf({"float32", "bfloat16", "float16"}));
  visit(Row{"--straggler", group, "W:F,...",
            "Worker W (from 0) computes F times as long: after each layer, forward and backward, it sleeps F "
            "- 1 "
            "times what that layer took, so that its buckets are late in proportion and processors stay free "
            "for "
            "others; none"},
        o.straggler, StragglersText());
  visit(Row{"--jitter_ms", group, "TIME",
            "A random sleep before each step's computing, drawn from seed, worker and step alone: exp:MEAN, "
            "lognormal:MEDIAN:SIGMA, a number, or none"},
        o.jitter_ms, TimeDistributionText());
  visit(Row{"--timeout", group, "S", "Seconds to wait for others before giving up"}, o.timeout_s,
        RealNumber({.low = 0, .high = 1e6, .high_allowed = true}));

  group = "Checkpoints and failure";
  visit(Row{"--checkpoint_dir", group, "DIR",
            "Keep checkpoints here, as folders step<N>: at the end, at SIGTERM, and every --checkpoint_every "
            "steps"},
        o.checkpoint_dir, CheckGiven);
  visit(Row{"--checkpoint_every", group, "N", "Steps between checkpoints; 0: only at SIGTERM and at the end"},
        o.checkpoint_every, WholeNumber(0, kMostInt64));
  visit(Row{"--checkpoint_keep", group, "N", "How many checkpoints are kept: the newest"}, o.checkpoint_keep,
        WholeNumber(1, 1000000));
  visit(Row{"--resume", group, "PATH",
            "Go on from a checkpoint: its folder, a folder of several (the newest), latest (the newest in "
            "--checkpoint_dir; where there is none yet, from the beginning), or a .safetensors file with "
            "weights alone"},
        o.resume, CheckGiven);
  visit(Row{"--max_restarts", group, "N",
            "How often psring starts the job again after a process of it died, from the last checkpoint; a "
            "server that died comes back alone where it can, which counts as well"},
        o.max_restarts, WholeNumber(0, 1000));

  group = "Virtual clock (one process computes the real gradients of all workers; times are simulated)";
  visit(Row{"--clock", group, "NAME", "wall (processes that run) or virtual"}, o.clock,
        OneOf({"wall", "virtual"}));
  visit(Row{"--compute_ms", group, "TIME",
            "Of a step of one undisturbed worker: 6, exp:MEAN, lognormal:MEDIAN:SIGMA, or trace:RUN (as "
            "measured "
            "in an earlier run); psring measures it where it is not given"},
        o.compute_ms, VirtualTimeText());
  visit(Row{"--network_ms", group, "TIME",
            "Of one gradient, or one set of weights, on a worker's link, in the same words; a ring takes "
            "2(N-1)/N "
            "of it"},
        o.network_ms, VirtualTimeText());
  visit(Row{"--serve_ms", group, "TIME",
            "The server's work for one push; pushes queue, first come first served"},
        o.serve_ms, TimeDistributionText());
}

// StrCat keeps six digits of a double; a child process must get all of them.
std::string Text(const std::string& value) { return value; }
template <typename T>
requires std::integral<T> || std::floating_point<T> std::string Text(T value) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
}

struct Entry {
  Row row;
  std::string text;
  ValueCheck check;  // null: a switch
};

struct Collector {
  std::vector<Entry> entries;

  template <typename T>
  void operator()(const Row& row, const T& field, const ValueCheck& check) {
    entries.push_back({row, Text(field), check});
  }
  void Switch(const Row& row, bool field, bool) {
    entries.push_back({row, field ? "true" : "false", nullptr});
  }
};

std::vector<Entry> EntriesOf(const TrainingOptions& options) {
  Collector collector;
  VisitFlags(options, collector);
  return collector.entries;
}

// The fields that were set. A field at its default is none of them: there it may hold what its flag would not
// accept, such as a learning rate of 0 for "the model's".
std::vector<Entry> EntriesBesideDefaults(const TrainingOptions& options) {
  const std::vector<Entry> standard = EntriesOf(TrainingOptions());
  std::vector<Entry> entries = EntriesOf(options);
  size_t i = 0;
  std::erase_if(entries, [&](const Entry& entry) { return entry.text == standard[i++].text; });
  return entries;
}

struct Adder {
  CLI::App& app;
  const std::vector<std::string>& skip;
  size_t skipped = 0;

  bool Skips(const Row& row) {
    if (std::find(skip.begin(), skip.end(), row.flag) == skip.end()) return false;
    ++skipped;
    return true;
  }
  template <typename T>
  void operator()(const Row& row, T& field, const ValueCheck& check) {
    if (Skips(row)) return;
    CLI::Option* option = app.add_option(row.flag, field, row.help);
    option->group(row.group)->option_text(row.value)->check(check);
    // A default that the flag itself would not accept only stands for "not given".
    if (check(Text(field)).empty()) option->default_str(Text(field));
  }
  void Switch(const Row& row, bool& field, bool value) {
    if (Skips(row)) return;
    app.add_flag(value ? row.flag : absl::StrCat("!", row.flag), field, row.help)->group(row.group);
  }
};

}  // namespace

void AddTrainingFlags(CLI::App& app, TrainingOptions& options, const std::vector<std::string>& skip) {
  Adder adder{app, skip};
  VisitFlags(options, adder);
  PSRING_CHECK(adder.skipped == skip.size());  // a name in `skip` that is no flag of ours
}

std::vector<std::string> TrainingArguments(const TrainingOptions& options) {
  std::vector<std::string> arguments;
  for (const Entry& entry : EntriesBesideDefaults(options)) {
    arguments.push_back(entry.check == nullptr ? entry.row.flag
                                               : absl::StrCat(entry.row.flag, "=", entry.text));
  }
  return arguments;
}

absl::StatusOr<TrainingOptions> TrainingOptionsOf(const std::vector<std::string>& arguments) {
  TrainingOptions options;
  CLI::App app("", "training");
  app.set_help_flag();
  AddTrainingFlags(app, options);
  const ParseOutcome outcome = Parse(app, arguments);
  if (outcome.proceed) return options;
  return absl::InvalidArgumentError(absl::StripTrailingAsciiWhitespace(outcome.text));
}

absl::Status CheckFlagValues(const TrainingOptions& options) {
  for (const Entry& entry : EntriesBesideDefaults(options)) {
    const std::string wrong = entry.check == nullptr ? "" : entry.check(entry.text);
    if (!wrong.empty()) return absl::InvalidArgumentError(absl::StrCat(entry.row.flag, ": ", wrong));
  }
  return absl::OkStatus();
}

}  // namespace psring
