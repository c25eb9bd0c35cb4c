// The number of files, mostly connections, that a process needs to have open, and the system's limit.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace psring {

// What determines the need of a process of a job.
struct DescriptorUse {
  int ranks = 1;             // in this process
  int world_size = 1;        // ranks of the job
  int servers = 0;           // to which each rank connects
  int peers = 0;             // ranks to which each rank connects
  bool hosts_store = false;  // the rendezvous store
  bool tls = false;          // connections are encrypted
};
// Upper estimates, from measurements with 1 to 6 ranks on the CPU. Pure.
int64_t TrainerDescriptors(const DescriptorUse& use);
int64_t ServerDescriptors(int workers, bool tls = false);
// Of a launcher that hosts the store and reads the output of `processes`.
int64_t LauncherDescriptors(int64_t processes);

// "1 rank", "4 ranks"
std::string RanksText(int ranks);

// Raises this process's limit as far as the system allows; call it in main. FailedPrecondition: `whose`
// ("4 ranks") need more.
absl::Status AllowDescriptors(int64_t needed, const std::string& whose);

}  // namespace psring
