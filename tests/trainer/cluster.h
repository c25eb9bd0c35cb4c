// Ranks as threads: RunWorker on several threads of one process, with the in-process transport or the direct
// client of a parameter server.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/measure/records.h"
#include "common/options/training_options.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/server/parameter_server.h"
#include "ring_worker/groups/process_group.h"
#include "tests/on_ranks.h"
#include "trainer/data/sources.h"
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

// Of rank 0; fails the test if a rank has failed.
std::vector<float> WeightsOf(const std::vector<RankOutcome>& outcomes);

struct RankSetup {
  Arrivals* arrivals = nullptr;  // see ServerOptions
  int per_machine = 1;           // with --local_aggregation: the ranks of a machine
  const StrategyTable& strategies = StrategyRows();
};

// With --local_aggregation each machine has a group of its own and one client. With the backend "nccl" each
// rank has a GPU of its own. `adjust`: called for each rank's worker before it runs.
std::vector<RankOutcome> RunRanks(
    const TrainingOptions& options, int workers, const DataSplits& data,
    const std::function<void(Worker&)>& adjust = [](Worker&) {}, const RankSetup& setup = {});
// The same; throws the status of a rank that fails.
std::vector<RankOutcome> TrainRanks(
    const TrainingOptions& options, int workers, const DataSplits& data,
    const std::function<void(Worker&)>& adjust = [](Worker&) {}, const RankSetup& setup = {});

// Runs replicas of options.pp times options.tp times options.cp ranks, with the in-process transport or, of
// the strategy gloo, with Gloo, and with servers for each part of the model. In the order of ranks (Mesh): of
// position 0 all replicas first, of each its segments, and of these their shares. RunRanks for those of one.
std::vector<RankOutcome> RunPipelines(
    const TrainingOptions& options, int replicas, const DataSplits& data,
    const std::function<void(Worker&)>& adjust = [](Worker&) {});

// One process that trains with the same options, and adds as many gradients as `workers` ranks. It trains
// once for the same arguments.
const RankOutcome& OneProcess(const TrainingOptions& options, int workers, const DataSplits& data);
// Trains on `workers` ranks and expects that all end like OneProcess, with equal weights, after every step
// too with --check_replicas, and with the test loss if they evaluate. `tolerance`: of the weights, as
// RelativeL2; 0: the same bits. Tables on servers are not compared. Returns the ranks.
std::vector<RankOutcome> ExpectOneProcess(const TrainingOptions& options, int workers, const DataSplits& data,
                                          double tolerance = 0);

// To adjust workers: rank `failing` fails in its second step, with ResourceExhausted, "no space left".
std::function<void(Worker&)> RunsOutOfSpace(int failing);

// Of one gradient, with the padding between tensors.
uint64_t GradientBytes(const RankResult& result);

// Expects that a rank has the weights of another one, the losses and hashes of its steps, and its curve.
void ExpectSameTraining(const RankOutcome& rank, const RankOutcome& other);

inline const std::vector<std::string> kOptimizers = {"sgd", "momentum", "adam"};
// Small enough to clip in every step, so that clipping changes the weights.
inline constexpr double kClipNorm = 0.2;

// 8 x 8 pictures, and options that train a small network on them for a few steps.
const DataSplits& SmallData();
TrainingOptions SmallOptions(const std::string& strategy);
// 16 x 16 pictures, and a residual network with 16 channels in its first stage. Evaluates, which needs the
// running statistics.
const DataSplits& SmallPictures();
TrainingOptions TinyResNet(const std::string& strategy, const char* model = "resnet18");
// A text in windows of 8 tokens, and a transformer of two blocks.
const DataSplits& SmallText();
TrainingOptions TinyGpt(const std::string& strategy);
// Clicks with tables of 300 rows, and a recommendation model for them.
const DataSplits& SmallClicks();
TrainingOptions TinyDlrm(const std::string& strategy, const std::string& optimizer = "sgd");
// What `read` makes of a file with this text.
DataSplits FromText(const std::string& text,
                    const std::function<absl::StatusOr<DataSplits>(const std::string& path)>& read);

// |a - b| / |b|.
double RelativeL2(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace psring
