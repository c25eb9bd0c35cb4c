// What this trainer can do, for the front door, so that nobody keeps a second table.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/options/training_options.h"

namespace psring {

// {"strategies": [{name, summary, needs, backend, algorithm, synchronous, single_process, replicates,
// default_momentum}],
//  "models": [{name, summary, default_lr, default_async_lr, parameters}], "data": [{name, summary}]}
// `needs`: "nothing", "process_group" or "parameter_server". `parameters`: on 28x28 pictures.
std::string DescribeAsJson();

// What `options` come to, without training: opens the device, loads the data, builds the model. The error is
// the one that a training would end with.
// {"samples", "test_samples", "parameters", "device",
//  "updates": [{strategy, optimizer, lr, momentum, warnings: [...], refused}]}, an update for each strategy;
//  `refused`: why its collectives are not to be had with --backend and --transport; else empty
absl::StatusOr<std::string> CheckAsJson(const TrainingOptions& options, int world_size);

}  // namespace psring
