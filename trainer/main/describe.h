// The tables of strategies, models and data as JSON, for scripts; and what flags mean, for psring.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/options/training_options.h"

namespace psring {

// {"strategies": [{name, summary, needs, backend, algorithm, synchronous, single_process, replicates,
// shares_steps, drops_gradients, default_momentum, number...}],
//  "models": [{name, summary, default_lr, default_async_lr, parameters}], "data": [{name, summary}]}
// `needs`: "nothing", "process_group", "parameter_server", or the last two joined by "+". `parameters`: for
// 28x28 images.
std::string DescribeAsJson();

// What `options` mean, without training: opens the device, loads the data, builds the model. Returns the
// error that training would return, if all `world_size` workers are on this host.
// {"samples", "test_samples", "parameters", "cuts": TrainableCuts, "cut_points": CutPoints, "device",
//  "memory_bytes": of the rank that needs most, "free_bytes": of the device; 0: unknown,
//  "updates": [{strategy, optimizer, lr, momentum, warnings: [...], refused}]}, an update for each strategy
//  and one for programs without a flush (kWithoutFlush); `refused`: why its collectives are not available
//  with --backend and --transport; else empty
absl::StatusOr<std::string> CheckAsJson(const TrainingOptions& options, int world_size);

}  // namespace psring
