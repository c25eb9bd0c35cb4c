// The real programs, as a launcher starts them: ranks connect over TCP, exchange gradients over TCP or gRPC,
// and write their records.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// A child process, with its output in files.
class Child {
 public:
  Child(const std::string& name, const fs::path& dir, std::vector<std::string> arguments,
        std::vector<std::string> environment)
      : output_(dir / (name + ".out")), errors_(dir / (name + ".err")) {
    std::vector<char*> argv, envp;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    for (std::string& variable : environment) envp.push_back(variable.data());
    envp.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
      dup2(open(errors_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
      execve(argv[0], argv.data(), envp.data());
      _exit(127);
    }
  }
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  // The exit code; 128 + the signal's number; -1 if it still runs after a minute.
  int Wait() {
    for (const absl::Time deadline = absl::Now() + absl::Minutes(1); absl::Now() < deadline;) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    return -1;
  }
  void Signal(int signal) { kill(pid_, signal); }
  std::string output() const { return ReadFile(output_.string()).value_or(""); }
  std::string errors() const { return ReadFile(errors_.string()).value_or(""); }

 private:
  const fs::path output_, errors_;
  pid_t pid_ = 0;
};

class TrainerProcess : public testing::Test {
 protected:
  TrainerProcess()
      : dir_(fs::temp_directory_path() /
             absl::StrCat("psring-trainer-", getpid(), "-",
                          absl::StrReplaceAll(testing::UnitTest::GetInstance()->current_test_info()->name(),
                                              {{"/", "-"}}))),
        store_(*RendezvousServer::Start("127.0.0.1", 0)) {
    fs::create_directories(dir_);
  }
  ~TrainerProcess() override { fs::remove_all(dir_); }

  std::string Rendezvous() const { return absl::StrCat("tcp://127.0.0.1:", store_->port()); }

  std::vector<std::string> Environment(int rank, int world_size) const {
    return {absl::StrCat("RANK=", rank), absl::StrCat("LOCAL_RANK=", rank),
            absl::StrCat("WORLD_SIZE=", world_size), "PSRING_STORE_HOSTED=1", "OMP_NUM_THREADS=1"};
  }

  std::unique_ptr<Child> StartTrainer(int rank, int world_size, const std::string& flags) {
    std::vector<std::string> arguments = {PSRING_TRAINER, "--rendezvous", Rendezvous(), "--record",
                                          (dir_ / "records").string()};
    for (const auto flag : absl::StrSplit(flags, ' ')) arguments.emplace_back(flag);
    return std::make_unique<Child>(absl::StrCat("trainer", rank), dir_, arguments,
                                   Environment(rank, world_size));
  }
  std::unique_ptr<Child> StartServer(int server, int servers, int workers) {
    return std::make_unique<Child>(
        absl::StrCat("server", server), dir_,
        std::vector<std::string>{PSRING_PS_SERVER, "--workers", absl::StrCat(workers), "--server",
                                 absl::StrCat(server), "--servers", absl::StrCat(servers), "--rendezvous",
                                 Rendezvous(), "--record", dir_.string()},
        Environment(0, workers));
  }
  // Without a rendezvous.
  std::unique_ptr<Child> StartAlone(const std::string& flags, std::vector<std::string> environment = {}) {
    std::vector<std::string> arguments = {PSRING_TRAINER};
    for (const auto flag : absl::StrSplit(flags, ' ')) arguments.emplace_back(flag);
    return std::make_unique<Child>("alone", dir_, arguments, environment);
  }

  RankResult Result(int rank) const {
    const auto text = ReadFile((dir_ / "records" / absl::StrCat("result-rank", rank, ".json")).string());
    EXPECT_TRUE(text.ok()) << text.status();
    const auto result = RankResultFromJson(text.value_or(""));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(RankResult());
  }

  const fs::path dir_;
  std::unique_ptr<RendezvousServer> store_;
};

constexpr char kShort[] = " --model mlp-small --data synthetic --steps 6 --batch 16 --check_replicas";

TEST_F(TrainerProcess, ARingOfTwoOverTcpHasEqualReplicasAndWritesRecords) {
  std::vector<std::unique_ptr<Child>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(
        StartTrainer(rank, 2, absl::StrCat("--progress json --strategy ring --transport tcp", kShort)));
  }
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks[rank]->Wait(), 0) << ranks[rank]->errors();
  const RankResult result0 = Result(0), result1 = Result(1);
  EXPECT_EQ(result0.weights_hash, result1.weights_hash);
  EXPECT_EQ(result0.transport, "tcp");
  EXPECT_EQ(result0.algorithm, "ring");
  EXPECT_EQ(result0.global_batch, 32);
  ASSERT_EQ(result0.curve.size(), 1);
  EXPECT_TRUE(result1.curve.empty());
  for (int rank = 0; rank < 2; ++rank) {
    std::ifstream steps(dir_ / "records" / absl::StrCat("steps-rank", rank, ".jsonl"));
    int64_t count = 0;
    for (std::string line; std::getline(steps, line); ++count) {
      const auto record = StepRecordFromJson(line);
      ASSERT_TRUE(record.ok()) << record.status();
      EXPECT_EQ(record->step, count);
      // 2(N-1)/N of the gradient with N = 2 is one gradient.
      EXPECT_NEAR(record->payload_tx_bytes, result0.parameters * 4, 16);
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

TEST_F(TrainerProcess, ADeterministicServerOverGrpcEqualsTheReference) {
  Child server("server", dir_,
               {PSRING_PS_SERVER, "--workers", "2", "--rendezvous", Rendezvous(), "--record", dir_.string()},
               Environment(0, 2));
  std::vector<std::unique_ptr<Child>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(StartTrainer(rank, 2, absl::StrCat("--strategy ps-sync --deterministic", kShort)));
  }
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
    store_ = *RendezvousServer::Start("127.0.0.1", 0);
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
      const auto served = ServerResultFromJson(
          ReadFile((dir_ / absl::StrCat("result-server", server, ".json")).string()).value_or(""));
      ASSERT_TRUE(served.ok()) << served.status();
      EXPECT_EQ(served->server, server);
      received += served->payload_rx_bytes;
    }
    EXPECT_EQ(received, 6 * 2 * 4 * static_cast<uint64_t>(Result(0).parameters));
  }
}

TEST_F(TrainerProcess, BackupWorkersOnSeveralServersAndGradientsIn16BitsRunAsProcesses) {
  for (const std::string flags :
       {"--strategy ps-backup:1 --servers 3",
        "--strategy ps-backup:1 --servers 2 --clip_norm 0.5 --wire bfloat16",
        "--strategy ps-async --servers 2 --staleness_lr inverse --wire float16 --transport shm",
        "--strategy ps-sync --server_placement colocated --wire bfloat16 --transport tcp"}) {
    SCOPED_TRACE(flags);
    store_ = *RendezvousServer::Start("127.0.0.1", 0);
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
      const auto record = StepRecordFromJson(line);
      ASSERT_TRUE(record.ok()) << record.status();
      if (record->dropped) continue;
      EXPECT_EQ(record->payload_tx_bytes, Result(0).parameters * (half ? 2 : 4));
      EXPECT_EQ(record->payload_rx_bytes, Result(0).parameters * 4);
    }
  }
}

TEST_F(TrainerProcess, BoundedStalenessAndBackupWorkersRunAsProcesses) {
  for (const std::string strategy : {"ps-ssp:1", "ps-backup:1"}) {
    SCOPED_TRACE(strategy);
    store_ = *RendezvousServer::Start("127.0.0.1", 0);
    Child server(
        "server-" + strategy, dir_,
        {PSRING_PS_SERVER, "--workers", "3", "--rendezvous", Rendezvous(), "--record", dir_.string()},
        Environment(0, 3));
    std::vector<std::unique_ptr<Child>> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.push_back(StartTrainer(rank, 3, absl::StrCat("--strategy ", strategy, kShort)));
    }
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks[rank]->Wait(), 0) << ranks[rank]->errors();
    EXPECT_EQ(server.Wait(), 0) << server.errors();
    const auto served = ServerResultFromJson(ReadFile((dir_ / "result-server0.json").string()).value_or(""));
    ASSERT_TRUE(served.ok()) << served.status();
    int64_t dropped = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const RankResult result = Result(rank);
      EXPECT_EQ(result.strategy, strategy);
      EXPECT_EQ(result.weights_hash, Result(0).weights_hash);
      EXPECT_LE(result.staleness_max, strategy == "ps-ssp:1" ? 3 * 2 : 0);
      dropped += result.dropped_gradients;
    }
    EXPECT_EQ(served->dropped_gradients, dropped);
    const int64_t gradients = strategy == "ps-ssp:1" ? 6 * 3 : 6 * 2;
    EXPECT_EQ(served->pushes, gradients * static_cast<int64_t>(Result(0).bucket_elements.size()));
  }
}

// Names in /dev/shm that may be psring's.
std::set<std::string> SharedFiles() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.find("psring") != std::string::npos) names.insert(name);
  }
  return names;
}

TEST_F(TrainerProcess, TheServersPayloadIsAsRequestedAndGivesTheSameBits) {
  std::set<std::string> hashes;
  for (const std::string transport : {"tcp", "shm", "auto"}) {
    SCOPED_TRACE(transport);
    store_ = *RendezvousServer::Start("127.0.0.1", 0);
    Child server("server-" + transport, dir_,
                 {PSRING_PS_SERVER, "--workers", "2", "--rendezvous", Rendezvous()}, Environment(0, 2));
    std::vector<std::unique_ptr<Child>> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(StartTrainer(
          rank, 2, absl::StrCat("--strategy ps-sync --deterministic --transport ", transport, kShort)));
    }
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks[rank]->Wait(), 0) << ranks[rank]->errors();
    EXPECT_EQ(server.Wait(), 0) << server.errors();
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(Result(rank).payload, transport == "tcp" ? "grpc" : "shm");
      hashes.insert(Result(rank).weights_hash);
    }
  }
  EXPECT_EQ(hashes.size(), 1);
}

class Killed : public TrainerProcess, public testing::WithParamInterface<std::string> {};

TEST_P(Killed, OverSharedMemoryStopsTheRestAndLeavesNoFiles) {
  const bool kill_server = GetParam() == "server";
  const std::set<std::string> before = SharedFiles();
  Child server("server", dir_, {PSRING_PS_SERVER, "--workers", "2", "--rendezvous", Rendezvous()},
               Environment(0, 2));
  const std::string flags =
      "--strategy ps-sync --transport shm --model mlp-small --data synthetic --steps 1000000 --progress json "
      "--no_eval";
  const auto rank0 = StartTrainer(0, 2, flags);
  const auto rank1 = StartTrainer(1, 2, flags);
  for (int i = 0; i < 2000 && rank0->output().find("\"step\"") == std::string::npos; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  const absl::Time begin = absl::Now();
  if (kill_server) {
    server.Signal(SIGKILL);
    EXPECT_EQ(rank1->Wait(), 1);
  } else {
    rank1->Signal(SIGKILL);
    EXPECT_EQ(server.Wait(), 1);
    EXPECT_NE(server.errors().find("worker 1 was lost"), std::string::npos) << server.errors();
  }
  EXPECT_EQ(rank0->Wait(), 1);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  const std::string says = kill_server ? "lost the parameter server" : "worker 1 was lost";
  EXPECT_NE(rank0->errors().find(says), std::string::npos) << rank0->errors();
  EXPECT_EQ(SharedFiles(), before);
}

INSTANTIATE_TEST_SUITE_P(TrainerProcess, Killed, testing::Values("worker", "server"),
                         [](const auto& info) { return info.param; });

TEST_F(TrainerProcess, NamesRanksWithDifferentFlags) {
  const auto rank0 = StartTrainer(0, 2, absl::StrCat("--strategy ring", kShort));
  const auto rank1 = StartTrainer(1, 2, absl::StrCat("--strategy ring --lr 0.5", kShort));
  EXPECT_EQ(rank0->Wait(), 1);
  EXPECT_EQ(rank1->Wait(), 1);
  EXPECT_NE(rank0->errors().find("trainer: rank 0: "), std::string::npos) << rank0->errors();
  EXPECT_NE(rank0->errors().find("--lr=0.5"), std::string::npos) << rank0->errors();
}

TEST_F(TrainerProcess, AKilledRankStopsTheOther) {
  const std::string flags =
      "--strategy ring --model mlp-small --data synthetic --steps 1000000 --progress json --no_eval";
  const auto rank0 = StartTrainer(0, 2, flags);
  const auto rank1 = StartTrainer(1, 2, flags);
  for (int i = 0; i < 2000 && rank0->output().find("\"step\"") == std::string::npos; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  rank1->Signal(SIGKILL);
  const absl::Time begin = absl::Now();
  EXPECT_EQ(rank0->Wait(), 1);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  EXPECT_NE(rank0->errors().find("rank 1"), std::string::npos) << rank0->errors();
  EXPECT_NE(rank0->errors().find("step "), std::string::npos) << rank0->errors();
  EXPECT_FALSE(fs::exists(dir_ / "records" / "result-rank0.json"));
}

TEST_F(TrainerProcess, ATerminatedRankStopsAndReportsIt) {
  const std::string flags =
      "--strategy ring --model mlp-small --data synthetic --steps 1000000 --progress json --no_eval";
  const auto rank0 = StartTrainer(0, 2, flags);
  const auto rank1 = StartTrainer(1, 2, flags);
  for (int i = 0; i < 2000 && rank0->output().find("\"step\"") == std::string::npos; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  rank0->Signal(SIGTERM);
  EXPECT_EQ(rank0->Wait(), 143);
  EXPECT_NE(rank0->errors().find("stopped by SIGTERM"), std::string::npos) << rank0->errors();
  EXPECT_EQ(rank1->Wait(), 1);
  EXPECT_NE(rank1->errors().find("rank 0"), std::string::npos) << rank1->errors();
}

TEST_F(TrainerProcess, IgnoresASigintThatItsParentIgnored) {
  Child trainer(
      "alone", dir_,
      {"/bin/sh", "-c",
       absl::StrCat("trap '' HUP INT; exec ", PSRING_TRAINER,
                    " --strategy single --model mlp-small --data synthetic --steps 1000000 --no_eval "
                    "--progress json")},
      {});
  const auto trains = [&](size_t bytes) {
    for (int i = 0; i < 2000 && trainer.output().size() < bytes; ++i) absl::SleepFor(absl::Milliseconds(10));
    return trainer.output().size() >= bytes && trainer.output().find("\"step\"") != std::string::npos;
  };
  ASSERT_TRUE(trains(1000)) << trainer.errors();
  for (const int signal : {SIGHUP, SIGINT}) trainer.Signal(signal);
  EXPECT_TRUE(trains(trainer.output().size() + 1000)) << trainer.errors();
  trainer.Signal(SIGTERM);
  EXPECT_EQ(trainer.Wait(), 128 + SIGTERM);
}

TEST_F(TrainerProcess, RejectsASecondTrainerWithTheSameRecordFolder) {
  const std::string flags =
      absl::StrCat("--strategy single --model mlp-small --data synthetic --no_eval --record ",
                   (dir_ / "records").string(), " --steps ");
  const auto first = StartAlone(absl::StrCat(flags, "1000000 --progress json"));
  for (int i = 0; i < 2000 && first->output().find("\"step\"") == std::string::npos; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  std::vector<std::string> arguments = {PSRING_TRAINER};
  for (const auto flag : absl::StrSplit(absl::StrCat(flags, "3"), ' ')) arguments.emplace_back(flag);
  Child second("second", dir_, arguments, {});
  EXPECT_EQ(second.Wait(), 1);
  const std::string path = (dir_ / "records" / "steps-rank0.jsonl").string();
  EXPECT_EQ(second.errors(), absl::StrCat("trainer: cannot write ", path,
                                          ": another run is writing it; give each run its own --record "
                                          "folder\n"));
  first->Signal(SIGKILL);
  EXPECT_EQ(first->Wait(), 128 + SIGKILL);
  // A killed run does not block the folder.
  Child third("third", dir_, arguments, {});
  EXPECT_EQ(third.Wait(), 0) << third.errors();
  EXPECT_EQ(Result(0).steps, 3);
}

// The kernel ensures this even between the rank's start and MPI_Init.
TEST_F(TrainerProcess, ARankExitsIfMpirunIsKilled) {
  const std::string record = (dir_ / "orphan").string();
  const auto running = [&] {
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "cmdline");
      std::stringstream line;
      line << file.rdbuf();
      if (line.str().starts_with(PSRING_TRAINER) && line.str().find(record) != std::string::npos) return true;
    }
    return false;
  };
  const auto wait_for = [&](bool state) {
    for (int i = 0; i < 1000 && running() != state; ++i) absl::SleepFor(absl::Milliseconds(10));
    return running() == state;
  };
  Child mpirun(
      "mpirun", dir_,
      {"/bin/sh", "-c",
       absl::StrCat(PSRING_TRAINER, " --strategy none --data synthetic --steps 100000 --no_eval --record ",
                    record, " & wait")},
      {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1",
       absl::StrCat("MASTER_PORT=", store_->port()), "PSRING_STORE_HOSTED=1"});
  ASSERT_TRUE(wait_for(true));
  for (int i = 0; i < 1000 && !fs::exists(record); ++i) absl::SleepFor(absl::Milliseconds(10));
  mpirun.Signal(SIGKILL);
  EXPECT_TRUE(wait_for(false));
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
