// A process's only use of MPI: initialized by the first group, finalized when the process ends. MPI calls
// cannot be cancelled, so a call beyond its deadline prints what it waited for and ends the entire job with
// MPI_Abort. Used by mpi.cc and mpi_algorithms.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/device/device.h"

namespace psring {

// What a rank waits for. Formatted only in case of an error.
struct MpiWait {
  const char* what = "";
  size_t count = 0;
  DType type = DType::kFloat32;
  uint64_t call = 0;
  int peer = -1;  // the only other rank, by its number in the job; -1: several
  int ranks = 0;  // that take part; 0: all of the job
};

// Thread-safe. Exists until the process ends: MPI can be initialized only once.
class MpiSession {
 public:
  static MpiSession& OfThisProcess();

  // Calls MPI_Init_thread unless that has been done. MPI's rank and size must equal the rendezvous'.
  absl::Status Start(int rank, int size, absl::Duration timeout);

  // One MPI call at a time. `call` returns MPI's error code. The first failure is kept: after a failed call
  // the job is not finalized, because its peers would not take part.
  absl::Status Run(const MpiWait& wait, absl::Duration timeout, const std::function<int()>& call);
  // The same for a non-blocking operation: `begin` starts it, and `test` sets its argument when it is done.
  // Other threads' calls run between tests.
  absl::Status RunInTurns(const MpiWait& wait, absl::Duration timeout, const std::function<int()>& begin,
                          const std::function<int(bool& done)>& test);

  // Prints the reason on stderr and ends every process of the job.
  [[noreturn]] void EndJob(const std::string& why);

  // The transport that mpirun is configured to use: "shm", "tcp" or "auto".
  static std::string TransportOfJob();
  static bool IsOpenMpi();
  static bool IsMpich();
  bool broken() const { return broken_; }
  bool all_ranks_on_one_host() const { return one_host_; }

 private:
  MpiSession() = default;
  void Watch();
  void MakeProgress();
  void Finish(int exit_code);
  std::string Describe(const MpiWait& wait) const;
  std::string Late(const MpiWait& wait, absl::Duration timeout) const;

  Mutex calls_;  // held during a call
  Mutex mutex_;
  MpiWait waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t begin_ns_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: no call is in progress
  int64_t timeout_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  bool watched_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> started_{false};
  std::atomic<bool> broken_{false};
  std::atomic<bool> one_host_{false};
  std::atomic<int> rank_{0};
  std::atomic<int> size_{1};
};

}  // namespace psring
