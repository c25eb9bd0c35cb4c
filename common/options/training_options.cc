// What follows from several options together, and which options contradict each other.
#include "common/options/training_options.h"

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/text/translate.h"
#include "common/workloads/workload.h"

namespace psring {
namespace {

// A combination that is invalid if `applies`.
struct Conflict {
  bool applies;
  std::string message;
};

absl::Status FirstOf(const std::vector<Conflict>& conflicts) {
  for (const Conflict& conflict : conflicts) {
    if (conflict.applies) return InvalidArgument(conflict.message);
  }
  return absl::OkStatus();
}

// The flags that only strategies with a parameter server use: `see(flag, member)`.
template <typename See>
void ForEachServerFlag(const See& see) {
  see("--servers", &TrainingOptions::servers);
  see("--server_placement", &TrainingOptions::server_placement);
  see("--ps_schedule", &TrainingOptions::ps_schedule);
  see("--server_wire", &TrainingOptions::server_wire);
  see("--local_aggregation", &TrainingOptions::local_aggregation);
  see("--on_worker_loss continue", &TrainingOptions::on_worker_loss);
  see("--worker_timeout", &TrainingOptions::worker_timeout_s);
  see("--debug.reject_nonfinite", &TrainingOptions::reject_nonfinite);
  see("--debug.staging_mb", &TrainingOptions::staging_mb);
}

absl::Status CheckCudaGraph(const TrainingOptions& o) {
  const auto with = [](const char* what) {
    return absl::StrCat("--cuda_graph cannot be combined with ", what, "; omit one of them");
  };
  return FirstOf(
      {{o.device == "cpu", with("--device cpu: it is for GPUs")},
       {o.clock == "virtual", with("--clock virtual, which computes on the CPU")},
       {!o.workload.empty(), with("--workload, which waits on the host instead of computing")},
       {o.strategy == "data-parallel", with("--strategy data-parallel, whose replicas are threads")}});
}

absl::Status CheckLocalAggregation(const TrainingOptions& o) {
  if (!o.local_aggregation) return absl::OkStatus();
  return FirstOf(
      {{o.server_placement == "colocated",
        "--local_aggregation with --server_placement colocated, which starts a server beside every "
        "worker: use rank0 or dedicated"},
       {o.wire != "float32" && (Checkpoints(o) || !o.resume.empty()),
        absl::StrCat("--local_aggregation with --wire ", o.wire,
                     " and checkpoints: the rounding errors are a machine's, not a worker's, and "
                     "are not saved; omit one of the three")}});
}

absl::Status CheckClock(const TrainingOptions& o) {
  const TrainingOptions standard;
  const auto needs_virtual = [](const char* flag) {
    return Tr("$0 is for --clock virtual; give both", flag);
  };
  if (o.clock == "wall") {
    return FirstOf({{o.compute_ms != standard.compute_ms, needs_virtual("--compute_ms")},
                    {o.network_ms != standard.network_ms, needs_virtual("--network_ms")},
                    {o.serve_ms != standard.serve_ms, needs_virtual("--serve_ms")}});
  }
  return FirstOf(
      {{o.servers > 1 || o.server_placement == "colocated",
        "--clock virtual has one server; omit --servers and colocated"},
       {o.transport == "shm",
        "--transport shm with --clock virtual: nothing is sent; give --network_ms, the time of one gradient"},
       {o.wire != "float32",
        absl::StrCat("--wire ", o.wire, " with --clock virtual: its gradients are float32; omit it")},
       {o.check_replicas,
        "--check_replicas with --clock virtual: simulated workers share one set of weights; omit it"},
       {o.ps_schedule == "serial",
        "--ps_schedule serial with --clock virtual: a gradient is always sent whole; omit it"},
       {o.server_wire != "grpc", "--server_wire with --clock virtual: nothing is sent; omit it"},
       {!o.tls.empty(), "--tls with --clock virtual: nothing is sent; omit it"},
       {!o.memory.empty() && o.memory != "none",
        "--memory with --clock virtual, whose workers are of one process; omit it"},
       {o.sync_batch_norm,
        "--sync_batch_norm with --clock virtual, which computes one worker after the other; omit it"},
       {o.local_aggregation,
        "--local_aggregation with --clock virtual, which simulates one worker on each machine; omit it"},
       {o.reference_workers > 1,
        "--reference_workers with --clock virtual: use --workers instead; each is a batch"}});
}

}  // namespace

int64_t WorkerBatch(const TrainingOptions& options) { return int64_t{options.batch} * options.micro_batches; }

bool Checkpoints(const TrainingOptions& options) {
  return !options.checkpoint_dir.empty() || options.checkpoint_every > 0;
}

bool ServerReturns(const TrainingOptions& options, int servers) {
  if (servers > 1 && absl::StartsWith(options.strategy, "ps-backup")) return false;
  return options.max_restarts > 0 && servers > 0 && ReplicaRanks(options) == 1 && !options.align_steps &&
         !options.local_aggregation;
}

absl::Status CheckRecovery(const TrainingOptions& o, int servers) {
  const bool continues = o.on_worker_loss == "continue";
  if (o.clock == "virtual") {
    const auto simulated = [](const char* flag) {
      return absl::StrCat(flag, " with --clock virtual: simulated processes do not fail; omit it");
    };
    return FirstOf({{o.max_restarts > 0, simulated("--max_restarts")},
                    {o.checkpoint_every > 0, simulated("--checkpoint_every")},
                    {!o.checkpoint_dir.empty(), simulated("--checkpoint_dir")},
                    {!o.resume.empty(), simulated("--resume")},
                    {continues, simulated("--on_worker_loss continue")}});
  }
  const bool backup = absl::StartsWith(o.strategy, "ps-backup");
  const auto with = [](const char* what) {
    return absl::StrCat("--on_worker_loss continue cannot be combined with ", what,
                        ", which needs every worker; omit one of them");
  };
  return FirstOf({{!o.workload.empty() && (Checkpoints(o) || !o.resume.empty()),
                   absl::StrCat("--workload ", o.workload,
                                " trains nothing, so there is nothing to save: omit the checkpoints")},
                  {continues && o.align_steps, with("--align_steps")},
                  {continues && o.clip_norm > 0, with("--clip_norm")},
                  {continues && o.local_aggregation, with("--local_aggregation")},
                  {continues && backup && servers > 1, with("several servers of ps-backup")},
                  {continues && backup && Checkpoints(o), with("checkpointing of ps-backup")}});
}

const char* ServerFlagGiven(const TrainingOptions& options) {
  TrainingOptions asked = options;
  if (asked.on_worker_loss == "stop") asked.on_worker_loss.clear();  // other strategies always stop
  const TrainingOptions standard;
  const char* given = nullptr;
  ForEachServerFlag([&](const char* flag, auto member) {
    if (given == nullptr && asked.*member != standard.*member) given = flag;
  });
  return given;
}

void LeaveServersOut(TrainingOptions& options) {
  const TrainingOptions standard;
  ForEachServerFlag([&](const char*, auto member) { options.*member = standard.*member; });
}

void LeavePipelineOut(TrainingOptions& options) {
  const TrainingOptions standard;
  options.pp = standard.pp;
  options.tp = standard.tp;
  options.sequence_parallel = standard.sequence_parallel;
  options.cp = standard.cp;
  options.context_parallel = standard.context_parallel;
  options.program = standard.program;
  options.cuts = standard.cuts;
  options.rank_order = standard.rank_order;
  options.copy_streams = standard.copy_streams;
}

int ServersOf(const TrainingOptions& options, int workers) {
  if (options.servers == 0 && options.server_placement == "colocated") return workers;
  return std::max(1, options.servers) * ReplicaRanks(options);
}

absl::Status ApplyWorkload(TrainingOptions& options) {
  const TrainingOptions standard;
  if (options.workload.empty()) {
    return FirstOf({{options.compute_speedup != standard.compute_speedup,
                     "--compute_speedup applies to a recorded workload; add --workload, or omit it"}});
  }
  PSRING_ASSIGN_OR_RETURN(const Workload workload, LoadWorkload(options.workload));
  const auto fixed = [&](const char* flag) {
    return Tr("$0 is determined by --workload $1; omit one of them", flag, options.workload);
  };
  const auto computes_nothing = [&](const char* flag) {
    return Tr("$0 with --workload $1, which computes nothing; omit one of them", flag, options.workload);
  };
  PSRING_RETURN_IF_ERROR(
      FirstOf({{options.batch != standard.batch && options.batch != workload.batch, fixed("--batch")},
               {options.eval_every != standard.eval_every, fixed("--eval_every")},
               {options.reference_workers != standard.reference_workers, fixed("--reference_workers")},
               {options.precision != standard.precision, fixed("--precision")},
               {options.data_dir != standard.data_dir, fixed("--data_dir")},
               {options.data != standard.data, fixed("--data")},
               {options.layers != standard.layers, fixed("--layers")},
               {options.width != standard.width, fixed("--width")},
               {options.heads != standard.heads, fixed("--heads")},
               {options.context != standard.context, fixed("--context")},
               {options.dropout != standard.dropout, computes_nothing("--dropout")},
               {options.recompute, computes_nothing("--recompute")},
               {options.model != standard.model, fixed("--model")}}));
  options.batch = workload.batch;
  options.evaluate = false;
  if ((options.optimizer.empty() || options.optimizer == "momentum") && options.momentum < 0) {
    options.momentum = 0;
  }
  return absl::OkStatus();
}

absl::Status ValidateTrainingOptions(const TrainingOptions& o) {
  PSRING_RETURN_IF_ERROR(CheckFlagValues(o));

  std::vector<std::string> budgets;
  if (o.steps != 0) budgets.push_back("--steps");
  if (o.samples != 0) budgets.push_back("--samples");
  if (o.epochs != 0) budgets.push_back("--epochs");
  if (budgets.size() > 1) {
    const std::string last = budgets.back();
    budgets.pop_back();
    return InvalidArgument(Tr("$0 and $1 each set the length of training; give one of them",
                              absl::StrJoin(budgets, ", "), last));
  }
  PSRING_RETURN_IF_ERROR(FirstOf(
      {{o.reference_workers > 1 && o.strategy != "single",
        absl::StrCat("--reference_workers is for --strategy single; omit it for ", o.strategy)},
       {!o.optimizer.empty() && o.optimizer != "momentum" && o.momentum > 0,
        absl::StrCat("--momentum ", o.momentum, " has no effect with --optimizer ", o.optimizer,
                     "; omit it or choose momentum")},
       {o.warmup_epochs > 0 && !o.linear_scaling && o.schedule != "cosine",
        "--warmup_epochs rises from --lr to the rate that --linear_scaling gives; give both, or neither (or "
        "--schedule cosine, which rises from 0)"},
       {o.servers > 0 && o.server_placement == "colocated",
        "--server_placement colocated has one server for each worker; omit --servers"},
       {o.server_wire == "stream" && o.transport == "shm",
        "--server_wire stream with --transport shm, where shared memory carries all payload; omit one of "
        "them"},
       {!o.tls.empty() && !o.backend.empty() && o.backend != "native",
        absl::StrCat("--tls with --backend ", o.backend,
                     ", which opens its own connections; omit --tls or choose native")},
       {o.score == "validation" && o.validation == 0,
        "--debug.score validation needs --validation N, the number of samples to hold out"}}));
  if (o.cuda_graph) PSRING_RETURN_IF_ERROR(CheckCudaGraph(o));
  PSRING_RETURN_IF_ERROR(CheckLocalAggregation(o));
  PSRING_RETURN_IF_ERROR(CheckRecovery(o, o.servers));
  PSRING_RETURN_IF_ERROR(FirstOf({{o.ranks_per_process > 1 && o.clock == "virtual",
                                   "--ranks_per_process with --clock virtual, which is one process for all "
                                   "workers: omit one of them"}}));
  PSRING_RETURN_IF_ERROR(CheckClock(o));
  return FirstOf({{!o.evaluate && o.eval_every > 0,
                   "--eval_every and --no_eval contradict each other; give one of them"}});
}

}  // namespace psring
