// Starting processes the way MPI wants them started.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/host/build_info.h"

namespace psring {

struct MpirunOptions {
  int ranks = 1;
  std::string transport = "auto";   // auto, shm, tcp: what MPI itself may send over
  std::string family = kMpiFamily;  // of which MPI, as the ranks were built with it; empty: any
};

struct MpirunCommand {
  std::vector<std::string> prefix;       // "/usr/bin/mpirun", "-n", "4", ...: the program follows
  std::vector<std::string> environment;  // "KEY=value"
  // What the job keeps in memory files is in there, and gone with the last copy, also where ranks are killed.
  std::shared_ptr<const void> folder;
};

// For Open MPI and for MPICH's Hydra: this machine's mpirun where it is that of the family, else the one that
// Debian calls mpirun.openmpi or mpiexec.mpich; no binding to cores, more ranks than cores allowed, root
// allowed. NotFound says what to install.
absl::StatusOr<MpirunCommand> FindMpirun(const MpirunOptions& options);

// Which MPI's mpirun that is: "Open MPI 4.1.4, /usr/bin/mpirun".
absl::StatusOr<std::string> DescribeMpirun(const std::string& family = kMpiFamily);

// Lines that mpirun adds to a job's end and that say nothing of its own: frames, "MPI_ABORT was invoked",
// advice.
bool IsMpirunsFrame(const std::string& line);

}  // namespace psring
