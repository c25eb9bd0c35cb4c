// The command that starts MPI ranks on this machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/launch/launcher.h"
#include "experiments/machine/build_info.h"

namespace psring {

struct MpirunOptions {
  int ranks = 1;
  std::string transport = "auto";   // auto, shm or tcp: MPI's own transport
  std::string family = kMpiFamily;  // the MPI that the ranks were built with; empty: any
};

struct MpirunCommand {
  std::vector<std::string> prefix;       // "/usr/bin/mpirun", "-n", "4", ..., followed by the program
  std::vector<std::string> environment;  // "KEY=value"
  std::shared_ptr<const void> folder;    // of the job's shared memory files; removed with the last copy
};

// Finds Open MPI's or MPICH's mpirun, also as Debian's mpirun.openmpi or mpiexec.mpich. The command does not
// bind ranks to cores and allows root and more ranks than cores. NotFound, Unimplemented: no mpirun is
// suitable; the message states what to install.
absl::StatusOr<MpirunCommand> FindMpirun(const MpirunOptions& options);

// All ranks as one child, because mpirun must start and number MPI's processes: `command`, with `environment`
// added, and without the variables of a launcher that started psring itself.
absl::StatusOr<ChildSpec> MpirunProcess(const MpirunOptions& options, const std::vector<std::string>& command,
                                        const std::vector<std::string>& environment);

// "Open MPI 4.1.4, /usr/bin/mpirun".
absl::StatusOr<std::string> DescribeMpirun(const std::string& family = kMpiFamily);

// Whether `line` is mpirun's own and has no information: separators, "MPI_ABORT was invoked", advice.
bool IsMpirunBoilerplate(const std::string& line);

}  // namespace psring
