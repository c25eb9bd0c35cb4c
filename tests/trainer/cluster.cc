#include "tests/trainer/cluster.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/device_factory/make_device.h"
#include "ps_server/client/ps_client.h"
#include "ring_worker/groups/process_group.h"
#include "tests/ps_server/direct_client.h"
#include "tests/ring_worker/fake_rendezvous.h"
#include "trainer/data/sources.h"
#include "trainer/pipeline/pipeline_links.h"
#include "trainer/pipeline/shard_groups.h"
#include "trainer/strategies/group_options.h"
#include "trainer/strategies/local_aggregation.h"

namespace psring {
namespace {

// All ranks wait for each other, for at most 30 s.
class ThreadBarrier {
 public:
  explicit ThreadBarrier(int ranks) : ranks_(ranks) {}

  absl::Status Wait() {
    MutexLock lock(mutex_);
    const int round = round_;
    if (++waiting_ == ranks_) {
      waiting_ = 0;
      ++round_;
      changed_.NotifyAll();
    }
    const MonotonicTime deadline = MonotonicNow() + absl::Seconds(30);
    while (round == round_) {
      if (!changed_.WaitUntil(mutex_, deadline) && round == round_) {
        return absl::DeadlineExceededError("a rank did not reach the barrier");
      }
    }
    return absl::OkStatus();
  }

 private:
  const int ranks_;
  Mutex mutex_;
  CondVar changed_;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int round_ ABSL_GUARDED_BY(mutex_) = 0;
};

// For ranks that are threads, with their own rendezvous store.
std::vector<std::unique_ptr<ProcessGroup>> MeetInAStore(int workers, const GroupOptions& options,
                                                        bool gpu_each = false) {
  std::vector<std::unique_ptr<ProcessGroup>> groups(workers);
  const auto store = std::make_shared<FakeStore>();
  OnRanks(workers, [&](int rank) {
    FakeRendezvous& rendezvous = KeptRendezvous(store, rank, workers);
    GroupOptions own = options;
    if (gpu_each) own.gpu = rank;
    auto group = MakeProcessGroup(rendezvous, own);
    PSRING_CHECK(group.ok());
    groups[rank] = *std::move(group);
  });
  return groups;
}

}  // namespace

bool RunsOnThreads(const StrategyRow& strategy) {
  if (!strategy.uses_group) return true;
  if (strategy.backend != "native" && strategy.backend != "gloo")
    return false;  // MPI's ranks are processes, NCCL's GPUs
  return CheckGroupOptions({.backend = strategy.backend, .algorithm = strategy.algorithm},
                           Collective::kAllReduce)
      .ok();
}

Connections Connect(const StrategyRow& strategy, int workers, absl::Duration timeout, int servers,
                    Arrivals* arrivals, int gpu) {
  Connections connections;
  connections.device = MakeCpuDevice();
  if (strategy.backend == "gloo" && workers > 1) {
    connections.groups =
        MeetInAStore(workers, {.backend = "gloo", .algorithm = strategy.algorithm, .timeout = timeout});
  } else if (strategy.uses_group && workers > 1) {
    connections.groups =
        MeetInAStore(workers, {.algorithm = strategy.algorithm, .timeout = timeout, .gpu = gpu});
  }
  if (strategy.uses_servers) {
    for (int server = 0; server < servers; ++server) {
      connections.servers.push_back(std::make_unique<ParameterServer>(
          *connections.device, ServerOptions{.workers = workers,
                                             .server = server,
                                             .servers = servers,
                                             .timeout = timeout,
                                             .on_worker_loss = OnWorkerLoss::kStop,
                                             .arrivals = arrivals}));
    }
    for (int rank = 0; rank < workers; ++rank) {
      std::vector<std::unique_ptr<OneServerClient>> clients;
      for (const auto& server : connections.servers) clients.push_back(MakeDirectPsClient(*server));
      connections.clients.push_back(MakeShardedPsClient(std::move(clients)));
    }
  }
  return connections;
}

namespace {

// --local_aggregation: the clients of one worker per machine, and a group in each machine.
Connections ConnectMachines(const StrategyRow& strategy, const TrainingOptions& options, int workers,
                            int per_machine) {
  const int machines = workers / per_machine;
  Connections connections =
      Connect(strategy, machines, absl::Seconds(options.timeout_s), ServersOf(options, machines));
  std::vector<std::unique_ptr<PsClient>> clients(workers);
  for (int machine = 0; machine < machines; ++machine) {
    clients[machine * per_machine] = std::move(connections.clients[machine]);
    for (auto& group : MeetInAStore(per_machine, MachineGroupOptions(options, /*gpu=*/-1))) {
      connections.groups.push_back(std::move(group));
    }
  }
  connections.clients = std::move(clients);
  return connections;
}

// With --dp_shard: the parts of the rank's `group`, or null, as LiveRank makes them.
std::unique_ptr<ShardGroups> ConnectShards(const TrainingOptions& options, ProcessGroup* group) {
  if (options.dp_shard == 0 || group == nullptr || options.dp_shard == group->size()) return nullptr;
  return std::make_unique<ShardGroups>(ShardGroups::Split(*group, options.dp_shard).value());
}

}  // namespace

std::vector<RankOutcome> RunRanks(const TrainingOptions& options, int workers, const DataSplits& data,
                                  const std::function<void(Worker&)>& adjust, const RankSetup& setup) {
  const auto strategy = FindStrategy(options.strategy, {}, setup.strategies);
  PSRING_CHECK(strategy.ok());
  std::vector<std::vector<Buffer>> registered(workers);  // outlive the groups
  const int gpu = options.device == "cuda" && options.backend == "native" ? 0 : -1;
  const bool gpu_each = options.backend == "nccl";
  Connections connections;
  if (gpu_each) {
    connections.groups = MeetInAStore(workers,
                                      {.backend = "nccl",
                                       .transport = GroupOptionsOf(*strategy, options).transport,
                                       .timeout = absl::Seconds(options.timeout_s)},
                                      gpu_each);
  } else if (options.local_aggregation) {
    connections = ConnectMachines(*strategy, options, workers, setup.per_machine);
  } else {
    connections = Connect(*strategy, workers, absl::Seconds(options.timeout_s), ServersOf(options, workers),
                          setup.arrivals, gpu);
  }
  if (options.sync_batch_norm && !connections.groups.empty()) {
    connections.statistics =
        Connect(*strategy, workers, absl::Seconds(options.timeout_s)).groups;  // in host memory
  }
  ThreadBarrier barrier(workers);
  std::vector<std::unique_ptr<ShardGroups>> shard_groups(workers);  // until all have ended
  std::vector<RankOutcome> outcomes(workers);
  OnRanks(workers, [&](int rank) {
    RankOutcome& outcome = outcomes[rank];
    shard_groups[rank] = ConnectShards(options, connections.group(rank));
    absl::StatusOr<std::unique_ptr<Device>> made =
        MakeDevice(gpu_each ? absl::StrCat("cuda:", rank) : options.device);
    PSRING_CHECK(made.ok());
    const std::unique_ptr<Device> device = *std::move(made);
    Trace trace(rank);
    Worker worker{.rank = rank,
                  .world_size = workers,
                  .device = *device,
                  .data = data,
                  .trace = trace,
                  .strategies = &setup.strategies,
                  .group = connections.group(rank),
                  .shard_groups = shard_groups[rank].get(),
                  .statistics = connections.statistics.empty() ? nullptr : connections.statistics[rank].get(),
                  .registered = &registered[rank],
                  .client = connections.client(rank)};
    worker.barrier = [&barrier] { return barrier.Wait(); };
    worker.on_step = [&outcome](const StepRecord& record) { outcome.steps.push_back(record); };
    worker.on_warning = [&outcome](const std::string& warning) { outcome.warnings.push_back(warning); };
    adjust(worker);
    outcome.result = RunWorker(options, worker, &outcome.weights);
    if ((gpu >= 0 || gpu_each) && worker.group != nullptr) {  // all at once, as processes do
      shard_groups[rank].reset();
      connections.groups[rank].reset();
    }
  });
  return outcomes;
}

std::vector<RankOutcome> RunPipelines(const TrainingOptions& options, int replicas, const DataSplits& data,
                                      const std::function<void(Worker&)>& adjust) {
  if (ReplicaRanks(options) == 1) return RunRanks(options, replicas, data, adjust);
  const auto strategy = FindStrategy(options.strategy);
  PSRING_CHECK(strategy.ok());
  const int ranks = replicas * ReplicaRanks(options);
  std::vector<std::vector<Buffer>> registered(ranks);
  const absl::Duration timeout = absl::Seconds(options.timeout_s);
  const Connections world =
      Connect(strategy->backend == "gloo" ? *strategy : *FindStrategy("ring"), ranks, timeout);
  std::vector<Connections> served;  // by part of the model
  const int parts = ReplicaRanks(options);
  for (int part = 0; part < parts && strategy->uses_servers; ++part) {
    served.push_back(Connect(*strategy, replicas, timeout, ServersOf(options, ranks) / parts));
  }
  std::vector<std::unique_ptr<PipelineLinks>> links(ranks);  // until all have ended
  std::vector<std::unique_ptr<ShardGroups>> shard_groups(ranks);
  ThreadBarrier barrier(ranks);
  std::vector<RankOutcome> outcomes(ranks);
  OnRanks(ranks, [&](int rank) {
    RankOutcome& outcome = outcomes[rank];
    auto connected = PipelineLinks::Connect(options, *world.group(rank), *world.device);
    PSRING_CHECK(connected.ok());
    PipelineLinks& own = *(links[rank] = *std::move(connected));
    shard_groups[rank] = ConnectShards(options, own.same_stages());
    Trace trace(rank);
    Worker worker{.rank = own.rank(),
                  .world_size = own.ranks(),
                  .device = *world.device,
                  .data = data,
                  .trace = trace,
                  .group = own.same_stages(),
                  .shard_groups = shard_groups[rank].get(),
                  .pipeline = own.cuts_model() ? &own.pipeline() : nullptr,
                  .sequence = own.sequence(),
                  .registered = &registered[rank]};
    const int part = own.place().position * options.tp + own.place().share;
    if (!served.empty()) worker.client = served[part].client(own.place().replica);
    worker.barrier = [&barrier] { return barrier.Wait(); };
    worker.on_step = [&outcome](const StepRecord& record) { outcome.steps.push_back(record); };
    adjust(worker);
    outcome.result = RunWorker(options, worker, &outcome.weights);
    if (!outcome.result.ok()) own.Abort(outcome.result.status());
  });
  return outcomes;
}

std::vector<RankOutcome> TrainRanks(const TrainingOptions& options, int workers, const DataSplits& data,
                                    const std::function<void(Worker&)>& adjust, const RankSetup& setup) {
  std::vector<RankOutcome> outcomes = RunRanks(options, workers, data, adjust, setup);
  for (const RankOutcome& outcome : outcomes) (void)outcome.result.value();
  return outcomes;
}

std::vector<float> WeightsOf(const std::vector<RankOutcome>& outcomes) {
  for (const RankOutcome& outcome : outcomes) EXPECT_TRUE(outcome.result.ok()) << outcome.result.status();
  return outcomes.front().weights;
}

const RankOutcome& OneProcess(const TrainingOptions& options, int workers, const DataSplits& data) {
  TrainingOptions alone = options;
  LeaveServersOut(alone);
  LeavePipelineOut(alone);
  alone.strategy = "single";
  alone.reference_workers = workers * options.replicas;
  alone.replicas = 1;
  alone.backend.clear();
  alone.dp_shard = 0;
  alone.wire = "float32";
  alone.reshard = TrainingOptions().reshard;
  alone.check_replicas = false;
  static auto& trained = *new std::map<std::string, RankOutcome>;
  const std::string key = absl::StrCat(absl::StrJoin(TrainingArguments(alone), " "), " ", data.train.Hash(),
                                       " ", data.test.Hash());
  const auto [found, is_new] = trained.try_emplace(key);
  if (is_new) found->second = RunRanks(alone, 1, data)[0];
  (void)found->second.result.value();
  return found->second;
}

std::vector<RankOutcome> ExpectOneProcess(const TrainingOptions& options, int workers, const DataSplits& data,
                                          double tolerance) {
  const RankOutcome& expected = OneProcess(options, workers, data);
  std::vector<RankOutcome> ranks = TrainRanks(options, workers, data);
  std::vector<float> weights = expected.weights;  // tables are at the end
  weights.resize(std::min(weights.size(), ranks[0].weights.size()));
  if (tolerance == 0) {
    EXPECT_EQ(ranks[0].weights, weights);
  } else {
    EXPECT_LE(RelativeL2(ranks[0].weights, weights), tolerance);
  }
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    EXPECT_EQ(ranks[rank].weights, ranks[0].weights) << "rank " << rank;
    EXPECT_EQ(ranks[rank].steps.size(), ranks[0].steps.size());
    for (size_t i = 0; i < std::min(ranks[rank].steps.size(), ranks[0].steps.size()); ++i) {
      EXPECT_EQ(ranks[rank].steps[i].weights_hash, ranks[0].steps[i].weights_hash) << "step " << i;
    }
  }
  EXPECT_EQ(ranks[0].result->curve.size(), expected.result->curve.size());
  if (expected.result->curve.empty()) return ranks;
  // The replicas of data-parallel divide the batches of evaluation, too.
  EXPECT_NEAR(ranks[0].result->curve.back().test_loss, expected.result->curve.back().test_loss,
              std::max(10 * tolerance, options.replicas > 1 ? 1e-5 : 0));
  return ranks;
}

std::function<void(Worker&)> RunsOutOfSpace(int failing) {
  return [failing](Worker& worker) {
    if (worker.trace.rank() != failing) return;
    worker.objection = [n = 0]() mutable {
      return ++n == 2 ? absl::ResourceExhaustedError("no space left") : absl::OkStatus();
    };
  };
}

uint64_t GradientBytes(const RankResult& result) {
  uint64_t bytes = 0;
  for (const int64_t elements : result.bucket_elements)
    bytes += static_cast<uint64_t>(elements) * sizeof(float);
  return bytes;
}

void ExpectSameTraining(const RankOutcome& rank, const RankOutcome& other) {
  ASSERT_TRUE(rank.result.ok() && other.result.ok()) << rank.result.status() << other.result.status();
  EXPECT_EQ(rank.weights, other.weights);
  ASSERT_EQ(rank.steps.size(), other.steps.size());
  for (size_t step = 0; step < rank.steps.size(); ++step) {
    EXPECT_EQ(rank.steps[step].loss, other.steps[step].loss) << "step " << step;
    EXPECT_EQ(rank.steps[step].weights_hash, other.steps[step].weights_hash) << "step " << step;
  }
  const std::vector<CurvePoint>&curve = rank.result->curve, &expected = other.result->curve;
  ASSERT_EQ(curve.size(), expected.size());
  for (size_t i = 0; i < curve.size(); ++i) {
    EXPECT_EQ(curve[i].test_loss, expected[i].test_loss);
    EXPECT_EQ(curve[i].test_accuracy, expected[i].test_accuracy);
  }
}

DataSplits FromText(const std::string& text,
                    const std::function<absl::StatusOr<DataSplits>(const std::string& path)>& read) {
  const std::string path = absl::StrCat(testing::TempDir(), "/text-", getpid());
  std::ofstream(path) << text;
  auto data = read(path);
  std::filesystem::remove(path);
  return std::move(data).value();
}

const DataSplits& SmallData() {
  static const DataSplits data =
      MakeSyntheticData({.height = 8, .width = 8, .train = 400, .test = 100}, /*seed=*/5);
  return data;
}

const DataSplits& SmallPictures() {
  static const DataSplits data =
      MakeSyntheticData({.height = 16, .width = 16, .train = 400, .test = 100}, /*seed=*/5);
  return data;
}

const DataSplits& SmallClicks() {
  static const DataSplits data = MakeClicks({.rows = 300, .alpha = 1, .train = 2000, .test = 200}, 1);
  return data;
}

constexpr int kContext = 8;  // of SmallText

const DataSplits& SmallText() {
  static const DataSplits data = [] {
    std::string text;
    for (int i = 0; i < 300; ++i) {
      absl::StrAppend(&text, "one fish, two fish, red fish, blue fish ", i % 7, "\n");
    }
    return FromText(text, [](const std::string& path) { return ReadText(path, kContext); });
  }();
  return data;
}

TrainingOptions SmallOptions(const std::string& strategy) {
  TrainingOptions options;
  options.strategy = strategy;
  options.model = "mlp-small";
  options.data = "synthetic";
  options.device = "cpu";
  options.batch = 8;
  options.steps = 20;
  options.bucket_mb = .004;  // three buckets, one of which ends within a layer
  options.timeout_s = 30;
  options.evaluate = false;
  return options;
}

TrainingOptions TinyResNet(const std::string& strategy, const char* model) {
  TrainingOptions options = SmallOptions(strategy);
  options.model = model;
  options.width = 16;
  options.steps = 5;
  options.optimizer = "sgd";
  options.lr = .01;
  options.evaluate = true;
  options.bucket_mb = .5;
  return options;
}

TrainingOptions TinyGpt(const std::string& strategy) {
  TrainingOptions options = SmallOptions(strategy);
  options.model = "gpt-nano";
  options.data = "text";
  options.layers = 2;
  options.width = 16;
  options.heads = 2;
  options.context = kContext;
  options.bucket_mb = .01;
  return options;
}

TrainingOptions TinyDlrm(const std::string& strategy, const std::string& optimizer) {
  TrainingOptions options = SmallOptions(strategy);
  options.model = "dlrm-small";
  options.data = "zipf:300:1";
  options.width = 8;
  options.optimizer = optimizer;
  options.lr = optimizer == "sgd" ? .5 : .01;
  return options;
}

double RelativeL2(const std::vector<float>& a, const std::vector<float>& b) {
  PSRING_CHECK(a.size() == b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace psring
