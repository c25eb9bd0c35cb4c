// How MPI's all-reduce is held to one algorithm: through the variables of its tools interface (MPI_T), which
// differ from MPI to MPI. Open MPI's tuner reads them when a communicator is made, and keeps to what they
// said; MPICH reads them in every call. For mpi.cc alone.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace psring {

// Names of ours that this build's MPI has; "default" lets it choose.
std::vector<std::string> MpiAllReduceAlgorithms();

// While one of these lives, communicators that are made (Open MPI), or all-reduces that are called (MPICH),
// have the algorithm. One at a time, and only within MpiSession::Run, which lets nobody else in.
class MpiAlgorithm {
 public:
  enum class During { kMaking, kCalls };
  // Nothing happens where this MPI does not look at that moment, or for "default".
  MpiAlgorithm(const std::string& algorithm, During when);
  ~MpiAlgorithm();
  MpiAlgorithm(const MpiAlgorithm&) = delete;
  MpiAlgorithm& operator=(const MpiAlgorithm&) = delete;

  // Unimplemented: this MPI lacks a variable, or does not let it be set; FailedPrecondition: its mpirun was
  // not told that algorithms are to be chosen.
  const absl::Status& status() const { return status_; }

 private:
  bool set_ = false;
  absl::Status status_;
};

}  // namespace psring
