// The real programs: ranks connect over TCP, exchange gradients over TCP or gRPC, and write their records.
#include "tests/trainer/main/trainer_process.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

TEST_F(TrainerProcess, ARingOfTwoOverTcpHasEqualReplicasAndWritesRecords) {
  const auto ranks =
      StartTrainers(2, absl::StrCat("--progress json --strategy ring --transport tcp", kShort));
  ExpectSuccess(ranks);
  const RankResult result0 = Result(0), result1 = Result(1);
  EXPECT_EQ(result0.weights_hash, result1.weights_hash);
  EXPECT_EQ(result0.transport, "tcp");
  EXPECT_EQ(result0.wires, std::vector<std::string>{"TCP"});
  EXPECT_NE(result0.host, "");
  EXPECT_EQ(result0.host, result1.host);
  EXPECT_EQ(result0.algorithm, "ring");
  EXPECT_EQ(result0.global_batch, 32);
  ASSERT_EQ(result0.curve.size(), 1);
  EXPECT_TRUE(result1.curve.empty());
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<StepRecord> steps = StepsOf(rank);
    ASSERT_EQ(steps.size(), 6);
    for (size_t step = 0; step < 6; ++step) {
      EXPECT_EQ(steps[step].step, step);
      // 2(N-1)/N of the gradient with N = 2 is one gradient.
      EXPECT_NEAR(steps[step].payload_tx_bytes, SentElements(result0) * 4, 16);
    }
    EXPECT_TRUE(fs::exists(dir_ / "records" / absl::StrCat("trace-rank", rank, ".json")));
    for (const char* event : {"start", "ready", "step", "done"})
      EXPECT_THAT(ranks[rank]->output(), Has(absl::StrCat("{\"event\":\"", event, "\",\"rank\":", rank)));
  }
  EXPECT_THAT(ranks[0]->output(), Has("\"evaluate\""));
}

TEST_F(TrainerProcess, SaysHowManyRanksThereAre) {
  const auto ranks = StartTrainers(2, absl::StrCat("--strategy ring", kShort));
  ExpectSuccess(ranks);
  EXPECT_THAT(ranks[0]->output(), testing::StartsWith("training with 2 ranks\n"));
  EXPECT_THAT(ranks[0]->errors(), Lacks("only one rank"));

  const auto only =
      StartAlone("--strategy allreduce --steps 1 --batch 4 --model mlp-small --data synthetic --no_eval");
  ExpectSuccess(*only);
  EXPECT_THAT(only->errors(), Has("--strategy ring has only one rank"));
}

TEST_F(TrainerProcess, DeterministicServersEqualTheReferenceOverTheRequestedPayload) {
  constexpr char kClipped[] = " --clip_norm 0.2";
  std::map<std::string, std::string> hashes;  // by clipping
  for (const std::string clip : {"", kClipped})
    hashes[clip] =
        TrainAlone(absl::StrCat("--strategy single --reference_workers 2", kShort, clip)).weights_hash;
  EXPECT_NE(hashes[""], hashes[kClipped]);
  struct Case {
    int servers;
    std::string transport, clip, payload, wire;
  };
  constexpr char kStream[] = "tcp --server_wire stream";
  for (const auto& [servers, transport, clip, payload, wire] :
       {Case{1, "tcp", "", "grpc", "gRPC over TCP"},
        {1, kStream, "", "tcp", "TCP"},
        {1, "shm", "", "shm", "shared memory"},
        {1, "auto", "", "shm", "shared memory"},
        {2, "shm", "", "shm", "shared memory"},
        {3, "tcp", "", "grpc", "gRPC over TCP"},
        {3, kStream, kClipped, "tcp", "TCP"},
        {3, "shm", kClipped, "shm", "shared memory"}}) {
    SCOPED_TRACE(absl::StrCat(servers, " ", transport, clip));
    RunJob(2, servers,
           absl::StrCat("--strategy ps-sync --deterministic --servers ", servers, " --transport ", transport,
                        kShort, clip));
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(Result(rank).weights_hash, hashes[clip]);
      EXPECT_EQ(Result(rank).payload, payload);
      EXPECT_EQ(Result(rank).wires, std::vector<std::string>{wire});
    }
    uint64_t received = 0;
    for (int server = 0; server < servers; ++server) {
      EXPECT_EQ(Served(server).server, server);
      received += Served(server).payload_rx_bytes;
    }
    EXPECT_EQ(received, 6 * 2 * 4 * static_cast<uint64_t>(SentElements(Result(0))));
  }
}

TEST_F(TrainerProcess, BackupWorkersOnSeveralServersAndGradientsIn16BitsRunAsProcesses) {
  for (const std::string flags :
       {"--strategy ps-backup:1 --servers 3",
        "--strategy ps-backup:1 --servers 2 --clip_norm 0.5 --wire bfloat16",
        "--strategy ps-async --servers 2 --staleness_lr inverse --wire float16 --transport shm",
        "--strategy ps-sync --server_placement colocated --wire bfloat16 --transport tcp"}) {
    SCOPED_TRACE(flags);
    RunJob(3, flags.find("--servers 2") != std::string::npos ? 2 : 3, absl::StrCat(flags, kShort));
    for (int rank = 1; rank < 3; ++rank) EXPECT_EQ(Result(rank).weights_hash, Result(0).weights_hash);
    const bool half = flags.find("--wire") != std::string::npos;
    for (const StepRecord& record : StepsOf(0)) {
      if (record.dropped) continue;
      EXPECT_EQ(record.payload_tx_bytes, SentElements(Result(0)) * (half ? 2 : 4));
      EXPECT_EQ(record.payload_rx_bytes, SentElements(Result(0)) * 4);
    }
  }
}

TEST_F(TrainerProcess, BoundedStalenessAndBackupWorkersRunAsProcesses) {
  for (const std::string strategy : {"ps-ssp:1", "ps-backup:1"}) {
    SCOPED_TRACE(strategy);
    RunJob(3, 1, absl::StrCat("--strategy ", strategy, kShort));
    int64_t dropped = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const RankResult result = Result(rank);
      EXPECT_EQ(result.strategy, strategy);
      EXPECT_EQ(result.weights_hash, Result(0).weights_hash);
      EXPECT_LE(result.staleness_max, strategy == "ps-ssp:1" ? 3 * 2 : 0);
      dropped += result.dropped_gradients;
    }
    EXPECT_EQ(Served(0).dropped_gradients, dropped);
    const int64_t gradients = strategy == "ps-ssp:1" ? 6 * 3 : 6 * 2;
    EXPECT_EQ(Served(0).pushes, gradients * static_cast<int64_t>(Result(0).bucket_elements.size()));
  }
}

TEST_F(TrainerProcess, StartsTheServersOfEachStageItself) {
  const std::string records = (dir_ / "records").string();
  for (const auto& [servers, flags] : {std::pair(2, "--servers 1"), {4, "--server_placement colocated"}}) {
    SCOPED_TRACE(flags);
    ExpectSuccess(
        *StartAlone(absl::StrCat("--strategy ps-sync --pp 2 --micro_batches 2 --ranks_per_process 4 ", flags,
                                 " --record ", records, kShort)));
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(Result(rank).weights_hash, Result(0).weights_hash);
    for (int server = 0; server < servers; ++server) {
      const std::string file = absl::StrCat(records, "/result-server", server, ".json");
      const absl::StatusOr<ServerResult> served = ServerResultFromJson(ReadFile(file).value_or(""));
      ASSERT_TRUE(served.ok()) << file << ": " << served.status();
      EXPECT_EQ(served->server, server);
      EXPECT_GT(served->pushes, 0);
    }
    fs::remove_all(records);
  }
}

// Two groups of two ranks: halves of an all-reduce send half of the gradient each, and the sums of shards
// too.
TEST_F(TrainerProcess, CopiesOfShardsHaveGroupsOfTheirOwn) {
  ExpectSuccess(StartTrainers(4, absl::StrCat("--strategy zero2 --dp_shard 2", kShort)));
  for (int rank = 0; rank < 4; ++rank) {
    const RankResult result = Result(rank);
    EXPECT_EQ(result.weights_hash, Result(0).weights_hash);
    EXPECT_NEAR(StepsOf(rank).at(2).payload_tx_bytes, 1.5 * 4 * SentElements(result), 64);
  }
  ExpectOneLine(*StartTrainer(0, 4, absl::StrCat("--strategy fsdp --dp_shard 3", kShort)),
                {"--dp_shard 3 does not divide 4 replicas; use --dp_shard 2 or 4"});
}

TEST_F(TrainerProcess, DescribesItsTables) {
  const auto child = StartAlone("--describe");
  ExpectSuccess(*child);
  EXPECT_THAT(child->output(),
              Has("\"ps-async\"", "\"parameter_server\"", "\"parameters\": 1863690", "\"synthetic\""));
}

TEST_F(TrainerProcess, ChecksAJobOrTheReplicasOfAProcess) {
  for (const char* strategy : {"ring", "ps-sync", "data-parallel"}) {
    SCOPED_TRACE(strategy);
    const auto child =
        StartAlone(absl::StrCat("--data synthetic --check_only --workers 2 --strategy ", strategy));
    ExpectSuccess(*child);
    EXPECT_THAT(child->output(), Has("\"memory_bytes\": "));
  }
}

TEST_F(TrainerProcess, InvalidInputGivesOneLineAndAnExitCode) {
  struct Case {
    std::string flags;
    int code;
    std::string message;
    std::vector<std::string> environment = {};
  };
  const std::string records = (dir_ / "file").string();
  std::ofstream(records) << "not a folder";
  for (const Case& bad : std::vector<Case>{
           {"--strategy rign", 2, "did you mean 'ring'"},
           {"--model mpl", 2, "did you mean 'mlp'"},
           {"--stpes 3", 2, "--steps"},
           {"--batch 0", 2, "--batch"},
           {"--batch 70000 --data synthetic", 1, "larger than the data (60000 samples)"},
           {"--data fashion-mnist --data_dir /nowhere", 1, "/nowhere/train-images"},
           {"--data synthetic --record " + records, 1, records},
           {"--strategy ps-sync --data synthetic", 1, "needs --rendezvous"},
           {"--strategy ps-ssp --data synthetic", 2, "ps-ssp:K needs a whole number from 1"},
           {"--strategy ps-backup:1 --data synthetic", 2, "at most 0 can be spare"},
           {"--data synthetic", 2, "RANK", {"RANK=2", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=1"}},
           {"--data synthetic --rendezvous tcp://", 2, "tcp://"},
           {"--data synthetic --check_only --pp 2 --cuts 9",
            2,
            "can be cut before the layers 1,2",
            {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"}},
           {"--data synthetic --check_only --memory 1M", 2, "and --memory allows 1.0 MiB"},
           {"--data synthetic --model mlp --memory 1M", 1, "and --memory allows 1.0 MiB"},
           {"--data synthetic --memory 1GBit", 2, "--memory"},
           {"--data synthetic --check_only --strategy ring --workers 4 --model mlp-small --width 2000 "
            "--memory 60M",
            2, "layouts of 4 workers that fit"},
           {"--data synthetic --strategy ps-sync --backend gloo", 2, "has no collectives"},
           {"--data synthetic --strategy gloo --backend mpi", 2, "which always uses gloo"},
           {"--data synthetic --transport tcp", 2, "which does not communicate"},
           {"--data synthetic --device cuda:999", 1, "no CUDA device"},
           // Ranks of mpirun are never single processes, even without a rendezvous.
           {"--data synthetic", 2, "MASTER_ADDR", {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"}},
       }) {
    SCOPED_TRACE(bad.flags);
    const auto child = StartAlone(bad.flags, bad.environment);
    ExpectOneLine(*child, {bad.message}, bad.code);
    EXPECT_THAT(child->errors(), testing::StartsWith("trainer: "));
  }
}

}  // namespace
}  // namespace psring
