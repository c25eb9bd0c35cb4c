// The flags of the binary: those of training, and what concerns this process alone.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/net/link_shaper.h"
#include "common/options/training_options.h"
#include "common/rendezvous/own_address.h"

namespace psring {

struct TrainerFlags {
  TrainingOptions training;
  std::string rendezvous;  // empty: env:// where RANK or mpirun's is set, else alone
  NetworkChoice network;
  bool servers_elsewhere = false;
  std::string record;
  std::string progress = "plain";
  std::string count_interface;
  LinkShape link;
  bool describe = false;
  bool check_only = false;
  int workers = 0;  // 0: as many processes as there are
  std::string replay;
  int metrics_port = -1;  // below 0: none

  // This process stands for all workers.
  bool alone_for_all() const { return training.clock == "virtual" || !replay.empty(); }
};

// Prints help, or one line, and ends the process where there is nothing to run.
TrainerFlags ParseTrainerFlags(int argc, char** argv);

// What can be refused by looking at the flags alone.
absl::Status CheckTrainerFlags(const TrainerFlags& flags, int world_size);

// The flags that every rank must share; where its data and cores are is a rank's own affair.
std::vector<std::string> SharedArguments(TrainingOptions options);

}  // namespace psring
