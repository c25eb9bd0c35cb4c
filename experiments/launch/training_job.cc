#include "experiments/launch/training_job.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/measure/record_names.h"
#include "common/net/address.h"
#include "common/options/server_arguments.h"
#include "trainer/programs/mesh.h"

namespace psring {
namespace {

// The variables that torchrun sets. It counts processes, not ranks.
std::vector<std::string> Environment(const TrainingJob& job, int process) {
  const int node = job.layout.NodeOfProcess(process);
  std::vector<std::string> environment = StoreEnvironment(job.store);
  environment.insert(environment.end(), {absl::StrCat("RANK=", process),
                                         absl::StrCat("LOCAL_RANK=", process - job.layout.FirstOf(node)),
                                         absl::StrCat("WORLD_SIZE=", job.processes()),
                                         absl::StrCat("LOCAL_WORLD_SIZE=", job.layout.ProcessesOn(node))});
  return environment;
}

}  // namespace

std::vector<std::string> Binaries::all() const {
  std::vector<std::string> paths;
  for (const std::string& path : {trainer, ring_worker, ps_worker, ps_server}) {
    if (!path.empty()) paths.push_back(path);
  }
  return paths;
}

int ServerNodes(const TrainingOptions& training) {
  return training.server_placement == "dedicated" ? ServersOf(training, 1) : 0;
}

NodeLayout::Shares NodeLayout::SharesOf() const {
  if (!spread) return {per_node, 0};
  const int over = std::max(1, nodes - server_nodes);
  return {processes / over, processes % over};
}

int NodeLayout::NodeOfProcess(int process) const {
  const Shares shares = SharesOf();
  const int on_first = shares.more * (shares.each + 1);
  if (process < on_first) return process / (shares.each + 1);
  return shares.more + (process - on_first) / std::max(1, shares.each);
}

int NodeLayout::FirstOf(int node) const {
  const Shares shares = SharesOf();
  return std::min(processes, node * shares.each + std::min(node, shares.more));
}

int NodeLayout::ProcessesOn(int node) const { return FirstOf(node + 1) - FirstOf(node); }

int NodeLayout::NodeOfServer(const std::string& placement, int server, int ranks_per_process) const {
  if (placement == "dedicated") return nodes - server_nodes + server;
  return placement == "colocated" ? NodeOfProcess(std::min(processes - 1, server / ranks_per_process)) : 0;
}

std::vector<std::string> StoreEnvironment(const StorePlace& store) {
  return {absl::StrCat("MASTER_ADDR=", store.host), absl::StrCat("MASTER_PORT=", store.port),
          "PSRING_STORE_HOSTED=1", SecretEnvironment(store.secret)};
}

std::vector<std::string> TrainerCommand(const TrainingOptions& training, const JobHost& host) {
  std::vector<std::string> command = {host.binaries.trainer, "--rendezvous=env://", "--progress=json",
                                      absl::StrCat("--record=", host.records)};
  if (!host.address.empty()) command.push_back(absl::StrCat("--bind=", host.address));
  for (const std::string& argument : TrainingArguments(training)) command.push_back(argument);
  if (training.replicas > 1 && training.clock == "wall") {
    command.push_back(absl::StrCat("--workers=", training.replicas));
  }
  return command;
}

std::string JobHost::LogPath(const std::string& who) const {
  if (logs.empty()) return "";
  return absl::StrCat(logs, "/log-", who, attempt > 0 ? absl::StrCat("-restart", attempt) : "", ".txt");
}

ChildSpec RankProcess(const TrainingJob& job, const JobHost& host, const std::vector<std::string>& command,
                      int process) {
  const int each = job.training.ranks_per_process, first = process * each, last = first + each - 1;
  const std::string joint = each == 2 ? " and " : " to ";
  return {.name = each == 1 ? absl::StrCat("rank ", first)
                            : absl::StrCat("the process of ranks ", first, joint, last),
          .command = command,
          .environment = Environment(job, process),
          .log_path =
              host.LogPath(each == 1 ? absl::StrCat("rank", first) : absl::StrCat("ranks", first, "-", last)),
          .may_die = job.outlives_workers};
}

ChildSpec TrainerProcess(const TrainingJob& job, const JobHost& host, int process) {
  return RankProcess(job, host, TrainerCommand(job.training, host), process);
}

ChildSpec ServerProcess(const TrainingJob& job, const JobHost& host, int server) {
  ChildSpec child{.name = job.servers == 1 ? "the server" : absl::StrCat("server ", server),
                  .command = {host.binaries.ps_server},
                  .environment = Environment(job, 0),
                  .log_path = host.LogPath(absl::StrCat("server", server)),
                  .serves = true};
  // The plan has checked the mesh.
  const absl::StatusOr<Mesh> mesh =
      Mesh::Create(job.workers, job.training.pp, job.training.rank_order, job.training.tp);
  const int part = PartOfServer(job.training, server, job.servers);
  for (const std::string& argument : ServerArguments(
           job.training, {.server = server,
                         .servers = job.servers,
                         .pushers = job.pushers(),
                         .ranks = ReplicaRanks(job.training) > 1 && mesh.ok() ? mesh->RanksWithPart(part)
                                                                              : std::vector<int>(),
                         .rendezvous = absl::StrCat("tcp://", AddressText(job.store.host, job.store.port)),
                         .bind = host.address,
                         .record = host.records,
                         .local_rank = job.training.server_placement == "colocated" ? server : 0,
                         .gpus = host.gpus})) {
    child.command.push_back(argument);
  }
  return child;
}

NodePart PartOf(const TrainingJob& job, int node) {
  NodePart part;
  const NodeLayout& layout = job.layout;
  for (int process = layout.FirstOf(node); process < layout.FirstOf(node + 1); ++process) {
    part.processes.push_back(process);
  }
  for (int server = 0; server < job.servers; ++server) {
    if (layout.NodeOfServer(job.training.server_placement, server, job.training.ranks_per_process) == node) {
      part.servers.push_back(server);
    }
  }
  return part;
}

void KeepEarlierSteps(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::string name = at->path().filename().string();
    absl::string_view rank = name;
    if (!absl::ConsumePrefix(&rank, kSteps)) continue;
    const std::string earlier = absl::StrCat(folder, "/", kEarlierSteps, rank);
    std::error_code none;
    // An attempt that ended before its first step does not replace those of an earlier one.
    if (fs::file_size(at->path(), none) > 0 || !fs::exists(earlier, none))
      fs::rename(at->path(), earlier, none);
  }
}

std::vector<std::string> RecordNames(const TrainingJob& job, const NodePart& part) {
  std::vector<std::string> names;
  for (const int process : part.processes) {
    const int first = process * job.training.ranks_per_process;
    for (int rank = first; rank < first + job.training.ranks_per_process; ++rank) {
      names.push_back(absl::StrCat(kSteps, rank, ".jsonl"));
      names.push_back(absl::StrCat(kEarlierSteps, rank, ".jsonl"));
      names.push_back(absl::StrCat("trace-rank", rank, ".json"));
      names.push_back(absl::StrCat("result-rank", rank, ".json"));
    }
  }
  for (const int server : part.servers) {
    names.push_back(absl::StrCat("result-server", server, ".json"));
    names.push_back(absl::StrCat("arrivals-server", server, ".bin"));
  }
  return names;
}

}  // namespace psring
