// Steps that are recorded with NCCL's all-reduces give the results and records of other steps, and do not
// hang. Uses a fake CUDA runtime and a fake libnccl (fake_nccl.h), which varies the order that a graph leaves
// open.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ring_worker/groups/nccl_environment.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/has.h"
#include "tests/ring_worker/groups/fake_nccl.h"
#include "tests/trainer/cluster.h"

namespace psring {
namespace {

const DataSplits& Data() {
  static const DataSplits data = SmallData();
  return data;
}

class RecordedSteps : public testing::Test {
 protected:
  RecordedSteps() { Begin(3); }
  ~RecordedSteps() override {
    nccl_.Reset();
    TheFakeCuda().devices = 1;
  }

  void Begin(int ranks) {
    nccl_.Reset();
    TheFakeCuda().devices = ranks;
  }

  static TrainingOptions Options() {
    TrainingOptions options = SmallOptions("ring");
    options.device = "cuda";
    options.backend = "nccl";
    options.check_replicas = true;
    options.steps = 8;
    return options;
  }

  // The number of plain and of recorded all-reduces in NCCL's log.
  std::pair<int, int> Announced(int rank) const {
    std::pair<int, int> announced;
    for (const std::string& line : nccl_.Log(rank)) {
      if (!absl::StartsWith(line, "all_reduce")) continue;
      ++(absl::EndsWith(line, "recorded") ? announced.second : announced.first);
    }
    return announced;
  }

  // Trains without and with graphs and compares; returns the ranks with graphs.
  std::vector<RankOutcome> ExpectTheBitsOfPlainTraining(TrainingOptions options, int ranks = 3) {
    Begin(ranks);
    const auto plain = TrainRanks(options, ranks, Data());
    Begin(ranks);
    options.cuda_graph = true;
    std::vector<RankOutcome> recorded = TrainRanks(options, ranks, Data());
    for (size_t rank = 0; rank < recorded.size(); ++rank) {
      EXPECT_EQ(recorded[rank].weights, plain[rank].weights) << "rank " << rank;
      EXPECT_EQ(recorded[rank].steps.size(), plain[rank].steps.size());
      for (size_t i = 0; i < std::min(recorded[rank].steps.size(), plain[rank].steps.size()); ++i) {
        const StepRecord &with = recorded[rank].steps[i], &without = plain[rank].steps[i];
        EXPECT_EQ(with.weights_hash, without.weights_hash) << "step " << i;
        EXPECT_EQ(with.loss, without.loss) << "step " << i;
        EXPECT_EQ(with.payload_tx_bytes, without.payload_tx_bytes) << "step " << i;
        EXPECT_EQ(with.payload_rx_bytes, without.payload_rx_bytes) << "step " << i;
        EXPECT_EQ(with.buckets.size(), without.buckets.size());
      }
    }
    EXPECT_EQ(TheFakeCuda().graphs, 0) << "all are released";
    return recorded;
  }

  FakeNccl nccl_ = FakeNccl::Load();
};

TEST_F(RecordedSteps, AreOneLaunchIncludingTheirAllReduces) {
  TrainingOptions options = Options();
  options.cuda_graph = true;
  const int before = TheFakeCuda().graph_launches;
  const auto outcomes = TrainRanks(options, 3, Data());
  for (int rank = 0; rank < 3; ++rank) {
    // Called in the first step, and in the second, which is recorded; then never again.
    const auto [plain, recorded] = Announced(rank);
    EXPECT_GT(plain, 0);
    EXPECT_EQ(recorded, outcomes[rank].steps.back().buckets.size());
    EXPECT_LE(plain, 4);
    EXPECT_EQ(nccl_.Log(rank).back(), "destroy") << absl::StrJoin(nccl_.Log(rank), ", ");
  }
  EXPECT_EQ(TheFakeCuda().graph_launches - before, 3 * 7) << "of three ranks, in all steps but the first";
}

TEST_F(RecordedSteps, UseOnlySocketsUnderNcclTcp) {
  ForgetForThisProcess();
  TrainingOptions options = Options();
  options.strategy = "nccl-tcp";
  for (const RankOutcome& outcome : ExpectTheBitsOfPlainTraining(options)) {
    ASSERT_TRUE(outcome.result.ok()) << outcome.result.status();
    EXPECT_EQ(outcome.result->wires, std::vector<std::string>{"NCCL over sockets"});
  }
  for (const char* variable : {"NCCL_NET=Socket", "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1"})
    EXPECT_THAT(nccl_.Log(0), testing::Contains(variable));
  ForgetForThisProcess();
}

TEST_F(RecordedSteps, GiveTheBitsOfPlainTraining) {
  for (const char* model : {"mlp-small", "cnn"}) {
    for (const char* optimizer : {"sgd", "momentum", "adam"}) {
      SCOPED_TRACE(absl::StrCat(model, " ", optimizer));
      TrainingOptions options = Options();
      options.model = model;
      options.optimizer = optimizer;
      if (options.model == "cnn") {
        options.batch = 2;
        options.steps = 4;
        options.bucket_mb = .05;
      }
      ExpectTheBitsOfPlainTraining(options);
    }
  }
}

TEST_F(RecordedSteps, UpdateWithTheirStepsNumbers) {
  TrainingOptions linear = Options(), warm = Options(), clipped = Options();
  linear.schedule = "linear";
  warm.linear_scaling = true;
  warm.warmup_epochs = .2;
  clipped.clip_norm = .3;
  for (const TrainingOptions& options : {linear, warm, clipped}) ExpectTheBitsOfPlainTraining(options);
}

// One graph per batch of a step; the last contains what follows from the sums. A short last step of an epoch
// has its own recording on all ranks.
TEST_F(RecordedSteps, ExistForEveryKindOfStep) {
  TrainingOptions options = Options();
  options.micro_batches = 2;
  options.batch = 20;  // 400 samples: 3 full steps of 120, and one of 40
  options.drop_last = "false";
  options.steps = 14;
  for (const bool changes : {false, true}) {
    options.schedule = changes ? "linear" : "constant";
    ExpectTheBitsOfPlainTraining(options);
  }
  options.micro_batches = 1;
  options.batch = 133;  // 399, and a step of one sample: two ranks have none
  ExpectTheBitsOfPlainTraining(options);
}

TEST_F(RecordedSteps, ReportTheirOwnTimes) {
  for (const char* optimizer : {"momentum", "adam"}) {
    TrainingOptions options = Options();
    options.optimizer = optimizer;
    const auto ranks = ExpectTheBitsOfPlainTraining(options);
    for (const RankOutcome& rank : ranks) {
      // Not ordered: a stream relates its GPU's clock to the host's again and again, with errors.
      std::set<int64_t> begins;
      for (const StepRecord& step : rank.steps) {
        EXPECT_GT(step.compute_ms, 0);
        EXPECT_GE(step.exposed_comm_ms, 0);
        EXPECT_GT(step.comm_busy_ms, 0);
        for (const BucketRecord& bucket : step.buckets) {
          EXPECT_TRUE(begins.insert(bucket.begin_ns).second)
              << "step " << step.step << " has an earlier one's times";
          EXPECT_LE(bucket.begin_ns, bucket.end_ns);
          EXPECT_GT(bucket.ready_ns, 0);
        }
      }
    }
  }
}

// NCCL advises against recordings by several ranks of a process, so there all-reduces stay outside.
TEST_F(RecordedSteps, RequireRanksInSeparateProcesses) {
  TrainingOptions options = Options();
  options.ranks_per_process = 3;
  ExpectTheBitsOfPlainTraining(options);
  EXPECT_EQ(Announced(0).second, 0);
  EXPECT_GT(Announced(0).first, 8);
}

TEST_F(RecordedSteps, DoNotWaitForALostPeer) {
  TrainingOptions options = Options();
  options.cuda_graph = true;
  options.check_replicas = false;
  options.timeout_s = 1;
  const auto dies = [](Worker& worker) {
    if (worker.rank != 1) return;
    worker.objection = [steps = 0]() mutable {
      return ++steps < 4 ? absl::OkStatus() : absl::CancelledError("killed");
    };
  };
  const auto outcomes = RunRanks(options, 3, Data(), dies);
  for (const int survivor : {0, 2}) {
    const absl::Status status = outcomes[survivor].result.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    for (const std::string& said :
         {std::string("step 4: "), absl::StrCat("rank ", survivor), std::string("all_reduce of "),
          std::string("repeated from a recording"), std::string("of the other 2 ranks has not joined it")}) {
      EXPECT_THAT(status.message(), Has(said));
    }
    EXPECT_EQ(nccl_.Log(survivor).back(), "abort") << absl::StrJoin(nccl_.Log(survivor), ", ");
  }
}

TEST_F(RecordedSteps, ReportNcclsAsynchronousErrors) {
  TrainingOptions options = Options();
  options.cuda_graph = true;
  const auto fails = [this](Worker& worker) {
    if (worker.rank != 1) return;
    worker.objection = [this, steps = 0]() mutable {
      if (++steps < 4) return absl::OkStatus();
      nccl_.Set("async_error", 6);  // ncclRemoteError
      return absl::CancelledError("killed");
    };
  };
  const auto outcomes = RunRanks(options, 3, Data(), fails);
  for (const int survivor : {0, 2}) {
    const absl::Status status = outcomes[survivor].result.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(status.message(), Has("remote process exited"));
  }
}

// The same for plain steps: the host waits only after it has enqueued all of a step.
TEST_F(RecordedSteps, AndPlainStepsAreEnqueuedBeforeTheHostWaits) {
  for (const bool graph : {false, true}) {
    for (const bool alone : {true, false}) {
      SCOPED_TRACE(absl::StrCat(alone ? "single" : "ring", graph ? ", recorded" : ""));
      TrainingOptions options = Options();
      if (alone) {
        options.strategy = "single";
        options.backend = "";
      }
      options.check_replicas = false;
      options.cuda_graph = graph;
      const auto watched = [&](Worker& worker) {
        FakeCuda::Pace& pace = TheFakeCuda().pace[static_cast<size_t>(worker.rank)];
        const auto on_step = worker.on_step;
        worker.on_step = [&pace, on_step, steps = 0,
                          last_step = options.steps](const StepRecord& step) mutable {
          on_step(step);
          // The first step allocates memory. While the host waits, it enqueues only the event that it waits
          // for.
          if (++steps > 2) {
            EXPECT_FALSE(pace.paused);
            EXPECT_GE(pace.enqueued_at_wait + 2, pace.enqueued) << "step " << step.step;
          }
          // The next batch, whose memory the one after it takes, has been uploaded already.
          while (pace.finished < pace.enqueued) std::this_thread::yield();
          if (steps > 1) pace.paused = steps < last_step;
        };
      };
      for (const RankOutcome& outcome : RunRanks(options, alone ? 1 : 3, Data(), watched))
        EXPECT_TRUE(outcome.result.ok()) << outcome.result.status();
    }
  }
}

}  // namespace
}  // namespace psring
