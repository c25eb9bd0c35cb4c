#include "experiments/bench/runner.h"

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/own_program.h"
#include "common/device/task_limit.h"
#include "common/net/address.h"
#include "common/net/tls.h"
#include "common/rendezvous/rendezvous.h"
#include "experiments/compare/runner.h"
#include "experiments/host/machine.h"
#include "experiments/processes/launcher.h"
#include "experiments/processes/mpirun.h"

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
    if (launch.limits) flags.push_back("--limits");
    flags.push_back(absl::StrCat("--servers=", plan.combinations[launch.combinations[0]].servers));
    return flags;
  }
  Append(flags, {absl::StrCat("--datatype=", absl::StrJoin(request.types, ",")),
                 absl::StrCat("--op=", absl::StrJoin(request.ops, ",")),
                 // MakeBenchPlan has checked the root of broadcasts; other collectives ignore it.
                 absl::StrCat("--root=", request.root < launch.workers ? request.root : 0)});
  if (!request.segment.empty()) flags.push_back(absl::StrCat("--debug.segment=", request.segment));
  if (!request.sockets.empty()) flags.push_back(absl::StrCat("--debug.sockets=", request.sockets));
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

Words StoreEnvironment(const BenchHost& host) {
  return {absl::StrCat("MASTER_ADDR=", host.store_host), absl::StrCat("MASTER_PORT=", host.store_port),
          "PSRING_STORE_HOSTED=1", SecretEnvironment(host.secret)};
}

std::string LogPath(const std::string& folder, const std::string& name) {
  return folder.empty() ? "" : absl::StrCat(folder, "/log-", name, ".txt");
}

// The variables that torchrun sets.
Words RankEnvironment(const NodeLayout& layout, int rank) {
  const int node = layout.NodeOfProcess(rank);
  return {absl::StrCat("RANK=", rank), absl::StrCat("LOCAL_RANK=", rank - layout.FirstOf(node)),
          absl::StrCat("WORLD_SIZE=", layout.processes),
          absl::StrCat("LOCAL_WORLD_SIZE=", layout.ProcessesOn(node))};
}

ChildSpec Server(const BenchRequest& request, const BenchLaunch& launch, const BenchBinaries& binaries,
                 const BenchHost& host, int server, int servers, const std::string& folder) {
  ChildSpec child;
  child.name = servers == 1 ? "the server" : absl::StrCat("server ", server);
  child.command = {binaries.ps_server,
                   absl::StrCat("--rendezvous=tcp://", AddressText(host.store_host, host.store_port)),
                   absl::StrCat("--workers=", launch.workers),
                   absl::StrCat("--server=", server),
                   absl::StrCat("--servers=", servers),
                   absl::StrCat("--bind=", host.address),
                   "--port=0",
                   absl::StrCat("--timeout=", request.timeout_s)};
  if (!request.tls.empty()) child.command.push_back(absl::StrCat("--tls=", request.tls));
  if (launch.limits && server == 0) child.command.push_back("--limits");
  child.environment = StoreEnvironment(host);
  child.log_path = LogPath(folder, absl::StrCat("server", server));
  child.serves = true;
  return child;
}

// The launch's store, and this machine's place.
struct Store {
  std::unique_ptr<RendezvousServer> server;
  BenchHost host;
};

absl::StatusOr<Store> StartStore(const BenchSite& site) {
  Store store;
  if (site.nodes != nullptr) {
    store.host.address = store.host.store_host = site.nodes->address(0);
    store.host.secret = site.nodes->options().secret;
  } else {
    PSRING_ASSIGN_OR_RETURN(store.host.secret, WithTls(JobSecret::Random(), site.request.tls));
  }
  PSRING_ASSIGN_OR_RETURN(store.server, RendezvousServer::Start(store.host.store_host, 0, store.host.secret));
  store.host.store_port = store.server->port();
  return store;
}

// Runs this machine's part and waits for the others'.
absl::Status RunOnAll(const BenchSite& site, size_t index, int store_port, const std::string& folder,
                      LaunchSpec& spec, const Interrupt& interrupt, Display& display) {
  if (site.nodes == nullptr) return RunChildren(spec, interrupt);
  PSRING_RETURN_IF_ERROR(site.nodes->PublishOrder({.what = spec.what,
                                                   .deadline_s = absl::ToDoubleSeconds(spec.deadline),
                                                   .bench_launch = static_cast<int>(index),
                                                   .store_port = store_port},
                                                  spec));
  const MonotonicTime deadline = MonotonicNow() + spec.deadline;
  const absl::Status own = RunChildren(spec, interrupt);
  return site.nodes->Gather(own, folder, deadline, /*may_restart=*/false, interrupt, display);
}

}  // namespace

absl::StatusOr<std::vector<ChildSpec>> BenchChildren(const BenchRequest& request, const BenchPlan& plan,
                                                     const BenchLaunch& launch, const BenchBinaries& binaries,
                                                     const BenchHost& host, const std::string& folder) {
  const bool push_pull = launch.kind == BenchLaunchKind::kPushPull;
  Words command = {push_pull ? binaries.ps_worker : binaries.ring_worker};
  Append(command, WorkerFlags(request, plan, launch));
  if (plan.layout.nodes > 1 && !push_pull) command.push_back(absl::StrCat("--bind=", host.address));
  std::vector<ChildSpec> children;
  if (launch.kind == BenchLaunchKind::kMpirun) {
    // Ranks come from mpirun's environment.
    PSRING_ASSIGN_OR_RETURN(const MpirunCommand mpirun,
                            FindMpirun({.ranks = launch.workers, .transport = launch.mpi_transport}));
    ChildSpec& child = children.emplace_back();
    child.name = "mpirun";
    child.command = mpirun.prefix;
    Append(child.command, command);
    child.environment = mpirun.environment;
    child.keeps = mpirun.folder;
    Append(child.environment, StoreEnvironment(host));
    child.log_path = LogPath(folder, "mpirun");
    return children;
  }
  const NodeLayout layout = plan.LayoutOf(launch.workers);
  for (int rank = 0; rank < launch.workers; ++rank) {
    if (layout.NodeOfProcess(rank) != host.node) continue;
    ChildSpec& child = children.emplace_back();
    child.name = absl::StrCat("rank ", rank);
    child.command = command;
    child.environment = RankEnvironment(layout, rank);
    Append(child.environment, StoreEnvironment(host));
    child.log_path = LogPath(folder, absl::StrCat("rank", rank));
  }
  const int servers = push_pull ? plan.combinations[launch.combinations[0]].servers : 0;
  for (int server = 0; server < servers; ++server) {
    // One after another on the machines with workers.
    if (server % layout.nodes_used() != host.node) continue;
    children.push_back(Server(request, launch, binaries, host, server, servers, folder));
  }
  return children;
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
      if (std::find(flags.begin(), flags.end(), flag) == flags.end()) flags.push_back(flag);
    }
  }
  return flags;
}

absl::StatusOr<BenchBinaries> FindBenchBinaries() {
  BenchBinaries binaries;
  PSRING_ASSIGN_OR_RETURN(binaries.ring_worker, FindProgram("ring_worker"));
  PSRING_ASSIGN_OR_RETURN(binaries.ps_worker, FindProgram("ps_worker"));
  PSRING_ASSIGN_OR_RETURN(binaries.ps_server, FindProgram("ps_server"));
  return binaries;
}

absl::StatusOr<BenchCatalog> AskRingWorker(const BenchBinaries& binaries, const Interrupt& interrupt) {
  PSRING_ASSIGN_OR_RETURN(const std::string text,
                          RunForOutput({binaries.ring_worker, "--describe"}, absl::Seconds(30), interrupt));
  return BenchCatalogFromJson(text);
}

std::string OneLineOf(const std::string& report) {
  const std::vector<std::string> lines = absl::StrSplit(report, '\n');
  const std::string first = lines.front().substr(0, lines.front().find("; its last lines:"));
  if (absl::StrContains(first, " was killed by ")) return first;
  const std::string launch = first.substr(0, first.find(": "));
  // In order of preference: mpirun's report of a signal; an MPI rank that ended the job; a program's message,
  // without the program's name.
  for (const auto& [mark, cut] :
       {std::pair(" exited on signal ", false), std::pair("; the job ends", false),
        std::pair("ring_worker: ", true), std::pair("ps_worker: ", true), std::pair("ps_server: ", true)}) {
    for (const std::string& line : lines) {
      const size_t at = line.find(mark);
      if (!absl::StartsWith(line, "  | ") || at == std::string::npos) continue;
      const size_t from = cut ? at + std::string(mark).size() : 4;
      return absl::StrCat(launch, ": ",
                          line.substr(from, cut ? std::string::npos : line.find("; the job ends") - from));
    }
  }
  return lines.size() > 1
             ? absl::StrCat(first, ": ", lines.back().substr(lines.back().find_first_not_of(" |")))
             : first;
}

absl::Status LaunchBench(const BenchSite& site, size_t index, const std::string& folder,
                         const Interrupt& interrupt, const std::string& label, Display& display,
                         BenchResult& result) {
  const BenchLaunch& launch = site.plan.launches[index];
  PSRING_ASSIGN_OR_RETURN(const Store store, StartStore(site));
  LaunchSpec spec{.what = launch.name()};
  PSRING_ASSIGN_OR_RETURN(spec.children,
                          BenchChildren(site.request, site.plan, launch, site.binaries, store.host, folder));
  const bool by_mpirun = launch.kind == BenchLaunchKind::kMpirun;
  const int64_t processes = by_mpirun ? launch.workers : static_cast<int64_t>(spec.children.size());
  PSRING_RETURN_IF_ERROR(AllowTasks(processes * RankTasks(1), absl::StrCat(processes, " processes")));
  spec.deadline = absl::Seconds(2 * site.request.timeout_s + 30 + 10 * site.expected_s);
  display.Redraw(absl::StrCat("# ", label, launch.name(), ": starting"));
  spec.on_line = [&](int, const std::string& line) {
    if (!result.Note(launch, line)) return false;
    display.Redraw(
        absl::StrFormat("# %s%s: %d of %d sizes", label, launch.name(), result.done(), result.of()));
    return true;
  };
  const ForeignCpu foreign;
  const absl::Status status = RunOnAll(site, index, store.host.store_port, folder, spec, interrupt, display);
  result.NoteForeignCpu(launch, foreign.Percent());
  if (status.ok() || status.code() == absl::StatusCode::kCancelled) return status;
  return absl::Status(status.code(), OneLineOf(std::string(status.message())));
}

}  // namespace psring
