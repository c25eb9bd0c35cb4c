#include "experiments/bench/runner.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/net/tls.h"
#include "common/rendezvous/rendezvous.h"
#include "experiments/compare/runner.h"
#include "experiments/host/machine.h"
#include "experiments/processes/launcher.h"
#include "experiments/processes/mpirun.h"

namespace psring {
namespace {

using Words = std::vector<std::string>;

constexpr char kHost[] = "127.0.0.1";

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

Words StoreEnvironment(int port, const JobSecret& secret) {
  return {absl::StrCat("MASTER_ADDR=", kHost), absl::StrCat("MASTER_PORT=", port), "PSRING_STORE_HOSTED=1",
          SecretEnvironment(secret)};
}

absl::StatusOr<std::vector<ChildSpec>> Children(const BenchRequest& request, const BenchPlan& plan,
                                                const BenchLaunch& launch, const BenchBinaries& binaries,
                                                const std::string& folder, int port,
                                                const JobSecret& secret) {
  const bool push_pull = launch.kind == BenchLaunchKind::kPushPull;
  Words command = {push_pull ? binaries.ps_worker : binaries.ring_worker};
  Append(command, WorkerFlags(request, plan, launch));
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
    Append(child.environment, StoreEnvironment(port, secret));
    child.log_path = absl::StrCat(folder, "/log-mpirun.txt");
    return children;
  }
  for (int rank = 0; rank < launch.workers; ++rank) {
    ChildSpec& child = children.emplace_back();
    child.name = absl::StrCat("rank ", rank);
    child.command = command;
    child.environment = {absl::StrCat("RANK=", rank), absl::StrCat("LOCAL_RANK=", rank),
                         absl::StrCat("WORLD_SIZE=", launch.workers)};
    Append(child.environment, StoreEnvironment(port, secret));
    child.log_path = absl::StrFormat("%s/log-rank%d.txt", folder, rank);
  }
  const int servers = push_pull ? plan.combinations[launch.combinations[0]].servers : 0;
  for (int server = 0; server < servers; ++server) {
    ChildSpec& child = children.emplace_back();
    child.name = servers == 1 ? "the server" : absl::StrCat("server ", server);
    child.command = {binaries.ps_server,
                     absl::StrFormat("--rendezvous=tcp://%s:%d", kHost, port),
                     absl::StrCat("--workers=", launch.workers),
                     absl::StrCat("--server=", server),
                     absl::StrCat("--servers=", servers),
                     absl::StrCat("--bind=", kHost),
                     "--port=0",
                     absl::StrCat("--timeout=", request.timeout_s)};
    if (!request.tls.empty()) child.command.push_back(absl::StrCat("--tls=", request.tls));
    if (launch.limits && server == 0) child.command.push_back("--limits");
    child.environment = StoreEnvironment(port, secret);
    child.log_path = absl::StrCat(folder, "/log-server", server, ".txt");
    child.serves = true;
  }
  return children;
}

}  // namespace

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

absl::Status LaunchBench(const BenchRequest& request, const BenchPlan& plan, const BenchLaunch& launch,
                         const BenchBinaries& binaries, const std::string& folder, double expected_s,
                         const Interrupt& interrupt, const std::string& label, Display& display,
                         BenchResult& result) {
  PSRING_ASSIGN_OR_RETURN(const JobSecret secret, WithTls(JobSecret::Random(), request.tls));
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<RendezvousServer> store,
                          RendezvousServer::Start(kHost, 0, secret));
  LaunchSpec spec{.what = launch.name()};
  PSRING_ASSIGN_OR_RETURN(spec.children,
                          Children(request, plan, launch, binaries, folder, store->port(), secret));
  spec.deadline = absl::Seconds(2 * request.timeout_s + 30 + 10 * expected_s);
  display.Redraw(absl::StrCat("# ", label, launch.name(), ": starting"));
  spec.on_line = [&](int, const std::string& line) {
    if (!result.Note(launch, line)) return false;
    display.Redraw(
        absl::StrFormat("# %s%s: %d of %d sizes", label, launch.name(), result.done(), result.of()));
    return true;
  };
  const ForeignCpu foreign;
  const absl::Status status = RunChildren(spec, interrupt);
  result.NoteForeignCpu(launch, foreign.Percent());
  if (status.ok() || status.code() == absl::StatusCode::kCancelled) return status;
  return absl::Status(status.code(), OneLineOf(std::string(status.message())));
}

}  // namespace psring
