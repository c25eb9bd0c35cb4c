// Which launcher started this process, and the rank and sizes that it assigned. Pure, except for reading and
// clearing this process's own environment and finding the launcher's process.
//
// The first complete set of these applies:
//   torchrun, psring          RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   srun                      SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE,
//                             SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID
//   Open MPI's mpirun         OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   mpiexec with PMI          PMI_RANK, PMI_SIZE; of Hydra also MPI_LOCALRANKID, MPI_LOCALNRANKS
// Slurm's PMI plugins set PMI_RANK and PMI_SIZE, too, with the numbers of the step. Sets with other numbers
// contradict each other, with two exceptions: torchrun's applies, and so does an MPI's within a step that has
// one process on each node, which are the MPI's daemons or a shell.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/own_process.h"

namespace psring {

// `environment`, with RANK and WORLD_SIZE replaced by flags that are not empty.
GetEnv InPlaceOf(GetEnv environment, std::string rank, std::string world_size);

struct LaunchedAs {
  std::string launcher;  // "torchrun", "mpirun", "mpiexec", "srun"
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // 0 if unknown
  int local_world_size = 0;  // 0 if unknown
  // If known from the launcher: the host of rank 0, a port that all ranks of the job derive independently,
  // and a name that no other job on this host has.
  std::string master_host;
  int master_port = 0;
  std::string job;
};

// Whether a launcher has assigned a rank to this process; also if ReadLauncher returns an error.
bool IsStartedAsARank(const GetEnv& get_env);

// InvalidArgument names the variable that is missing or invalid, or those that contradict each other.
// `scheme` is what needs it: "env://".
absl::StatusOr<LaunchedAs> ReadLauncher(const std::string& scheme, const GetEnv& get_env);

// Unsets the rank and size variables of all launchers, so that child processes do not inherit them.
void ForgetLauncher();

// The first host of Slurm's compact list: "node03" of "node[03-04,7],gpu1". Empty if malformed.
std::string FirstHost(const std::string& nodelist);
// Tasks on node `index` of Slurm's compact list "2(x3),1"; 0 if not listed.
int TasksOnNode(const std::string& tasks_per_node, int index);

// A whole number in [least, most]; InvalidArgument names `name`.
absl::StatusOr<int> NumberOf(const std::string& name, const std::string& text, int least, int most);

}  // namespace psring
