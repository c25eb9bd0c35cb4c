// The table of training's flags: name, help, allowed values. Included by training_flags.cc only.
#pragma once

#include <climits>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/cli/command_line.h"
#include "common/cli/delays.h"
#include "common/net/tls.h"
#include "common/options/context_parallel.h"
#include "common/options/training_options.h"
#include "common/text/units.h"
#include "common/workloads/workload.h"

namespace psring {

inline std::string CheckDeviceFlag(const std::string& text) {
  if (!absl::StartsWith(text, "cuda:")) return OneOf({"auto", "cpu", "cuda", "cuda:I"})(text);
  const std::string wrong = WholeNumber(0, 1023)(text.substr(5));
  return wrong.empty() ? "" : absl::StrCat("'", text, "' is not a GPU: ", wrong);
}

constexpr int kMaxAxisRanks = 1 << 16;  // ranks along an axis, and layers

inline std::string CheckGivenFlag(const std::string& text) { return text.empty() ? "it is empty" : ""; }

// [low, high].
inline ValueCheck RealBetween(double low, double high) {
  return RealNumber({.low = low, .high = high, .low_allowed = true, .high_allowed = true});
}

enum class FlagHelp { kBrief, kAll };  // --help lists only the brief ones, --help-all all

struct FlagRow {
  const char* flag;
  const char* value;  // its name in the help; empty for a switch
  std::string help;
  FlagHelp shown = FlagHelp::kAll;
};

// The only table of flags. `visit` is called with a row, its field and its check; a switch instead has the
// value that it sets. `Options` is TrainingOptions, const or not.
template <typename Options, typename Visitor>
void VisitFlags(Options& o, Visitor& visit) {
  const ValueCheck positive = RealNumber({}), not_negative = RealNumber({.low = 0, .low_allowed = true});
  const ValueCheck below_1 = RealNumber({.low = 0, .high = 1, .low_allowed = true});
  const ValueCheck count = WholeNumber(1, INT_MAX), boolean = OneOf({"true", "false"});
  const ValueCheck large_count = WholeNumber(1, kMaxCount), large_count_or_0 = WholeNumber(0, kMaxCount);

  visit.group = "What is trained";
  visit({"--strategy", "NAME",
         "How the replicas are synchronized: ring (or allreduce), ps-sync (or ps), ps-async, ... (an unknown "
         "name lists all)",
         FlagHelp::kBrief},
        o.strategy, CheckGivenFlag);
  visit({"--model", "NAME", "The network (and its default --data):", FlagHelp::kBrief}, o.model,
        CheckGivenFlag);
  visit({"--width", "N",
         "Neurons in each hidden layer of mlp and mlp-small, channels of a resnet's first stage, width of "
         "gpt and of the rows of tables; default: the model's own"},
        o.width, WholeNumber(1, 1 << 16));
  visit({"--layers", "N", "Transformer blocks of gpt; default: the model's own"}, o.layers,
        WholeNumber(1, 1024));
  visit({"--heads", "N", "Attention heads of gpt, a divisor of the width; default: the model's own"}, o.heads,
        WholeNumber(1, 1024));
  visit({"--context", "N", "Tokens of a sample of gpt; default: the model's own"}, o.context,
        WholeNumber(1, 1 << 16));
  visit({"--dropout", "P",
         "Gpt: drop each element of the embedding, and of what attention and MLP of a block add, with this "
         "probability in training; the same elements for any number of workers"},
        o.dropout, below_1);
  visit({"--workload", "NAME",
         absl::StrCat("Replay recorded layer times instead of training a network: ",
                      absl::StrJoin(WorkloadNames(), ", "), ", or your own model's CSV file (./mine.csv)"),
         FlagHelp::kBrief},
        o.workload, CheckGivenFlag);
  visit({"--compute_speedup", "X", "Divide the recorded times of the workload by X"}, o.compute_speedup,
        RealBetween(1e-3, 1e3));
  visit({"--data", "NAME", "The data; default: the model's.", FlagHelp::kBrief}, o.data, CheckGivenFlag);
  visit({"--data_dir", "DIR",
         "Folder of the four idx files (default: where Debian installs them) or, with --data tokens, of "
         "train.bin and val.bin: 16-bit tokens, of nanoGPT or with llm.c's header"},
        o.data_dir, CheckGivenFlag);
  visit({"--text", "FILE",
         "The text; its tokens are its bytes, for skipgram its words, of letters in UTF-8; default: the King "
         "James Bible"},
        o.text, CheckGivenFlag);
  visit({"--device", "DEVICE", "auto, cpu, cuda (rank i of a host uses GPU i) or cuda:I", FlagHelp::kBrief},
        o.device, CheckDeviceFlag);
  visit.Switch({"--oversubscribe", "", "Let ranks share a GPU: a functional test, not a speed test"},
               o.oversubscribe, true);
  visit({"--memory", "BYTES",
         "Do not train if weights, gradients, optimizer state and activations of a worker need more, such as "
         "2GB; none: train without this check; default: the free memory of its device"},
        o.memory, ParsedBy(ParseByteSize, "none"));
  visit({"--threads", "N", "Cores that an operation may use, per worker"}, o.threads, WholeNumber(1, 4096));
  visit({"--ranks_per_process", "K",
         "Ranks in each process, each a thread with its own device and replica. torchrun, mpirun and srun "
         "count processes: the world size is theirs times K"},
        o.ranks_per_process, WholeNumber(1, 1024));
  visit({"--precision", "TYPE",
         "Type of forward and backward: float32; tf32 (GPUs: float32 products with a 10-bit mantissa, like "
         "PyTorch's set_float32_matmul_precision(\"high\")); or bfloat16, with weights, gradients and "
         "optimizer in float32"},
        o.precision, OneOf({"float32", "tf32", "bfloat16"}));
  visit.Switch({"--cuda_graph", "",
                "GPUs: capture forward and backward in the second step and replay them from then on, one "
                "launch per layer; with single, none and NCCL (one rank per process) one launch replays the "
                "entire step with its all-reduces"},
               o.cuda_graph, true);
  visit.Switch({"--recompute", "",
                "Resnets and gpt: keep only the input of each block for backward, which computes the block "
                "again; less memory, up to a third more computing, the same results"},
               o.recompute, true);

  visit.group = "How long (one of --steps, --samples, --epochs; default 1 epoch)";
  visit({"--steps", "N", "Measured steps per worker", FlagHelp::kBrief}, o.steps, large_count);
  visit({"--samples", "N", "Samples (of a text: tokens) over all workers", FlagHelp::kBrief}, o.samples,
        large_count);
  visit({"--epochs", "X", "Passes over the data", FlagHelp::kBrief}, o.epochs,
        RealNumber({.high = kMaxEpochs, .high_allowed = true}));
  visit({"--warmup_steps", "N", "Steps per worker before the measured ones"}, o.warmup_steps,
        large_count_or_0);

  visit.group = "One step";
  visit({"--batch", "N", "Samples per worker and step", FlagHelp::kBrief}, o.batch, count);
  visit({"--reference_workers", "N",
         "Add up N batches in order for each step, which computes what N workers would (only with single)"},
        o.reference_workers, count);
  visit(
      {"--micro_batches", "K",
       "Each worker adds up the gradients of K batches, then synchronizes them; with --pp, the K batches of "
       "a replica pass through its stages"},
      o.micro_batches, count);
  visit({"--reshard", "WHEN",
         "fsdp: forward: release a unit's weights after forward and gather them again for backward; never: "
         "keep them until backward has used them, which sends a third less and needs memory for all weights"},
        o.reshard, OneOf({"forward", "never"}));
  visit({"--dp_shard", "S",
         "zero1, zero2, fsdp: so many consecutive replicas, such as those of a node, divide the state among "
         "them; their sums of gradients are added up over the other groups of S. Default: all replicas"},
        o.dp_shard, WholeNumber(2, kMaxAxisRanks));
  visit({"--drop_last", "BOOL",
         "true: skip an epoch's last step if the samples do not fill it; false: use the remaining samples, "
         "each counted once; some workers may have fewer or none"},
        o.drop_last, boolean);
  visit({"--optimizer", "NAME",
         "sgd, momentum, adagrad, adam or adamw; default: the model's (adamw for gpt, sgd for models with "
         "tables, momentum for others)"},
        o.optimizer, OneOf({"sgd", "momentum", "adagrad", "adam", "adamw"}));
  visit({"--lr", "X", "Learning rate of one update; default: the model's", FlagHelp::kBrief}, o.lr, positive);
  visit({"--momentum", "X", "Momentum; default: 0.9, or 0 if gradients are of older weights"}, o.momentum,
        below_1);
  visit({"--weight_decay", "X",
         "Weight decay of adamw; it applies to matrices, not to biases and normalizations"},
        o.weight_decay, not_negative);
  visit({"--schedule", "NAME", "Learning rate: constant, linear (down to 0) or cosine (down to a tenth)"},
        o.schedule, OneOf({"constant", "linear", "cosine"}));
  visit({"--warmup_epochs", "X",
         "Epochs in which the learning rate rises from --lr to its scaled value, with cosine from 0"},
        o.warmup_epochs, RealBetween(0, kMaxEpochs));
  visit.Switch({"--linear_scaling", "",
                "Multiply the learning rate by the number of workers that contribute to an update"},
               o.linear_scaling, true);
  visit({"--clip_norm", "X",
         "Clip the mean gradient to this norm over all parameters; 0: no clipping. Only synchronous "
         "strategies; a server then replies only when it has the whole gradient"},
        o.clip_norm, not_negative);
  visit({"--bucket_mb", "X", "MiB of gradient that are sent together"}, o.bucket_mb,
        RealNumber({.low = 0, .high = 1 << 20, .high_allowed = true}));
  visit({"--seed", "N", "Seed of weights and sample order"}, o.seed,
        WholeNumber(0, std::numeric_limits<uint64_t>::max()));

  visit.group = "Pipelines";
  visit({"--pp", "P",
         "Cut the model into stages on P workers: N workers are N/P replicas, whose samples per step are "
         "--batch times --micro_batches. With all-reduce strategies, ps-sync, ps-ssp and ps-async",
         FlagHelp::kBrief},
        o.pp, WholeNumber(1, kMaxAxisRanks));
  visit({"--tp", "T",
         "Divide the matrices of a transformer over T workers: N workers are N/T replicas, or with --pp "
         "N/(P T). With all-reduce strategies (native or gloo) and ps-sync on CPUs",
         FlagHelp::kBrief},
        o.tp, WholeNumber(1, kMaxAxisRanks));
  visit.Switch({"--sequence_parallel", "",
                "With --tp: also divide the tokens of a batch between the matrices, so that a worker keeps "
                "1/T of all activations; T must divide the context. Native collectives only"},
               o.sequence_parallel, true);
  visit({"--cp", "C",
         "Divide the sequences of a transformer over C workers, which have all weights and 1/C of the "
         "positions each: N workers are N/C replicas. With all-reduce strategies (native or gloo) on CPUs",
         FlagHelp::kBrief},
        o.cp, WholeNumber(1, kMaxAxisRanks));
  visit({"--context_parallel", "NAME",
         "With --cp: ring, keys and values travel, and a worker has two chunks of a sequence, so that all "
         "have as much work; contiguous, one; ulysses, all-to-alls give each all positions of some heads"},
        o.context_parallel, OneOf(ContextParallelNames()));
  visit({"--program", "NAME", "What each worker of a replica computes in which order:", FlagHelp::kBrief},
        o.program, CheckGivenFlag);
  visit({"--cuts", "L,...",
         "The layer (from 0) with which each stage but the first begins; default: balanced by measured time"},
        o.cuts, CountsText(kMaxAxisRanks));
  visit({"--rank_order", "AXES",
         "Which axis has consecutive ranks, the fastest first: tp,cp,dp,pp (by default; T divide a stage) or "
         "another order, such as pp,dp (the first P ranks are a replica); without axes of one rank"},
        o.rank_order, ListOf(OneOf({"tp", "cp", "dp", "pp"})));
  visit({"--copy_streams", "1|2",
         "How a worker's messages to and from other stages run: 2, each direction to each neighbour has "
         "its own stream, so that they overlap; 1, all follow one another on one stream"},
        o.copy_streams, WholeNumber(1, 2));

  visit.group = "Evaluation and checks";
  visit({"--eval_every", "N", "Steps between evaluations; 0: only at the end"}, o.eval_every,
        large_count_or_0);
  visit.Switch({"--no_eval", "", "Do not evaluate", FlagHelp::kBrief}, o.evaluate, false);
  visit({"--validation", "N", "Hold out the last N of the shuffled training samples"}, o.validation,
        WholeNumber(0, INT_MAX));
  visit.Switch({"--check_replicas", "", "Hash the weights after every step"}, o.check_replicas, true);
  visit.Switch(
      {"--align_steps", "", "All ranks begin every step together, to measure one exchange at a time"},
      o.align_steps, true);

  visit.group = "Communication";
  visit.Switch({"--sync_batch_norm", "",
                "Resnets: normalize by the statistics of all workers' batches, which every layer exchanges; "
                "only all-reduce strategies (native or gloo)"},
               o.sync_batch_norm, true);
  visit({"--broadcast_buffers", "BOOL",
         "All-reduce strategies: rank 0 sends its buffers (running statistics of resnets) before every "
         "forward pass, as PyTorch's DDP does"},
        o.broadcast_buffers, boolean);
  visit(
      {"--backend", "NAME", "Library of the collectives: native, gloo, mpi or nccl; default: the strategy's"},
      o.backend, OneOf({"native", "gloo", "mpi", "nccl"}));
  visit(
      {"--transport", "NAME",
       "For collectives and the exchange with a server: tcp (with a server, see --server_wire), shm (shared "
       "memory), or auto: the fastest that both ends share"},
      o.transport, OneOf({"auto", "tcp", "shm"}));
  visit({"--wire", "TYPE",
         "Type of gradients sent to a server or around a ring: float32, or bfloat16 or float16, whose "
         "rounding error is added to the worker's next gradient; a server returns weights in float32"},
        o.wire, OneOf({"float32", "bfloat16", "float16"}));
  visit({"--tls", "auto|CERT,KEY,CA", kTlsHelp}, o.tls, CheckTls);

  visit.group = "Parameter server";
  visit(
      {"--servers", "S",
       "Servers that share the parameters, each with a slice of every bucket; with --pp each of a replica's "
       "P workers has S of them for its stages. Default: 1, or one per worker if colocated"},
      o.servers, WholeNumber(1, kMaxServers));
  visit({"--server_placement", "NAME",
         "dedicated (on their own machines), colocated (one with each worker) or rank0 (on rank 0's host and "
         "device, which then uses no link); default: dedicated on a virtual cluster, colocated on several "
         "machines, rank0 on one"},
        o.server_placement, OneOf({"rank0", "dedicated", "colocated"}));
  visit(
      {"--ps_schedule", "NAME",
       "pipelined (a bucket's weights leave as soon as it is updated, while other buckets are pushed) or "
       "serial (no weights leave before the gradients of all buckets have arrived: from all workers, or with "
       "ps-async and ps-ssp from the worker)"},
      o.ps_schedule, OneOf({"serial", "pipelined"}));
  visit({"--server_wire", "NAME",
         "What carries rows of tables, and gradients and weights that are not in shared memory: grpc, or "
         "stream (TCP connections of psring's own, as between the ranks of a ring)"},
        o.server_wire, OneOf({"grpc", "stream"}));
  visit.Switch({"--deterministic", "", "The server adds in rank order, not in order of arrival"},
               o.deterministic, true);
  visit.Switch(
      {"--local_aggregation", "",
       "ps-sync: the workers of a machine add up their gradients, and one of them pushes the sum and "
       "passes the new weights on, so that the servers see each machine as one worker"},
      o.local_aggregation, true);
  visit(
      {"--staleness_lr", "NAME",
       "Asynchronous strategies: inverse divides a late gradient's learning rate by its staleness; or none"},
      o.staleness_lr, OneOf({"none", "inverse"}));
  visit(
      {"--on_worker_loss", "WHAT",
       "stop, or continue with the remaining workers; default: synchronous modes stop and asynchronous ones "
       "continue"},
      o.on_worker_loss, OneOf({"stop", "continue"}));
  visit({"--worker_timeout", "S", "Seconds within which a worker must reconnect to the server"},
        o.worker_timeout_s, RealBetween(0, 1e6));

  visit.group = "Slow workers and timeouts";
  visit({"--straggler", "W:F,...",
         "Worker W (from 0) computes F times as long: after each layer it sleeps F - 1 times as long as the "
         "layer took, which delays its buckets in proportion and leaves cores to others; or none",
         FlagHelp::kBrief},
        o.straggler, StragglersText());
  visit({"--jitter_ms", "TIME",
         "A random sleep before each step, drawn from seed, worker and step: exp:MEAN, "
         "lognormal:MEDIAN:SIGMA, a number, or none"},
        o.jitter_ms, TimeDistributionText());
  visit({"--timeout", "S", "Seconds to wait for others before giving up"}, o.timeout_s,
        RealNumber({.low = 0, .high = 1e6, .high_allowed = true}));

  visit.group = "Checkpoints and failure";
  visit({"--checkpoint_dir", "DIR",
         "Write checkpoints here, as folders step<N>: at the end, at SIGTERM, and every --checkpoint_every "
         "steps"},
        o.checkpoint_dir, CheckGivenFlag);
  visit({"--checkpoint_every", "N", "Steps between checkpoints; 0: only at SIGTERM and at the end"},
        o.checkpoint_every, large_count_or_0);
  visit({"--checkpoint_keep", "N", "How many checkpoints to keep: the newest"}, o.checkpoint_keep,
        WholeNumber(1, 1000000));
  visit({"--resume", "PATH",
         "Continue from a checkpoint: its folder, a folder of several (the newest), latest (the newest in "
         "--checkpoint_dir; from the beginning if there is none yet), or a .safetensors file (only weights)"},
        o.resume, CheckGivenFlag);
  visit({"--max_restarts", "N",
         "How often psring may restart the job from the last checkpoint after a process has died; restarting "
         "only a server, where possible, counts too"},
        o.max_restarts, WholeNumber(0, 1000));

  visit.group = "Virtual clock (one process computes the real gradients of all workers; times are simulated)";
  visit({"--clock", "NAME", "wall (real processes) or virtual", FlagHelp::kBrief}, o.clock,
        OneOf({"wall", "virtual"}));
  visit(
      {"--compute_ms", "TIME",
       "Compute time of a step of one undisturbed worker: 6, exp:MEAN, lognormal:MEDIAN:SIGMA, or trace:RUN "
       "(as measured in an earlier run); default: psring measures it"},
      o.compute_ms, VirtualTimeText());
  visit({"--network_ms", "TIME",
         "Time of one gradient, or one set of weights, on a worker's link, in the same format; a ring takes "
         "2(N-1)/N of it, a star 2(N-1)"},
        o.network_ms, VirtualTimeText());
  visit({"--serve_ms", "TIME", "The server's time for one push; pushes queue in order of arrival"},
        o.serve_ms, TimeDistributionText());

  visit.group = kDebugGroup;
  visit({"--debug.score", "NAME", "Data of the evaluations: test, or validation (the samples held out)"},
        o.score, OneOf({"test", "validation"}));
  visit({"--debug.reject_nonfinite", "BOOL", "The server rejects gradients that contain NaN or infinity"},
        o.reject_nonfinite, boolean);
  visit({"--debug.staging_mb", "MIB",
         "Asynchronous strategies: a server's memory for gradients and replies in transit, over all workers; "
         "a push waits until enough is free"},
        o.staging_mb, WholeNumber(1, 1 << 20));
}

}  // namespace psring
