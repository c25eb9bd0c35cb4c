#include "experiments/verbs/bench/runner.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/device/task_limit.h"
#include "common/text/translate.h"
#include "experiments/launch/launcher.h"
#include "experiments/launch/mpirun.h"
#include "experiments/machine/machine.h"

namespace psring {
namespace {

using Words = std::vector<std::string>;

void Append(Words& to, const Words& words) { to.insert(to.end(), words.begin(), words.end()); }

Words WorkerFlags(const BenchRequest& request, const BenchPlan& plan, const BenchLaunch& launch) {
  Words flags = {"--rendezvous=env://",
                 "--json",
                 absl::StrCat("--bytes=", absl::StrJoin(plan.sizes, ",")),
                 absl::StrCat("--iters=", plan.iterations),
                 absl::StrCat("--agg_iters=", request.aggregated),
                 absl::StrCat("--warmup_iters=", request.warmup),
                 absl::StrCat("--check=", request.checks),
                 absl::StrCat("--average=", request.average),
                 absl::StrCat("--timeout=", request.timeout_s)};
  if (!request.tls.empty()) flags.push_back(absl::StrCat("--tls=", request.tls));
  if (launch.kind == BenchLaunchKind::kPushPull) {
    const bool shm = plan.combinations[launch.combinations[0]].transport == "shm";
    flags.push_back(shm ? "--transport=shm" : "--transport=tcp");
    flags.push_back(absl::StrCat("--server_wire=", plan.combinations[launch.combinations[0]].backend));
    if (launch.limits) flags.push_back("--limits");
    flags.push_back(absl::StrCat("--servers=", plan.combinations[launch.combinations[0]].servers));
    return flags;
  }
  Append(flags, {absl::StrCat("--datatype=", absl::StrJoin(request.types, ",")),
                 absl::StrCat("--op=", absl::StrJoin(request.ops, ",")),
                 // MakeBenchPlan has checked the root of broadcasts; other collectives ignore it.
                 absl::StrCat("--root=", request.root < launch.workers ? request.root : 0)});
  if (!request.segment.empty()) flags.push_back(absl::StrCat("--debug.segment=", request.segment));
  if (!request.ranks_per_node.empty()) {
    flags.push_back(absl::StrCat("--ranks_per_node=", request.ranks_per_node));
  }
  if (launch.limits) flags.push_back("--limits");
  if (request.device != "cpu") flags.push_back(absl::StrCat("--device=", request.device));
  if (request.oversubscribe) flags.push_back("--oversubscribe");
  if (!request.pin) flags.push_back("--no_pin");
  for (const size_t i : launch.combinations) {
    const BenchCombination& c = plan.combinations[i];
    flags.push_back(absl::StrCat("--combination=", c.collective, "/", c.backend, "/", c.algorithm, "/",
                                 c.transport, "/", c.buffers));
  }
  return flags;
}

}  // namespace

absl::StatusOr<std::vector<ChildSpec>> BenchChildren(const BenchRequest& request, const BenchPlan& plan,
                                                     const BenchLaunch& launch, const BenchHost& host) {
  const bool push_pull = launch.kind == BenchLaunchKind::kPushPull;
  const Binaries& binaries = host.host.binaries;
  Words command = {push_pull ? binaries.ps_worker : binaries.ring_worker};
  Append(command, WorkerFlags(request, plan, launch));
  if (plan.layout.nodes > 1 && !push_pull) command.push_back(absl::StrCat("--bind=", host.host.address));
  std::vector<ChildSpec> children;
  if (launch.kind == BenchLaunchKind::kMpirun) {
    PSRING_ASSIGN_OR_RETURN(children.emplace_back(),
                            MpirunProcess({.ranks = launch.workers, .transport = launch.mpi_transport},
                                          command, StoreEnvironment(host.store)));
    children.back().log_path = host.host.LogPath("mpirun");
    return children;
  }
  TrainingJob job{.workers = launch.workers,
                  .servers = push_pull ? plan.combinations[launch.combinations[0]].servers : 0,
                  .layout = plan.LayoutOf(launch.workers),
                  .store = host.store};
  job.training.device = "cpu";  // of servers
  job.training.timeout_s = request.timeout_s;
  job.training.tls = request.tls;
  for (const int rank : PartOf(job, host.node).processes) {
    children.push_back(RankProcess(job, host.host, command, rank));
  }
  for (int server = 0; server < job.servers; ++server) {
    // One after another on the machines with workers.
    if (server % job.layout.nodes_used() != host.node) continue;
    ChildSpec& child = children.emplace_back(ServerProcess(job, host.host, server));
    if (launch.limits && server == 0) child.command.push_back("--limits");
  }
  return children;
}

absl::StatusOr<NodeTask> BenchTaskOf(const NodeOrder& order, const BenchRequest& request,
                                     const BenchPlan& plan, BenchHost host) {
  if (order.bench_launch < 0) {
    return absl::InvalidArgumentError("the order is for a training, and this node was started with bench");
  }
  const auto index = static_cast<size_t>(order.bench_launch);
  if (index >= plan.launches.size()) {
    return InvalidArgument("launch ", index, " is not in this node's plan of ", plan.launches.size());
  }
  host.store.port = order.store_port;
  NodeTask task;
  PSRING_ASSIGN_OR_RETURN(task.children, BenchChildren(request, plan, plan.launches[index], host));
  return task;
}

std::vector<std::string> SharedBenchFlags(const BenchRequest& request, const BenchPlan& plan) {
  BenchRequest shared = request;
  shared.tls.clear();  // paths
  Words flags = {absl::StrCat("--workers=", absl::StrJoin(request.workers, ",")),
                 absl::StrCat("--rounds=", plan.rounds),
                 absl::StrCat("--nproc_per_node=", plan.layout.per_node),
                 absl::StrCat("--placement=", plan.layout.spread ? "spread" : "compact")};
  for (const BenchLaunch& launch : plan.launches) {
    for (const std::string& flag : WorkerFlags(shared, plan, launch)) {
      if (std::ranges::find(flags, flag) == flags.end()) flags.push_back(flag);
    }
  }
  return flags;
}

std::string OneLineOf(const std::string& report) {
  const std::vector<std::string> lines = absl::StrSplit(report, '\n');
  std::string first = lines.front().substr(0, lines.front().find("; its last lines:"));
  if (absl::StrContains(first, " was killed by ")) return first;
  const std::string launch = first.substr(0, first.find(": "));
  // In order of preference: mpirun's report of a signal; an MPI rank that ended the job; a program's message,
  // without the program's name.
  const std::pair<std::string, bool> marks[] = {{" exited on signal ", false},
                                                {"; the job ends", false},
                                                {Tr("$0: $1", "ring_worker", ""), true},
                                                {Tr("$0: $1", "ps_worker", ""), true},
                                                {Tr("$0: $1", "ps_server", ""), true}};
  for (const auto& [mark, cut] : marks) {
    for (const std::string& line : lines) {
      const size_t at = line.find(mark);
      if (!absl::StartsWith(line, "  | ") || at == std::string::npos) continue;
      const size_t from = cut ? at + mark.size() : 4;
      return absl::StrCat(launch, ": ",
                          line.substr(from, cut ? std::string::npos : line.find("; the job ends") - from));
    }
  }
  return lines.size() > 1
             ? absl::StrCat(first, ": ", lines.back().substr(lines.back().find_first_not_of(" |")))
             : first;
}

absl::Status LaunchBench(const BenchSite& bench, size_t index, const std::string& folder,
                         const Interrupt& interrupt, const std::string& label, Display& display,
                         BenchResult& result) {
  const BenchLaunch& launch = bench.plan.launches[index];
  PSRING_ASSIGN_OR_RETURN(const JobStore store, StartStore(bench.site, bench.request.tls));
  const BenchHost host{.host = {.binaries = bench.binaries, .address = bench.site.Address(0), .logs = folder},
                       .store = store.address};
  LaunchSpec spec{.what = launch.name()};
  PSRING_ASSIGN_OR_RETURN(spec.children, BenchChildren(bench.request, bench.plan, launch, host));
  const bool by_mpirun = launch.kind == BenchLaunchKind::kMpirun;
  const int64_t processes = by_mpirun ? launch.workers : static_cast<int64_t>(spec.children.size());
  PSRING_RETURN_IF_ERROR(AllowTasks(processes * RankTasks(1), absl::StrCat(processes, " processes")));
  spec.deadline = DeadlineOf(bench.expected_s, bench.request.timeout_s);
  display.Redraw(absl::StrCat("# ", label, launch.name(), ": starting"));
  spec.on_line = [&](int, const std::string& line) {
    if (!result.Note(launch, line)) return false;
    display.Redraw(
        absl::StrFormat("# %s%s: %d of %d sizes", label, launch.name(), result.done(), result.of()));
    return true;
  };
  const NodeLaunch on_nodes{
      .order = {.bench_launch = static_cast<int>(index), .store_port = store.address.port}};
  const ForeignCpu foreign;
  absl::Status status = RunLaunch(bench.site, on_nodes, spec, folder, interrupt, display);
  result.NoteForeignCpu(launch, foreign.Percent());
  if (status.ok() || status.code() == absl::StatusCode::kCancelled) return status;
  return absl::Status(status.code(), OneLineOf(std::string(status.message())));
}

}  // namespace psring
