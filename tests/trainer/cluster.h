// Ranks as threads: RunWorker on several threads of one process, with the in-process transport or the direct
// client of a parameter server.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/measure/records.h"
#include "common/options/training_options.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/server/parameter_server.h"
#include "ring_worker/groups/process_group.h"
#include "trainer/data/pictures.h"
#include "trainer/step/train_loop.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// How the ranks of a strategy communicate: groups, clients, or neither.
struct Connections {
  std::unique_ptr<Device> device;
  std::vector<std::unique_ptr<ParameterServer>> servers;  // before the clients, which use them
  std::vector<std::unique_ptr<ProcessGroup>> groups;
  std::vector<std::unique_ptr<ProcessGroup>> statistics;  // --sync_batch_norm
  std::vector<std::unique_ptr<PsClient>> clients;

  ProcessGroup* group(int rank) const { return groups.empty() ? nullptr : groups[rank].get(); }
  PsClient* client(int rank) const { return clients.empty() ? nullptr : clients[rank].get(); }
};
// `gpu`: for a process group between GPUs, the GPU of all ranks.
Connections Connect(const StrategyRow& strategy, int workers, absl::Duration timeout, int servers = 1,
                    Arrivals* arrivals = nullptr, int gpu = -1);

// Whether the strategy runs with threads as ranks in this build; MPI's and NCCL's do not.
bool RunsOnThreads(const StrategyRow& strategy);

struct RankOutcome {
  absl::StatusOr<RankResult> result = absl::UnknownError("did not run");
  std::vector<StepRecord> steps;
  std::vector<float> weights;
  std::vector<std::string> warnings;
};

// With --local_aggregation every `per_machine` ranks are a machine, with a group of their own and one client.
// With the backend "nccl" each rank has a GPU of its own. `adjust`: called for each rank's worker before it
// runs. `arrivals`: see ServerOptions.
std::vector<RankOutcome> RunRanks(
    const TrainingOptions& options, int workers, const DataSplits& data,
    const std::function<void(Worker&)>& adjust = [](Worker&) {}, Arrivals* arrivals = nullptr,
    int per_machine = 1, const StrategyTable& strategies = StrategyRows());
// The same; throws the status of a rank that fails.
std::vector<RankOutcome> TrainRanks(
    const TrainingOptions& options, int workers, const DataSplits& data,
    const std::function<void(Worker&)>& adjust = [](Worker&) {}, Arrivals* arrivals = nullptr,
    int per_machine = 1, const StrategyTable& strategies = StrategyRows());

// Runs `body(rank)` on one thread per rank and waits for all.
void OnThreads(int ranks, const std::function<void(int rank)>& body);

// Of one gradient, with the padding between tensors.
uint64_t GradientBytes(const RankResult& result);

// Small images, and options that train a small network on them for a few steps.
DataSplits SmallData();
TrainingOptions SmallOptions(const std::string& strategy);

// |a - b| / |b|.
double RelativeL2(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace psring
