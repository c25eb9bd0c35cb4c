#include "common/options/server_arguments.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/base/errors.h"
#include "common/device/device.h"
#include "common/device_factory/make_device.h"

namespace psring {

absl::Status PlaceServers(bool several_machines, bool servers_given, const std::string& otherwise,
                          TrainingOptions& training) {
  if (!training.server_placement.empty()) return absl::OkStatus();
  if (several_machines && (servers_given || training.local_aggregation)) {
    return InvalidArgument(
        servers_given ? "--servers" : "--local_aggregation",
        " on several machines needs --server_placement: dedicated (the last ones run only servers), or "
        "rank0 (worker 0 then uses no link)");
  }
  training.server_placement = several_machines ? "colocated" : otherwise;
  return absl::OkStatus();
}

absl::StatusOr<int> PushersOf(const TrainingOptions& training, int workers, int per_machine) {
  if (!training.local_aggregation) return workers / ReplicaRanks(training);
  if (per_machine == 0) {
    return InvalidArgument(
        "--local_aggregation needs the number of ranks on this machine; set LOCAL_RANK and LOCAL_WORLD_SIZE, "
        "as torchrun, mpirun and srun do");
  }
  if (per_machine == 1) {
    return InvalidArgument(
        "--local_aggregation adds up the gradients of a machine's workers, and a machine has only one; omit "
        "it, or start several on each machine (--nproc_per_node or --ranks_per_process)");
  }
  if (workers % per_machine == 0) return workers / per_machine;
  return InvalidArgument(
      "--local_aggregation needs the same number of workers on every machine, and this one has ", per_machine,
      " of ", workers);
}

int PartOfServer(const TrainingOptions& training, int server, int servers) {
  return server / std::max(1, servers / ReplicaRanks(training));
}

std::vector<std::string> ServerArguments(const TrainingOptions& training, const ServerStart& place) {
  const int of_a_part = std::max(1, place.servers / ReplicaRanks(training));
  std::vector<std::string> arguments = {
      absl::StrCat("--rendezvous=", place.rendezvous),
      absl::StrCat("--workers=", place.pushers),
      absl::StrCat("--server=", place.server % of_a_part),
      absl::StrCat("--servers=", of_a_part),
      absl::StrCat("--bind=", place.bind),
      "--port=0",
      absl::StrCat("--device=", DeviceOfRank(training.device, place.local_rank, place.gpus)),
      absl::StrCat("--timeout=", training.timeout_s),
      absl::StrCat("--worker_timeout=", training.worker_timeout_s),
      absl::StrCat("--debug.reject_nonfinite=", training.reject_nonfinite),
      absl::StrCat("--debug.staging_mb=", training.staging_mb)};
  if (!place.record.empty()) arguments.push_back(absl::StrCat("--record=", place.record));
  if (!training.tls.empty()) arguments.push_back(absl::StrCat("--tls=", training.tls));
  if (ReplicaRanks(training) > 1) {
    // Without a worker its replica's others cannot continue.
    arguments.insert(arguments.end(),
                     {absl::StrCat("--position=", PartOfServer(training, place.server, place.servers)),
                      "--on_worker_loss=stop"});
    if (!place.ranks.empty()) arguments.push_back(absl::StrCat("--ranks=", absl::StrJoin(place.ranks, ",")));
  } else if (!training.on_worker_loss.empty()) {
    arguments.push_back(absl::StrCat("--on_worker_loss=", training.on_worker_loss));
  }
  return arguments;
}

absl::StatusOr<ServerRole> ServerRoleOf(const TrainingOptions& training, int process, int processes) {
  const int each = training.ranks_per_process;
  const bool dedicated = training.server_placement == "dedicated";
  ServerRole role{.workers = processes * each};
  if (dedicated) {
    role.servers = ServersOf(training, 0);
    const int training_processes = processes - role.servers;
    role.workers = training_processes * each;
    if (training_processes < 1) {
      return InvalidArgument(
          "--server_placement dedicated needs ", role.servers, " of the ", processes,
          each == 1 ? " ranks" : " processes",
          " for servers, and none is left to train; start more, or choose another placement");
    }
    if (process >= training_processes) role.becomes = process - training_processes;
    return role;
  }
  role.servers = ServersOf(training, role.workers);
  if (training.server_placement == "colocated") {
    for (int rank = process * each; rank < (process + 1) * each; ++rank) role.starts.push_back(rank);
  } else if (process == 0) {
    for (int server = 0; server < role.servers; ++server) role.starts.push_back(server);
  }
  return role;
}

}  // namespace psring
