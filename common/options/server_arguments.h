// Which processes of a training run are parameter servers, and the command line of one.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/training_options.h"

namespace psring {

struct ServerStart {
  int server = 0;          // which one
  int servers = 1;         // of how many in the job
  int pushers = 1;         // the number of its clients (PushersOf)
  std::vector<int> ranks;  // with --pp or --tp: of its clients
  std::string rendezvous;  // "tcp://host:port"
  std::string bind;        // its address, as the workers reach it
  std::string record;      // folder; empty: none
  int local_rank = 0;      // the rank of its host whose device it shares
  int gpus = 0;            // of its host
};

// Sets --server_placement if it is not given, so that no worker has an advantage: `colocated` on several
// machines, which have no spare one; on one, `otherwise`. InvalidArgument: several machines, and
// `servers_given` or
// --local_aggregation, with which servers cannot be colocated.
absl::Status PlaceServers(bool several_machines, bool servers_given, const std::string& otherwise,
                          TrainingOptions& training);

// The number of clients of a server: `workers`, or with --pp or --tp the replicas, or with
// --local_aggregation the machines. `per_machine`: workers on each machine; 0: unknown. InvalidArgument:
// --local_aggregation, and machines differ in workers or have one.
absl::StatusOr<int> PushersOf(const TrainingOptions& training, int workers, int per_machine);

// Which part of the model a server of `servers` in the job has (Mesh::RanksWithPart).
int PartOfServer(const TrainingOptions& training, int server, int servers);

// Without the program's name. Checkpoint flags are added by the caller.
std::vector<std::string> ServerArguments(const TrainingOptions& training, const ServerStart& place);

// The role of a process if the strategy needs servers and the launcher starts only ranks. --server_placement:
// with `rank0` the process of rank 0 starts all servers; with `colocated` every process starts one for each
// of its ranks; with `dedicated` the last processes are the servers. Pure.
struct ServerRole {
  int workers = 1;          // the ranks that train: those below this number
  int servers = 1;          // in the job
  int becomes = -1;         // this process is this server and not a worker; -1: a worker
  std::vector<int> starts;  // the servers that this process starts
};
// `process` of `processes`, each of --ranks_per_process ranks. InvalidArgument: no rank would be left to
// train.
absl::StatusOr<ServerRole> ServerRoleOf(const TrainingOptions& training, int process, int processes);

}  // namespace psring
