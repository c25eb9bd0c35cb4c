// The flags of training: name, help, allowed values, and the command line that reproduces the options.
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
    return wrong.empty() ? "" : absl::StrCat("'", text, "' is not a GPU: ", wrong);
  }
  const std::vector<std::string> words = {"auto", "cpu", "cuda"};
  if (std::find(words.begin(), words.end(), text) != words.end()) return "";
  const std::string nearest = NearestWord(text, words);
  return absl::StrCat("'", text, "' is not one of auto, cpu, cuda, cuda:I",
                      nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"));
}

std::string CheckGiven(const std::string& text) { return text.empty() ? "it is empty" : ""; }

// Whether --help shows a flag, or only --help-all.
enum class Help { kBrief, kAll };

struct Row {
  const char* flag;
  const char* group;
  const char* value;  // what help shows for the value
  std::string help;
  Help shown = Help::kAll;

  // The group that CLI11 lists it under.
  std::string HelpGroup() const { return shown == Help::kBrief ? group : InHelpAll(group); }
};

constexpr char kWhat[] = "What is trained";
constexpr char kLength[] = "How long (one of --steps, --samples, --epochs; else 1 epoch)";
constexpr char kStep[] = "One step";
constexpr char kEvaluation[] = "Evaluation and checks";
constexpr char kCommunication[] = "Communication";
constexpr char kServer[] = "Parameter server";
constexpr char kDelays[] = "Slow workers and timeouts";
constexpr char kFailure[] = "Checkpoints and failure";
constexpr char kClock[] =
    "Virtual clock (one process computes the real gradients of all workers; times are simulated)";

// The one table. `visit` gets a row, its field and its check; a switch instead gets the value it sets.
// `Options` is TrainingOptions, const or not.
template <typename Options, typename Visitor>
void VisitFlags(Options& o, Visitor& visit) {
  visit(Row{"--strategy", kWhat, "NAME", "How the replicas are synchronised", Help::kBrief}, o.strategy,
        CheckGiven);
  visit(Row{"--model", kWhat, "NAME", "The network", Help::kBrief}, o.model, CheckGiven);
  visit(Row{"--width", kWhat, "N", "Neurons in each hidden layer of mlp and mlp-small; else the model's own"},
        o.width, WholeNumber(1, 1 << 16));
  visit(Row{"--workload", kWhat, "NAME",
            absl::StrCat("Replay recorded layer times instead of training a network: ",
                         absl::StrJoin(WorkloadNames(), ", "), ", or a file.csv"),
            Help::kBrief},
        o.workload, CheckGiven);
  visit(Row{"--compute_speedup", kWhat, "X", "How many times as fast as recorded the workload computes"},
        o.compute_speedup, RealNumber({.low = 1e-3, .high = 1e3, .low_allowed = true, .high_allowed = true}));
  visit(Row{"--data", kWhat, "NAME", "fashion-mnist, mnist or synthetic", Help::kBrief}, o.data,
        OneOf({"fashion-mnist", "mnist", "synthetic"}));
  visit(Row{"--data_dir", kWhat, "DIR", "Folder of the four idx files; else where Debian installs them"},
        o.data_dir, CheckGiven);
  visit(Row{"--device", kWhat, "DEVICE", "auto, cpu, cuda (rank i of a host uses GPU i) or cuda:I",
            Help::kBrief},
        o.device, CheckDevice);
  visit.Switch(
      Row{"--oversubscribe", kWhat, "", "Let ranks share a GPU: a functional test, not a speed test"},
      o.oversubscribe, true);
  visit(Row{"--threads", kWhat, "N", "Cores that an operation may use, per worker"}, o.threads,
        WholeNumber(1, 4096));
  visit(Row{"--ranks_per_process", kWhat, "K",
            "Ranks in each process, each a thread with its own device and replica. torchrun, mpirun and srun "
            "count processes: the world size is theirs times K"},
        o.ranks_per_process, WholeNumber(1, 1024));
  visit(Row{"--precision", kWhat, "TYPE",
            "Of forward and backward: float32; tf32 (GPUs: float32 products with a 10-bit mantissa, like "
            "PyTorch's set_float32_matmul_precision(\"high\")); or bfloat16, with weights, gradients and "
            "optimizer in float32"},
        o.precision, OneOf({"float32", "tf32", "bfloat16"}));
  visit.Switch(Row{"--cuda_graph", kWhat, "",
                   "GPUs: capture forward and backward in the second step and replay them from then on, one "
                   "launch per layer; with single, none and NCCL (one rank per process) one launch replays "
                   "the entire step with its all-reduces"},
               o.cuda_graph, true);

  visit(Row{"--steps", kLength, "N", "Measured steps per worker", Help::kBrief}, o.steps,
        WholeNumber(1, kMostInt64));
  visit(Row{"--samples", kLength, "N", "Samples over all workers", Help::kBrief}, o.samples,
        WholeNumber(1, kMostInt64));
  visit(Row{"--epochs", kLength, "X", "Passes over the data", Help::kBrief}, o.epochs, RealNumber(kPositive));
  visit(Row{"--warmup_steps", kLength, "N", "Steps per worker before the measured ones"}, o.warmup_steps,
        WholeNumber(0, kMostInt64));

  visit(Row{"--batch", kStep, "N", "Samples per worker and step", Help::kBrief}, o.batch,
        WholeNumber(1, kMostInt));
  visit(Row{"--micro_batches", kStep, "N",
            "Batches added up to one step, in order: what N workers compute (only single)"},
        o.micro_batches, WholeNumber(1, kMostInt));
  visit(Row{"--accumulate", kStep, "K",
            "Batches of each worker whose gradients are added up to one step; workers synchronise only in "
            "the last"},
        o.accumulate, WholeNumber(1, kMostInt));
  visit(Row{"--drop_last", kStep, "BOOL",
            "true: skip an epoch's last step if the samples do not fill it; false: use the remaining "
            "samples, each counted once; some workers may have fewer or none"},
        o.drop_last, OneOf({"true", "false"}));
  visit(Row{"--optimizer", kStep, "NAME", "sgd, momentum or adam", Help::kBrief}, o.optimizer,
        OneOf({"sgd", "momentum", "adam"}));
  visit(Row{"--lr", kStep, "X", "Learning rate of one update; else the model's", Help::kBrief}, o.lr,
        RealNumber(kPositive));
  visit(Row{"--momentum", kStep, "X", "Momentum; else the strategy's: 0.9, asynchronous 0"}, o.momentum,
        RealNumber({.low = 0, .high = 1, .low_allowed = true}));
  visit(Row{"--schedule", kStep, "NAME", "Learning rate: constant, or linear (down to 0)"}, o.schedule,
        OneOf({"constant", "linear"}));
  visit(Row{"--warmup_epochs", kStep, "X", "Epochs in which the rate rises to the scaled one"},
        o.warmup_epochs, RealNumber({.low = 0, .low_allowed = true}));
  visit.Switch(Row{"--linear_scaling", kStep, "",
                   "Multiply the learning rate by the number of workers that contribute to an update"},
               o.linear_scaling, true);
  visit(Row{"--clip_norm", kStep, "X",
            "Clip the mean gradient to this norm over all parameters; 0: no clipping. Only synchronous "
            "strategies; a server then replies only when it has the whole gradient"},
        o.clip_norm, RealNumber({.low = 0, .low_allowed = true}));
  visit(Row{"--bucket_mb", kStep, "X", "MiB of gradient that are sent together"}, o.bucket_mb,
        RealNumber({.low = 0, .high = 1 << 20, .high_allowed = true}));
  visit(Row{"--seed", kStep, "N", "Seed of weights and sample order", Help::kBrief}, o.seed,
        WholeNumber(0, std::numeric_limits<uint64_t>::max()));

  visit(Row{"--eval_every", kEvaluation, "N", "Steps between evaluations; 0: only at the end"}, o.eval_every,
        WholeNumber(0, kMostInt64));
  visit.Switch(Row{"--no_eval", kEvaluation, "", "Do not evaluate", Help::kBrief}, o.evaluate, false);
  visit(Row{"--validation", kEvaluation, "N", "Do not train on the last N of the shuffled training samples"},
        o.validation, WholeNumber(0, kMostInt));
  visit.Switch(Row{"--check_replicas", kEvaluation, "", "Hash the weights after every step"},
               o.check_replicas, true);
  visit.Switch(Row{"--align_steps", kEvaluation, "",
                   "All ranks begin every step together, to measure one exchange at a time"},
               o.align_steps, true);

  visit(Row{"--backend", kCommunication, "NAME",
            "Library of the collectives: native, gloo, mpi or nccl; else the strategy's"},
        o.backend, OneOf({"native", "gloo", "mpi", "nccl"}));
  visit(
      Row{"--transport", kCommunication, "NAME",
          "Of collectives and of the exchange with a server: tcp (a server's is gRPC), shm (shared memory), "
          "or auto: the fastest that both ends share"},
      o.transport, OneOf({"auto", "tcp", "shm"}));
  visit(Row{"--wire", kCommunication, "TYPE",
            "Of gradients sent to a server or around a ring: float32, or bfloat16 or float16, whose rounding "
            "error is added to the worker's next gradient; a server returns weights in float32"},
        o.wire, OneOf({"float32", "bfloat16", "float16"}));

  visit(Row{"--servers", kServer, "S",
            "Servers that share the parameters, each with a slice of every bucket; else 1, or one per worker "
            "if colocated"},
        o.servers, WholeNumber(1, kMostServers));
  visit(Row{"--server_placement", kServer, "NAME",
            "rank0 (on rank 0's host and device), dedicated (on their own machines) or colocated (one with "
            "each worker)"},
        o.server_placement, OneOf({"rank0", "dedicated", "colocated"}));
  visit(Row{"--ps_schedule", kServer, "NAME",
            "pipelined (the server replies to each bucket as soon as possible) or serial (push everything, "
            "then pull)"},
        o.ps_schedule, OneOf({"serial", "pipelined"}));
  visit.Switch(Row{"--deterministic", kServer, "", "The server adds in rank order, not in order of arrival"},
               o.deterministic, true);
  visit(Row{"--staleness_lr", kServer, "NAME",
            "Asynchronous strategies: inverse divides a late gradient's learning rate by its staleness; or "
            "none"},
        o.staleness_lr, OneOf({"none", "inverse"}));
  visit(Row{"--on_worker_loss", kServer, "WHAT",
            "stop, or continue with the remaining workers; else synchronous modes stop and asynchronous ones "
            "continue"},
        o.on_worker_loss, OneOf({"stop", "continue"}));
  visit(Row{"--worker_timeout", kServer, "S",
            "Seconds in which a worker that lost its connection to the server may come back"},
        o.worker_timeout_s, RealNumber({.low = 0, .high = 1e6, .low_allowed = true, .high_allowed = true}));

  visit(Row{"--straggler", kDelays, "W:F,...",
            "Worker W (from 0) computes F times as long: after each layer it sleeps F - 1 times what that "
            "layer took, so that its buckets are late in proportion and cores stay free for others; or none",
            Help::kBrief},
        o.straggler, StragglersText());
  visit(Row{"--jitter_ms", kDelays, "TIME",
            "A random sleep before each step, drawn from seed, worker and step: exp:MEAN, "
            "lognormal:MEDIAN:SIGMA, a number, or none",
            Help::kBrief},
        o.jitter_ms, TimeDistributionText());
  visit(Row{"--timeout", kDelays, "S", "Seconds to wait for others before giving up"}, o.timeout_s,
        RealNumber({.low = 0, .high = 1e6, .high_allowed = true}));

  visit(Row{"--checkpoint_dir", kFailure, "DIR",
            "Keep checkpoints here, as folders step<N>: at the end, at SIGTERM, and every --checkpoint_every "
            "steps"},
        o.checkpoint_dir, CheckGiven);
  visit(Row{"--checkpoint_every", kFailure, "N",
            "Steps between checkpoints; 0: only at SIGTERM and at the end"},
        o.checkpoint_every, WholeNumber(0, kMostInt64));
  visit(Row{"--checkpoint_keep", kFailure, "N", "How many checkpoints to keep: the newest"},
        o.checkpoint_keep, WholeNumber(1, 1000000));
  visit(Row{"--resume", kFailure, "PATH",
            "Continue from a checkpoint: its folder, a folder of several (the newest), latest (the newest in "
            "--checkpoint_dir; from the beginning if there is none yet), or a .safetensors file (only "
            "weights)"},
        o.resume, CheckGiven);
  visit(Row{"--max_restarts", kFailure, "N",
            "How often psring restarts the job from the last checkpoint after a process died; restarting "
            "only a server, where possible, counts too"},
        o.max_restarts, WholeNumber(0, 1000));

  visit(Row{"--clock", kClock, "NAME", "wall (real processes) or virtual", Help::kBrief}, o.clock,
        OneOf({"wall", "virtual"}));
  visit(
      Row{"--compute_ms", kClock, "TIME",
          "Computing of a step of one undisturbed worker: 6, exp:MEAN, lognormal:MEDIAN:SIGMA, or trace:RUN "
          "(as measured in an earlier run); psring measures it if not given"},
      o.compute_ms, VirtualTimeText());
  visit(Row{"--network_ms", kClock, "TIME",
            "One gradient, or one set of weights, on a worker's link, in the same format; a ring takes "
            "2(N-1)/N of it"},
        o.network_ms, VirtualTimeText());
  visit(Row{"--serve_ms", kClock, "TIME", "The server's work for one push; pushes queue in order of arrival"},
        o.serve_ms, TimeDistributionText());

  visit(Row{"--debug.score", kDebugGroup, "NAME",
            "Data of the evaluations: test, or validation (the samples held out)"},
        o.score, OneOf({"test", "validation"}));
  visit(Row{"--debug.reject_nonfinite", kDebugGroup, "BOOL",
            "The server rejects gradients that contain NaN or infinity"},
        o.reject_nonfinite, OneOf({"true", "false"}));
  visit(Row{"--debug.staging_mb", kDebugGroup, "MB",
            "Asynchronous strategies: a server's memory for gradients and replies in transit, over all "
            "workers; a push waits until there is some"},
        o.staging_mb, WholeNumber(1, 1 << 20));
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

// The fields that differ from their defaults. A default may be a value that its flag does not accept, such as
// a learning rate of 0 for "the model's".
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
    option->group(row.HelpGroup())->option_text(row.value)->check(check);
    // A default that the flag does not accept means "not given".
    if (check(Text(field)).empty()) option->default_str(Text(field));
  }
  void Switch(const Row& row, bool& field, bool value) {
    if (Skips(row)) return;
    app.add_flag(value ? row.flag : absl::StrCat("!", row.flag), field, row.help)->group(row.HelpGroup());
  }
};

}  // namespace

void AddTrainingFlags(CLI::App& app, TrainingOptions& options, const std::vector<std::string>& skip) {
  Adder adder{app, skip};
  VisitFlags(options, adder);
  PSRING_CHECK(adder.skipped == skip.size());  // each name in `skip` is a flag of the table
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
