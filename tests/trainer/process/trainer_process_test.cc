// The real programs: ranks connect over TCP, exchange gradients over TCP or gRPC, and write their records.
#include "tests/trainer/process/trainer_process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

TEST_F(TrainerProcess, ARingOfTwoOverTcpHasEqualReplicasAndWritesRecords) {
  std::vector<std::unique_ptr<Child>> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(
        StartTrainer(rank, 2, absl::StrCat("--progress json --strategy ring --transport tcp", kShort)));
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks[rank]->Wait(), 0) << ranks[rank]->errors();
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
    std::ifstream steps(dir_ / "records" / absl::StrCat("steps-rank", rank, ".jsonl"));
    int64_t count = 0;
    for (std::string line; std::getline(steps, line); ++count) {
      const auto record = StepRecordFromJson(line).value();
      EXPECT_EQ(record.step, count);
      // 2(N-1)/N of the gradient with N = 2 is one gradient.
      EXPECT_NEAR(record.payload_tx_bytes, SentElements(result0) * 4, 16);
    }
    EXPECT_EQ(count, 6);
    EXPECT_TRUE(fs::exists(dir_ / "records" / absl::StrCat("trace-rank", rank, ".json")));
    for (const char* event : {"start", "ready", "step", "done"}) {
      EXPECT_NE(ranks[rank]->output().find(absl::StrCat("{\"event\":\"", event, "\",\"rank\":", rank)),
                std::string::npos)
          << event << ": " << ranks[rank]->output();
    }
  }
  EXPECT_NE(ranks[0]->output().find("\"evaluate\""), std::string::npos);
}

TEST_F(TrainerProcess, SaysHowManyRanksThereAre) {
  std::vector<std::unique_ptr<Child>> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(StartTrainer(rank, 2, absl::StrCat("--strategy ring", kShort)));
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks[rank]->Wait(), 0) << ranks[rank]->errors();
  EXPECT_TRUE(ranks[0]->output().starts_with("training with 2 ranks\n")) << ranks[0]->output();
  EXPECT_EQ(ranks[0]->errors().find("only one rank"), std::string::npos) << ranks[0]->errors();

  const auto only =
      StartAlone("--strategy allreduce --steps 1 --batch 4 --model mlp-small --data synthetic --no_eval");
  EXPECT_EQ(only->Wait(), 0) << only->errors();
  EXPECT_NE(only->errors().find("--strategy ring has only one rank"), std::string::npos) << only->errors();
}

TEST_F(TrainerProcess, ADeterministicServerOverGrpcEqualsTheReference) {
  Child server("server", dir_,
               {PSRING_PS_SERVER, "--workers", "2", "--rendezvous", Rendezvous(), "--record", dir_.string()},
               Environment(0, 2));
  std::vector<std::unique_ptr<Child>> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(StartTrainer(rank, 2, absl::StrCat("--strategy ps-sync --deterministic", kShort)));
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks[rank]->Wait(), 0) << ranks[rank]->errors();
  EXPECT_EQ(server.Wait(), 0) << server.errors();
  const RankResult result = Result(0);
  EXPECT_EQ(result.weights_hash, Result(1).weights_hash);

  const auto alone = StartAlone(
      absl::StrCat("--strategy single --micro_batches 2 --record ", (dir_ / "records").string(), kShort));
  EXPECT_EQ(alone->Wait(), 0) << alone->errors();
  EXPECT_EQ(Result(0).weights_hash, result.weights_hash);
}

TEST_F(TrainerProcess, SeveralServersEqualTheReference) {
  std::map<std::string, std::string> hashes;  // by clipping
  for (const std::string clip : {"", " --clip_norm 0.2"}) {
    const auto alone = StartAlone(absl::StrCat("--strategy single --micro_batches 2 --record ",
                                               (dir_ / "records").string(), kShort, clip));
    EXPECT_EQ(alone->Wait(), 0) << alone->errors();
    hashes[clip] = Result(0).weights_hash;
  }
  EXPECT_NE(hashes[""], hashes[" --clip_norm 0.2"]);
  for (const auto& [servers, flags, clip] : {std::tuple{2, "--transport shm", ""},
                                             {3, "--transport tcp", ""},
                                             {3, "--transport shm", " --clip_norm 0.2"}}) {
    SCOPED_TRACE(absl::StrCat(servers, " ", flags, clip));
    store_ = *RendezvousServer::Start("127.0.0.1", 0, TestSecret());
    std::vector<std::unique_ptr<Child>> children;
    for (int server = 0; server < servers; ++server) children.push_back(StartServer(server, servers, 2));
    for (int rank = 0; rank < 2; ++rank) {
      children.push_back(StartTrainer(
          rank, 2,
          absl::StrCat("--strategy ps-sync --deterministic --servers ", servers, " ", flags, kShort, clip)));
    }
    for (const auto& child : children) EXPECT_EQ(child->Wait(), 0) << child->errors();
    EXPECT_EQ(Result(0).weights_hash, hashes[clip]);
    EXPECT_EQ(Result(1).weights_hash, hashes[clip]);
    uint64_t received = 0;
    for (int server = 0; server < servers; ++server) {
      const auto served =
          ServerResultFromJson(
              ReadFile((dir_ / absl::StrCat("result-server", server, ".json")).string()).value_or(""))
              .value();
      EXPECT_EQ(served.server, server);
      received += served.payload_rx_bytes;
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
    store_ = *RendezvousServer::Start("127.0.0.1", 0, TestSecret());
    const int servers = flags.find("--servers 2") != std::string::npos ? 2 : 3;
    std::vector<std::unique_ptr<Child>> children;
    for (int server = 0; server < servers; ++server) children.push_back(StartServer(server, servers, 3));
    for (int rank = 0; rank < 3; ++rank)
      children.push_back(StartTrainer(rank, 3, absl::StrCat(flags, kShort)));
    for (const auto& child : children) EXPECT_EQ(child->Wait(), 0) << child->errors();
    for (int rank = 1; rank < 3; ++rank) EXPECT_EQ(Result(rank).weights_hash, Result(0).weights_hash);
    const bool half = flags.find("--wire") != std::string::npos;
    std::ifstream steps(dir_ / "records" / "steps-rank0.jsonl");
    for (std::string line; std::getline(steps, line);) {
      const auto record = StepRecordFromJson(line).value();
      if (record.dropped) continue;
      EXPECT_EQ(record.payload_tx_bytes, SentElements(Result(0)) * (half ? 2 : 4));
      EXPECT_EQ(record.payload_rx_bytes, SentElements(Result(0)) * 4);
    }
  }
}

TEST_F(TrainerProcess, BoundedStalenessAndBackupWorkersRunAsProcesses) {
  for (const std::string strategy : {"ps-ssp:1", "ps-backup:1"}) {
    SCOPED_TRACE(strategy);
    store_ = *RendezvousServer::Start("127.0.0.1", 0, TestSecret());
    Child server(
        "server-" + strategy, dir_,
        {PSRING_PS_SERVER, "--workers", "3", "--rendezvous", Rendezvous(), "--record", dir_.string()},
        Environment(0, 3));
    std::vector<std::unique_ptr<Child>> ranks;
    for (int rank = 0; rank < 3; ++rank)
      ranks.push_back(StartTrainer(rank, 3, absl::StrCat("--strategy ", strategy, kShort)));
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks[rank]->Wait(), 0) << ranks[rank]->errors();
    EXPECT_EQ(server.Wait(), 0) << server.errors();
    const auto served =
        ServerResultFromJson(ReadFile((dir_ / "result-server0.json").string()).value_or("")).value();
    int64_t dropped = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const RankResult result = Result(rank);
      EXPECT_EQ(result.strategy, strategy);
      EXPECT_EQ(result.weights_hash, Result(0).weights_hash);
      EXPECT_LE(result.staleness_max, strategy == "ps-ssp:1" ? 3 * 2 : 0);
      dropped += result.dropped_gradients;
    }
    EXPECT_EQ(served.dropped_gradients, dropped);
    const int64_t gradients = strategy == "ps-ssp:1" ? 6 * 3 : 6 * 2;
    EXPECT_EQ(served.pushes, gradients * static_cast<int64_t>(Result(0).bucket_elements.size()));
  }
}

TEST_F(TrainerProcess, TheServersPayloadIsAsRequestedAndGivesTheSameBits) {
  std::set<std::string> hashes;
  for (const std::string transport : {"tcp", "shm", "auto"}) {
    SCOPED_TRACE(transport);
    store_ = *RendezvousServer::Start("127.0.0.1", 0, TestSecret());
    Child server("server-" + transport, dir_,
                 {PSRING_PS_SERVER, "--workers", "2", "--rendezvous", Rendezvous()}, Environment(0, 2));
    std::vector<std::unique_ptr<Child>> ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks.push_back(StartTrainer(
          rank, 2, absl::StrCat("--strategy ps-sync --deterministic --transport ", transport, kShort)));
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks[rank]->Wait(), 0) << ranks[rank]->errors();
    EXPECT_EQ(server.Wait(), 0) << server.errors();
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(Result(rank).payload, transport == "tcp" ? "grpc" : "shm");
      EXPECT_EQ(Result(rank).wires,
                std::vector<std::string>{transport == "tcp" ? "gRPC over TCP" : "shared memory"});
      hashes.insert(Result(rank).weights_hash);
    }
  }
  EXPECT_EQ(hashes.size(), 1);
}

TEST_F(TrainerProcess, DescribesItsTables) {
  const auto child = StartAlone("--describe");
  EXPECT_EQ(child->Wait(), 0);
  for (const char* part :
       {"\"ps-async\"", "\"parameter_server\"", "\"parameters\": 1863690", "\"synthetic\""}) {
    EXPECT_NE(child->output().find(part), std::string::npos) << part;
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
           {"--data synthetic --strategy ps-sync --backend gloo", 2, "has no collectives"},
           {"--data synthetic --strategy gloo --backend mpi", 2, "which always uses gloo"},
           {"--data synthetic --transport tcp", 2, "which does not communicate"},
           {"--data synthetic --device cuda:999", 1, "no CUDA device"},
           // Ranks of mpirun are never single processes, even without a rendezvous.
           {"--data synthetic", 2, "MASTER_ADDR", {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"}},
       }) {
    const auto child = StartAlone(bad.flags, bad.environment);
    EXPECT_EQ(child->Wait(), bad.code) << bad.flags;
    const std::string errors = child->errors();
    EXPECT_NE(errors.find(bad.message), std::string::npos) << bad.flags << ": " << errors;
    EXPECT_TRUE(errors.starts_with("trainer: ")) << bad.flags << ": " << errors;
    EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << bad.flags << ": " << errors;
  }
}

}  // namespace
}  // namespace psring
