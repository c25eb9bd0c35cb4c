// The real ps_server, and workers and servers that are killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <latch>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/deadline.h"
#include "common/base/own_process.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "common/net/address.h"
#include "common/rendezvous/rendezvous.h"
#include "ps_server/protocol/pieces.h"
#include "tests/eventually.h"
#include "tests/ps_server/server_process.h"
#include "tests/ps_server/test_job.h"
#include "tests/test_program.h"
#include "tests/test_secret.h"
#include "tests/waiting_thread.h"

namespace psring {
namespace {

using ::testing::HasSubstr;

std::string own_binary;

// The signals that a process catches, once SIGTERM is one of them: one bit per signal, beginning with SIGHUP.
uint64_t CaughtSignals(pid_t pid) {
  uint64_t caught = 0;
  EXPECT_TRUE(Eventually([&] {
    const std::string status = ReadFile(absl::StrCat("/proc/", pid, "/status")).value_or("");
    const size_t at = status.find("SigCgt:\t");
    return at != std::string::npos && absl::SimpleHexAtoi(status.substr(at + 8, 16), &caught) &&
           (caught >> (SIGTERM - 1) & 1) != 0;
  }));
  return caught;
}

class ProcessTest : public ::testing::Test {
 protected:
  std::vector<std::string> Command(int workers, const std::vector<std::string>& more = {}) const {
    return ServerCommand(PS_SERVER_BINARY, *store_, workers, more);
  }
  std::string Address() const { return AddressIn(*store_); }

  std::unique_ptr<RendezvousServer> store_ = NewStore();
};

std::unique_ptr<PsClient> ClientOf(const std::string& address) {
  return MakeGrpcPsClient(address, {.secret = TestSecret()});
}

// One worker trains three steps, and the server ends normally.
void ExpectTrains(Child& server, const std::string& address) {
  const ServerJob job = MakeJob(1, {300'000});
  TestWorker worker(job, 0, ClientOf(address));
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  ASSERT_EQ(worker.Steps(0, 3), absl::OkStatus());
  EXPECT_EQ(worker.weights, TrainAlone(job, 3));
  ASSERT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
  EXPECT_EQ(server.Wait(), 0) << server.both();
}

TEST_F(ProcessTest, ServesAJobWritesItsRecordAndExits) {
  const std::string folder = ::testing::TempDir();
  Child server(Command(2, {"--record", folder, "--timeout", "20"}));
  const std::string address = Address();
  const ServerJob job = MakeJob(2, {1000, kChunkBytes / sizeof(float) + 3}, {.deterministic = true});
  ForEachRank(2, [&](int rank) {
    TestWorker worker(job, rank, ClientOf(address));
    ASSERT_EQ(worker.Start(), absl::OkStatus());
    ASSERT_EQ(worker.Steps(0, 3), absl::OkStatus());
    EXPECT_EQ(worker.weights, TrainAlone(job, 3));
    EXPECT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
  });
  EXPECT_EQ(server.Wait(), 0) << server.both();
  EXPECT_EQ(server.both(), absl::StrCat("ps_server: serving 2 workers on ", WithoutToken(address), "\n"));
  const auto text = ReadFile(folder + "/result-server0.json");
  ASSERT_TRUE(text.ok()) << text.status();
  const auto result = ServerResultFromJson(*text);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->pushes, 12);
  EXPECT_EQ(result->payload_rx_bytes, job.parameters * 4 * 6);
  EXPECT_EQ(result->payload_tx_bytes, job.parameters * 4 * 6);
  EXPECT_EQ(result->staleness_histogram, std::vector<int64_t>{12});
  EXPECT_GT(result->peak_memory_mb, 1);
}

TEST_F(ProcessTest, WorkersReportAKilledServer) {
  Child server(Command(2));
  const std::string address = Address();
  const ServerJob job = MakeJob(2, {100000});
  std::latch stepped(2);
  ForEachRank(2, [&](int rank) {
    TestWorker worker(job, rank, ClientOf(address));
    EXPECT_EQ(worker.Start(), absl::OkStatus());
    EXPECT_EQ(worker.Step(0).status(), absl::OkStatus());
    stepped.arrive_and_wait();
    if (rank == 0) server.Signal(SIGKILL);
    const MonotonicTime killed = MonotonicNow();
    absl::Status status;
    for (int64_t step = 1; status.ok(); ++step) status = worker.Step(step).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("lost the parameter server at " + address));
    EXPECT_LT(MonotonicNow() - killed, absl::Seconds(30)) << "before any timeout";
  });
  EXPECT_EQ(server.Wait(), 128 + SIGKILL);
}

TEST_F(ProcessTest, WorkersReportAKilledWorker) {
  for (const std::string consistency : {"sync", "async"}) {
    store_ = NewStore();
    Child server(Command(3, {"--on_worker_loss", "stop"}));
    const std::string address = Address();
    const ServerJob job = MakeJob(3, {100000}, {.consistency = consistency});
    Child victim({own_binary, "--worker", address, "2", consistency});
    ForEachRank(2, [&](int rank) {
      TestWorker worker(job, rank, ClientOf(address));
      ASSERT_EQ(worker.Start(), absl::OkStatus());
      MonotonicTime killed = MonotonicTime::InfiniteFuture();
      absl::Status status;
      for (int64_t step = 0; status.ok(); ++step) {
        status = worker.Step(step).status();
        if (rank == 0 && step == 20) {
          victim.Signal(SIGKILL);
          killed = MonotonicNow();
        }
      }
      EXPECT_THAT(std::string(status.message()), HasSubstr("worker 2 was lost"));
      if (rank == 0) {
        EXPECT_LT(MonotonicNow() - killed, absl::Seconds(30)) << "before any timeout";
      }
    });
    EXPECT_EQ(server.Wait(), 1);
    EXPECT_THAT(server.both(), HasSubstr("ps_server: worker 2 was lost: its connection closed"));
    EXPECT_EQ(victim.Wait(), 128 + SIGKILL) << victim.both();
  }
}

TEST_F(ProcessTest, AbortEndsAnExchangeWithAStoppedServer) {
  Child server(Command(1));
  const std::string address = Address();
  TestWorker worker(MakeJob(1, {8'000'000}), 0, ClientOf(address));
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  server.Signal(SIGSTOP);
  std::string message;
  WaitingThread pushes([&] { message = std::string(worker.Step(0).status().message()); });
  worker.client->Abort(absl::CancelledError("enough"));
  pushes.Join();
  EXPECT_EQ(message, "enough");
}

TEST_F(ProcessTest, SigtermEndsItWithOneLine) {
  Child server(Command(2));
  const std::string address = Address();
  std::atomic<int> ended = 0;
  // The rejection of one worker 0 shows that the other has joined and waits for worker 1.
  ForEachRank(2, [&](int) {
    TestWorker worker(MakeJob(2, {10}), 0, ClientOf(address));
    const std::string message(worker.Start().message());
    if (absl::StrContains(message, "there is a worker 0 already")) return server.Signal(SIGTERM);
    EXPECT_THAT(message, HasSubstr("the parameter server received a signal to end"));
    ++ended;
  });
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(server.Wait(), 128 + SIGTERM);
  EXPECT_THAT(server.both(), HasSubstr("ps_server: the parameter server received a signal to end\n"));
}

TEST_F(ProcessTest, ASigintThatItsParentIgnoredDoesNotEndIt) {
  const std::vector<std::string> command = Command(1);
  Child server({"/bin/sh", "-c", absl::StrCat("trap '' INT; exec ", absl::StrJoin(command, " "))});
  const std::string address = Address();
  const uint64_t caught = CaughtSignals(server.pid());
  EXPECT_TRUE(caught >> (SIGTERM - 1) & 1);
  EXPECT_FALSE(caught >> (SIGINT - 1) & 1);
  server.Signal(SIGINT);
  ExpectTrains(server, address);
}

// A rank that has left the rendezvous cannot join later, also if the job would continue without it.
TEST_F(ProcessTest, ARankThatEndsBeforeItJoinsEndsTheJobAtOnceAndIsNamed) {
  auto one = Rendezvous::Join({.rank = 1,
                               .world_size = 2,
                               .host = "127.0.0.1",
                               .port = store_->port(),
                               .hosted_elsewhere = true,
                               .secret = TestSecret()});
  ASSERT_TRUE(one.ok()) << one.status();
  Child server(Command(2, {"--on_worker_loss", "continue", "--timeout", "600"}));
  const ServerJob job = MakeJob(2, {1000});
  TestWorker zero(job, 0, ClientOf(Address()));
  std::thread ends([&] { one->reset(); });
  const absl::Status status = zero.Start();
  ends.join();
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 (")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "while others waited for it to join the parameter server"))
      << status;
  EXPECT_EQ(server.Wait(), 1) << server.both();
  EXPECT_TRUE(absl::StrContains(server.both(), "ps_server: rank 1 (")) << server.both();
}

// The workers' deadlines begin earlier than the server's, which waits for the last arrival.
TEST_F(ProcessTest, TheServerNamesASilentWorkerBeforeTheOthersGiveUp) {
  Child server(Command(2, {"--timeout", "1"}));
  const std::string address = Address();
  const ServerJob job = MakeJob(2, {1000});
  std::latch ended(1);
  ForEachRank(2, [&](int rank) {
    TestWorker worker(job, rank,
                      MakeGrpcPsClient(address, {.secret = TestSecret(), .reply_timeout = absl::Seconds(1)}));
    ASSERT_EQ(worker.Start(), absl::OkStatus());
    if (rank == 1) return ended.wait();
    const absl::Status status = worker.Step(0).status();
    ended.count_down();
    EXPECT_TRUE(absl::StrContains(status.message(), "waited 1s for worker 1 ")) << status;
  });
  EXPECT_EQ(server.Wait(), 1) << server.both();
}

TEST_F(ProcessTest, BadInputIsOneLineAndExitCode2) {
  struct Case {
    std::vector<std::string> arguments;
    const char* error;
  };
  for (const Case& c :
       {Case{{"--workers", "0", "--rendezvous", "tcp://127.0.0.1:1"}, "--workers"},
        Case{{"--workers", "x", "--rendezvous", "tcp://127.0.0.1:1"}, "--workers"},
        Case{{"--rendezvous", "tcp://127.0.0.1:1"}, "--workers"},
        Case{{"--workers", "1", "--rendezvous", "carrier://pigeon"}, "carrier://pigeon"},
        Case{{"--workers", "4", "--checkpoint_every", "4611686018427387904"}, "--checkpoint_every"},
        Case{{"--worker", "1"}, "--workers"}}) {
    std::vector<std::string> command = {PS_SERVER_BINARY};
    command.insert(command.end(), c.arguments.begin(), c.arguments.end());
    Child server(command);
    EXPECT_EQ(server.Wait(), 2);
    const std::string output = server.both();
    EXPECT_THAT(output, HasSubstr(c.error));
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
  }
}

TEST_F(ProcessTest, APortInUseIsNamed) {
  Child server(Command(1));
  const std::string address = WithoutToken(Address());
  Child second(Command(1, {"--port", absl::StrCat(ParseAddress(address)->port)}));
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_THAT(second.both(), HasSubstr("ps_server: cannot listen on " + address));
}

TEST_F(ProcessTest, ANonexistentServerIsNamed) {
  TestWorker worker(MakeJob(1, {10}), 0, MakeGrpcPsClient("127.0.0.1:1", {.secret = TestSecret()}));
  const absl::Status status = worker.Start(MonotonicNow() + absl::Milliseconds(300));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no parameter server answered at 127.0.0.1:1"));
}

// Steps until it is killed.
int Work(const std::string& address, int rank, const std::string& consistency) {
  TestWorker worker(MakeJob(3, {100000}, {.consistency = consistency}), rank, ClientOf(address));
  absl::Status status = worker.Start();
  for (int64_t step = 0; status.ok(); ++step) status = worker.Step(step).status();
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) {
  if (argc >= 5 && std::string(argv[1]) == "--worker") {
    return psring::Work(argv[2], std::atoi(argv[3]), argv[4]);
  }
  psring::own_binary = *psring::OwnProgram();
  return psring::RunTests(argc, argv);
}
