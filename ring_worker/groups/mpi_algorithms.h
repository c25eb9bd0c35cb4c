// Fixes the algorithm of MPI's all-reduce through the variables of its tools interface (MPI_T), which differ
// between implementations. Open MPI's tuner reads them when a communicator is created; MPICH reads them in
// every call. Used only by mpi.cc.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace psring {

// The algorithm names that this build's MPI supports; "default" lets it choose.
std::vector<std::string> MpiAllReduceAlgorithms();

// While an instance exists, communicators that are created (Open MPI), or all-reduces that are called
// (MPICH), use the algorithm. At most one at a time, and only within MpiSession::Run, which serializes calls.
class MpiAlgorithm {
 public:
  enum class During { kMaking, kCalls };
  // No effect for "default", or if this MPI does not read the variables at that time.
  MpiAlgorithm(const std::string& algorithm, During when);
  ~MpiAlgorithm();
  MpiAlgorithm(const MpiAlgorithm&) = delete;
  MpiAlgorithm& operator=(const MpiAlgorithm&) = delete;

  // Unimplemented: this MPI lacks a variable, or it is read-only; FailedPrecondition: mpirun was started
  // without enabling the choice of algorithms.
  const absl::Status& status() const { return status_; }

 private:
  bool set_ = false;
  absl::Status status_;
};

}  // namespace psring
