// The processes of one training or benchmark: which node runs them and how each is started. All nodes derive
// both from the same few values, so no command line, environment variable or path is sent between machines.
// Pure.
#pragma once

#include <string>
#include <vector>

#include "common/net/job_secret.h"
#include "common/options/training_options.h"
#include "experiments/launch/launcher.h"

namespace psring {

// Paths of the programs that a run starts. Empty: it does not start this one.
struct Binaries {
  std::string trainer = {}, ps_server = {}, ring_worker = {}, ps_worker = {};
  std::vector<std::string> all() const;  // that it starts
};

// The number of nodes dedicated to parameter servers, which are the last ones.
int ServerNodes(const TrainingOptions& training);

// Assigns a job's processes and servers to nodes. A node's processes have consecutive numbers.
struct NodeLayout {
  int nodes = 1;
  int server_nodes = 0;  // the last ones, which run only dedicated servers
  int per_node = 1;      // most processes of one node
  bool spread = false;   // equal numbers on all nodes; else node by node, each with `per_node`
  int processes = 1;     // of the job, at most capacity()

  int capacity() const { return (nodes - server_nodes) * per_node; }
  int NodeOfProcess(int process) const;
  int FirstOf(int node) const;  // its first process
  int ProcessesOn(int node) const;
  int nodes_used() const { return NodeOfProcess(processes - 1) + 1; }  // by processes
  // `ranks_per_process`: a colocated server runs beside the process of its worker.
  int NodeOfServer(const std::string& placement, int server, int ranks_per_process) const;

 private:
  // Every node has `each` processes, the first `more` of them one more.
  struct Shares {
    int each, more;
  };
  Shares SharesOf() const;
};

// A launch's rendezvous store, which psring hosts. Only the launch's own processes have the secret.
struct StorePlace {
  std::string host = "127.0.0.1";
  int port = 0;
  JobSecret secret = {};
};

struct TrainingJob {
  TrainingOptions training;
  int workers = 1;                // ranks that train
  int servers = 0;                // parameter servers, of all parts of the model
  NodeLayout layout;              // of its processes
  bool outlives_workers = false;  // it continues without a killed worker
  StorePlace store;

  int processes() const { return workers / training.ranks_per_process; }
  // The clients of a server: with --local_aggregation one per machine, with --pp or --tp one per replica.
  int pushers() const {
    return training.local_aggregation ? layout.nodes_used() : workers / ReplicaRanks(training);
  }
};

// The part of a job's setup that differs between machines.
struct JobHost {
  Binaries binaries;
  std::string records;  // folder
  std::string address;  // where its processes listen; empty: the trainer's default
  int gpus = 0;
  std::string logs = {};  // folder; empty: none
  int attempt = 0;        // above 0: the job was restarted; logs of earlier attempts stay

  // The log of a process; empty: none.
  std::string LogPath(const std::string& who) const;
};

// MASTER_ADDR, MASTER_PORT, PSRING_STORE_HOSTED and PSRING_SECRET.
std::vector<std::string> StoreEnvironment(const StorePlace& store);
// The command line of a trainer, the same for all; their ranks are in the environment.
std::vector<std::string> TrainerCommand(const TrainingOptions& training, const JobHost& host);
// The process whose number, as counted by torchrun, is `process`.
ChildSpec RankProcess(const TrainingJob& job, const JobHost& host, const std::vector<std::string>& command,
                      int process);
// The same, a trainer.
ChildSpec TrainerProcess(const TrainingJob& job, const JobHost& host, int process);
ChildSpec ServerProcess(const TrainingJob& job, const JobHost& host, int server);

// One node's part of a job: the numbers of its trainers and servers.
struct NodePart {
  std::vector<int> processes, servers;
};
NodePart PartOf(const TrainingJob& job, int node);
// Before a restart: keeps the steps that the ranks have recorded in `folder`, which the next attempt
// replaces.
void KeepEarlierSteps(const std::string& folder);
// The names of all files that these processes may write to their record folder.
std::vector<std::string> RecordNames(const TrainingJob& job, const NodePart& part);

}  // namespace psring
