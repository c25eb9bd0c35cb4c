// The flags of the program: those of training, and those of this process.
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
  std::string rendezvous;  // empty: env:// if a launcher has set a rank, else a single process
  NetworkChoice network;
  bool servers_elsewhere = false;
  std::string record;
  std::string progress = "plain";
  std::string count_interface;
  LinkShape link;
  bool describe = false;
  bool check_only = false;
  int workers = 0;  // in this process: logical, or replicas of data-parallel; of a check's job; 0: not given
  std::string replay;

  // This process computes for all workers.
  bool alone_for_all() const { return training.clock == "virtual" || !replay.empty(); }
};

// Exits after printing help or an error.
TrainerFlags ParseTrainerFlags(int argc, char** argv);

// Checks that need only the flags.
absl::Status CheckTrainerFlags(const TrainerFlags& flags, int world_size);

// The flags that must be the same on every rank; data folder, device and threads may differ.
std::vector<std::string> SharedArguments(TrainingOptions options);

}  // namespace psring
