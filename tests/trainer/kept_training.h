// Training whose checkpoints stay in memory; ranks are threads.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/trainer/cluster.h"
#include "trainer/checkpoints/checkpoint.h"

namespace psring {

using Files = std::map<std::string, std::string>;  // of a checkpoint, by name
using KeptSteps = std::map<int64_t, Files>;        // by step

// The files as rank `rank` reads them, from a checkpoint "kept".
CheckpointBytes KeptBytes(const Files& files, int rank = 0);

// RunRanks, which stores the checkpoints in `kept`. `resume`: all ranks begin with these files. `adjust`:
// called for each rank's worker at the end of its preparation.
std::vector<RankOutcome> RunKeeping(
    const TrainingOptions& options, int workers, const DataSplits& data, KeptSteps& kept,
    const Files* resume = nullptr, const std::function<void(Worker&)>& adjust = [](Worker&) {});

// The same for RunPipelines.
std::vector<RankOutcome> KeepReplicas(const TrainingOptions& options, int replicas, const DataSplits& data,
                                      KeptSteps& kept, const Files* resume = nullptr);

// Expects that `to` is `from` after Adam's update number `updates`, at the rate .01 without weight decay.
// Rows without samples, which have not changed, are left out.
void ExpectAdamUpdate(const Files& from, const Files& to, int64_t updates);

}  // namespace psring
