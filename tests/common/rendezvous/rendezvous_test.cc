#include "common/rendezvous/rendezvous.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <latch>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/deadline.h"
#include "common/base/own_process.h"
#include "common/net/authentication.h"
#include "common/net/host_identity.h"
#include "common/net/tcp_socket.h"
#include "proto/rendezvous.grpc.pb.h"
#include "tests/has.h"
#include "tests/on_ranks.h"
#include "tests/random_moments.h"
#include "tests/test_secret.h"
#include "tests/waiting_thread.h"

extern char** environ;

namespace psring {
namespace {

RendezvousOptions Options(int rank, int world_size, int port, absl::Duration timeout = absl::Seconds(20)) {
  RendezvousOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.host = "127.0.0.1";
  options.port = port;
  options.hosted_elsewhere = true;
  options.timeout = timeout;
  options.secret = TestSecret();
  return options;
}

int FreePort() { return ListenTcp("127.0.0.1")->port; }

class RendezvousTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = RendezvousServer::Start("127.0.0.1", 0, TestSecret()).value();
    server_ = std::move(server);
  }

  std::unique_ptr<Rendezvous> Join(int rank, int world_size, absl::Duration timeout = absl::Seconds(20)) {
    auto rendezvous = Rendezvous::Join(Options(rank, world_size, server_->port(), timeout));
    EXPECT_TRUE(rendezvous.ok()) << rendezvous.status();
    return rendezvous.ok() ? *std::move(rendezvous) : nullptr;
  }

  std::unique_ptr<RendezvousServer> server_;
};

TEST_F(RendezvousTest, RanksExchangeSetAndGet) {
  constexpr int kRanks = 4;
  OnRanks(kRanks, [&](int rank) {
    auto rendezvous = Join(rank, kRanks);
    ASSERT_NE(rendezvous, nullptr);
    const std::string binary("\0\xff ", 3);
    for (int round = 0; round < 20; ++round) {
      const auto values = rendezvous->Exchange("x", binary + std::to_string(rank * 100 + round)).value();
      ASSERT_EQ(values.size(), kRanks);
      for (int other = 0; other < kRanks; ++other)
        ASSERT_EQ(values[other], binary + std::to_string(other * 100 + round));
    }
    ASSERT_TRUE(rendezvous->Set("key " + std::to_string(rank), binary).ok());
    EXPECT_EQ(rendezvous->Get("key " + std::to_string((rank + 1) % kRanks), "a neighbor").value(), binary);
  });
}

TEST_F(RendezvousTest, ProcessWithoutARankSetsAndGets) {
  auto rank = Join(0, 1);
  auto server = Rendezvous::Connect(Options(0, 1, server_->port())).value();
  ASSERT_TRUE(server->Set("address", "here").ok());
  EXPECT_EQ(*rank->Get("address", "the server"), "here");
  EXPECT_EQ(server->Exchange("x", "").status().message(), "exchange 'x' is only for ranks that have joined");
}

TEST_F(RendezvousTest, DeadlineNamesTheMissingRanks) {
  auto zero = Join(0, 4, absl::Seconds(1));
  auto one = Join(1, 4, absl::Seconds(1));
  const absl::Status status = one->Exchange("start", "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              testing::StartsWith("waited 1 s for ranks 0, 2 and 3 at exchange 'start'; ranks 2 and 3 never "
                                  "joined; joined: rank 0 ("));
  EXPECT_THAT(status.message(), Has(", rank 1 ("));
  EXPECT_EQ(zero->Exchange("start", "").status(), status) << "a failed exchange stays failed";
  EXPECT_EQ(zero->Get("k", "the server's address").status().message(),
            "waited 1 s for the server's address ('k')");
}

TEST_F(RendezvousTest, ARankThatEndsIsNamedAlsoIfItHasNotJoined) {
  auto zero = Join(0, 3), one = Join(1, 3);
  EXPECT_EQ(zero->CheckRanks("to connect"), absl::OkStatus()) << "rank 2 may still join";
  server_->RankEnded(2, "rank 2 was killed by SIGKILL");
  EXPECT_EQ(zero->CheckRanks("to connect"), absl::UnavailableError("rank 2 was killed by SIGKILL"));
  EXPECT_EQ(zero->Exchange("start", "").status(), absl::UnavailableError("rank 2 was killed by SIGKILL"));
  server_->RankEnded(1, "rank 1 was killed by SIGKILL");
  const absl::Status lost = zero->CheckRanks("to connect");
  EXPECT_THAT(lost.message(), Has("has died while others waited for it to connect"));
}

TEST_F(RendezvousTest, TakenRankNamesItsOwner) {
  auto one = Join(1, 2);
  const auto twin = Rendezvous::Join(Options(1, 2, server_->port()));
  EXPECT_EQ(twin.status().code(), absl::StatusCode::kAlreadyExists);
  const std::string self = absl::StrCat(HostName(), ":", ::getpid());
  EXPECT_EQ(twin.status().message(), self + " claims to be rank 1, which is taken by " + self +
                                         "; give every process a rank of its own");
}

TEST_F(RendezvousTest, DifferentWorldSizesAreRejected) {
  auto zero = Join(0, 2);
  const auto other = Rendezvous::Join(Options(1, 3, server_->port()));
  EXPECT_THAT(other.status().message(), Has("is 3, that of rank 0"));
  EXPECT_EQ(Rendezvous::Join(Options(3, 3, server_->port())).status().message(),
            "rank 3 does not exist in a world size of 3");
  // A wait for the rejected rank ends with the reason.
  const MonotonicTime begin = MonotonicNow();
  EXPECT_THAT(zero->Exchange("begin", "").status().message(), Has("the world size of rank 1"));
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(15)) << "before any timeout";
}

TEST_F(RendezvousTest, SomeRanksExchangeAmongThemselves) {
  OnRanks(5, [&](int rank) {
    auto rendezvous = Join(rank, 5);
    ASSERT_NE(rendezvous, nullptr);
    // Two parts: odd ranks in reverse order, even ranks in order.
    const std::vector<int> ranks = rank % 2 == 1 ? std::vector<int>{3, 1} : std::vector<int>{0, 2, 4};
    const auto part = MakePartRendezvous(*rendezvous, ranks, rank % 2 == 1 ? "odd" : "even");
    EXPECT_EQ(part->options().world_size, static_cast<int>(ranks.size()));
    EXPECT_EQ(ranks[part->options().rank], rank);
    for (int round = 0; round < 3; ++round) {
      const auto values = part->Exchange("x", std::to_string(rank)).value();
      for (size_t i = 0; i < ranks.size(); ++i) EXPECT_EQ(values[i], std::to_string(ranks[i]));
    }
    EXPECT_TRUE(part->Set("key", "").ok());
    EXPECT_EQ(rendezvous->Exchange("all", "").value_or(std::vector<std::string>()).size(), 5);
  });
}

TEST_F(RendezvousTest, RequireEqualNamesTheFirstRankThatDiffers) {
  OnRanks(3, [&](int rank) {
    auto rendezvous = Join(rank, 3);
    ASSERT_NE(rendezvous, nullptr);
    EXPECT_TRUE(RequireEqual(*rendezvous, "--batch", "128").ok());
    const absl::Status status = RequireEqual(*rendezvous, "--model", rank == 2 ? "cnn" : "mlp");
    EXPECT_EQ(status.message(), "--model is 'cnn' at rank 2 but 'mlp' at rank 0");
  });
}

TEST_F(RendezvousTest, RequireEqualShowsTheBeginOfAValueWithoutControlCharacters) {
  OnRanks(2, [&](int rank) {
    auto rendezvous = Join(rank, 2);
    ASSERT_NE(rendezvous, nullptr);
    const std::string hostile = absl::StrCat("\x1b[2J\xff\n", std::string(1 << 20, 'x'));
    for (const absl::Status& status : {RequireEqual(*rendezvous, "--model", rank == 1 ? hostile : "mlp"),
                                       RequireEqualFlags(*rendezvous, {rank == 1 ? hostile : "mlp"})}) {
      EXPECT_THAT(status.message(), testing::AllOf(Has("\\x1b[2J\\xff"), Lacks("\n")));
      EXPECT_LT(status.message().size(), 2000u);
    }
  });
}

TEST_F(RendezvousTest, RandomBytesOnThePortDoNoHarm) {
  auto zero = Join(0, 2);
  std::thread exchanges([&] { EXPECT_TRUE(zero->Exchange("x", "").ok()); });
  uint64_t random = TestSeed();
  for (int i = 0; i < 20; ++i) {
    const auto client = ConnectTcp("127.0.0.1", server_->port(), MonotonicNow() + absl::Seconds(20)).value();
    char bytes[4096];
    for (char& byte : bytes) byte = static_cast<char>((random = random * 6364136223846793005 + 1) >> 56);
    // Half of them begin as HTTP/2 does.
    const std::string preface = i % 2 == 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";
    (void)!::send(client.get(), preface.data(), preface.size(), MSG_NOSIGNAL);
    (void)!::send(client.get(), bytes, sizeof(bytes), MSG_NOSIGNAL);
  }
  auto one = Join(1, 2);
  EXPECT_TRUE(one->Exchange("x", "").ok());
  exchanges.join();
}

TEST_F(RendezvousTest, RankThatLeavesEndsTheWaitsForIt) {
  auto zero = Join(0, 2);
  auto one = Join(1, 2);
  std::thread leaves([&] { one.reset(); });  // before or after the wait begins
  const absl::Status status = zero->Exchange("x", "").status();
  leaves.join();
  EXPECT_THAT(status.message(), Has("has left while others waited for it at exchange 'x'"));
}

TEST_F(RendezvousTest, EndOfTheStoreIsNamed) {
  auto zero = Join(0, 2);
  std::thread ends([&] { server_.reset(); });  // waits for rank 0 until its deadline
  const absl::Status status = zero->Exchange("x", "").status();
  ends.join();
  EXPECT_EQ(status.message(), "the rendezvous store has been closed by its host");
  EXPECT_THAT(zero->Set("k", "v").message(), Has("lost the rendezvous store at 127.0.0.1:"));
}

TEST_F(RendezvousTest, OtherProcessesNameAFailureInsteadOfItsConsequence) {
  auto first = Join(0, 2), second = Join(1, 2);
  const absl::Status lost = absl::UnavailableError("lost the connection to rank 0");
  EXPECT_EQ(WithReportedFailure(*second, lost), lost) << "no failure was told";
  PublishFailure(*first, "rank 0: cannot write F: No space left on device");
  first.reset();  // the others may fail after it has left
  EXPECT_EQ(WithReportedFailure(*second, lost),
            absl::UnavailableError("ended because of rank 0: cannot write F: No space left on device"));
  EXPECT_EQ(WithReportedFailure(*second, absl::OkStatus()), absl::OkStatus());
  PublishFailure(*second, "rank 1: \x1b[2J\n\xff");
  EXPECT_EQ(WithReportedFailure(*second, lost).message(), "ended because of rank 1: \\x1b[2J\\x0a\\xff");
  PublishFailure(*second, std::string(1 << 20, 'x'));
  EXPECT_LT(WithReportedFailure(*second, lost).message().size(), 2000u);
  const absl::Status silence = absl::DeadlineExceededError("waited 60 s for rank 0");
  EXPECT_EQ(WithReportedFailure(*second, silence), silence);
}

// The child of DeathOfAProcessEndsTheWaitsForIt: joins as rank 1 and waits to be killed.
TEST(RendezvousChild, DISABLED_JoinsAndWaits) {
  auto rendezvous = Rendezvous::Join(Options(1, 2, std::atoi(std::getenv("PSRING_TEST_PORT")))).value();
  ASSERT_TRUE(rendezvous->Exchange("both are here", "").ok());
  (void)rendezvous->Get("never", "the end");
}

TEST_F(RendezvousTest, DeathOfAProcessEndsTheWaitsForIt) {
  ASSERT_EQ(::setenv("PSRING_TEST_PORT", std::to_string(server_->port()).c_str(), 1), 0);
  std::string program = *OwnProgram(), filter = "--gtest_filter=RendezvousChild.*",
              disabled = "--gtest_also_run_disabled_tests";
  char* arguments[] = {program.data(), filter.data(), disabled.data(), nullptr};
  pid_t child = 0;
  ASSERT_EQ(::posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ), 0);
  auto zero = Join(0, 2);
  const absl::Status together = zero->Exchange("both are here", "").status();
  const MonotonicTime killed = MonotonicNow();
  ::kill(child, SIGKILL);
  ASSERT_TRUE(together.ok()) << together;
  const absl::Status status = zero->Exchange("after its death", "").status();
  EXPECT_LT(MonotonicNow() - killed, absl::Seconds(15)) << "before any timeout";
  EXPECT_THAT(status.message(), Has("has died while others waited for it", std::to_string(child)));
  ::waitpid(child, nullptr, 0);
}

TEST(Rendezvous, RankZeroHostsTheStoreAndOthersMayStartEarlier) {
  const int port = FreePort();
  MonotonicTime served;
  std::atomic<pid_t> threads[3] = {};
  OnRanks(3, [&](int rank) {
    threads[rank] = gettid();
    RendezvousOptions options = Options(rank, 3, port);
    options.hosted_elsewhere = false;
    if (rank == 0) {
      for (const int other : {1, 2}) EXPECT_TRUE(AwaitSleepOf(threads[other]));
      served = MonotonicNow();
    }
    auto rendezvous = Rendezvous::Join(options).value();
    ASSERT_TRUE(rendezvous->Exchange("start", "").ok());
    if (rank == 0) RecordProperty("ms_until_all_met", absl::ToInt64Milliseconds(MonotonicNow() - served));
    EXPECT_LT(MonotonicNow() - served, absl::Seconds(10)) << "connections are retried after at most 100 ms";
  });
}

// The last replies to the others are in transit when rank 0 leaves, and with it the store.
TEST(Rendezvous, OthersDoNotFailWhenRankZeroLeavesFirst) {
  for (int repeat = 0; repeat < 3; ++repeat) {
    RendezvousOptions options = Options(0, 4, 0);
    options.hosted_elsewhere = false;
    auto host = Rendezvous::Join(options);
    ASSERT_TRUE(host.ok()) << host.status();
    const int port = (*host)->options().port;
    std::latch others(3);
    OnRanks(4, [&](int rank) {
      auto rendezvous = rank == 0 ? std::move(host) : Rendezvous::Join(Options(rank, 4, port));
      ASSERT_TRUE(rendezvous.ok()) << rendezvous.status();
      const std::string large(1 << 20, 'x');
      const auto values = (*rendezvous)->Exchange("end", large);
      EXPECT_TRUE(values.ok()) << values.status();
      if (rank != 3) return others.count_down();
      // The store waits for the last rank's calls, too.
      others.wait();
      EXPECT_TRUE((*rendezvous)->Set("late", "").ok());
    });
  }
}

TEST(Rendezvous, TheConnectionOfRankZeroDoesNotDelayTheEndOfItsStore) {
  const MonotonicTime begin = MonotonicNow();
  for (int repeat = 0; repeat < 5; ++repeat) {
    RendezvousOptions options = Options(0, 1, 0);
    options.hosted_elsewhere = false;
    ASSERT_TRUE(Rendezvous::Join(options).ok());
  }
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(5)) << "each waited a second for an open connection";
}

TEST(Rendezvous, APortInUseIsAnError) {
  const TcpListener other = *ListenTcp("127.0.0.1");
  RendezvousOptions options = Options(0, 2, other.port);
  options.hosted_elsewhere = false;
  const MonotonicTime begin = MonotonicNow();
  EXPECT_EQ(Rendezvous::Join(options).status().message(),
            "port " + std::to_string(other.port) +
                " on 127.0.0.1 is in use; stop the program that uses it or choose another MASTER_PORT");
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(10)) << "before any waiting";
}

TEST(Rendezvous, ThePortOfAnotherStoreIsAnError) {
  auto first = RendezvousServer::Start("127.0.0.1", 0, TestSecret()).value();
  EXPECT_EQ(RendezvousServer::Start("127.0.0.1", first->port(), TestSecret()).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(RendezvousServer::Start("0.0.0.0", first->port(), TestSecret()).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(Rendezvous, AHostThatIsNotThisMachineIsAnError) {
  EXPECT_FALSE(RendezvousServer::Start("no-such-host.invalid", 0, TestSecret()).ok());
  const absl::Status status = RendezvousServer::Start("203.0.113.1", 0, TestSecret()).status();
  EXPECT_EQ(status.message(), "cannot listen on 203.0.113.1:0: Cannot assign requested address");
}

TEST(Rendezvous, StoreThatCannotBeReachedIsNamed) {
  const int port = FreePort();
  RendezvousOptions options = Options(1, 2, port, absl::Milliseconds(300));
  options.hosted_elsewhere = false;
  const MonotonicTime begin = MonotonicNow();
  const absl::Status status = Rendezvous::Join(options).status();
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(10));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "waited 0.3 s for the rendezvous store at 127.0.0.1:" + std::to_string(port) +
                "; start rank 0, which hosts it, or check MASTER_ADDR, MASTER_PORT and the firewall");
}

TEST(Rendezvous, ASilentProgramOnThePortRunsIntoTheDeadline) {
  const TcpListener stranger = *ListenTcp("127.0.0.1");
  EXPECT_EQ(Rendezvous::Join(Options(1, 2, stranger.port, absl::Milliseconds(300))).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(RendezvousTest, AProcessWithAnotherSecretGetsOneClearLine) {
  RendezvousOptions options = Options(1, 2, server_->port());
  options.secret = OtherSecret();
  const MonotonicTime begin = MonotonicNow();
  EXPECT_EQ(Rendezvous::Join(options).status(),
            absl::PermissionDeniedError(
                "the rendezvous store at 127.0.0.1:" + std::to_string(server_->port()) +
                " does not have this job's secret; give all processes the same PSRING_SECRET_FILE"));
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(10)) << "before the deadline";
  options.secret = JobSecret();
  EXPECT_TRUE(absl::IsFailedPrecondition(Rendezvous::Join(options).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(RendezvousServer::Start("127.0.0.1", 0, JobSecret()).status()));
  // The rank is still free.
  auto zero = Join(0, 2), one = Join(1, 2);
  EXPECT_NE(one, nullptr);
}

TEST_F(RendezvousTest, AForgedMemberHasNoEffect) {
  auto zero = Join(0, 2), one = Join(1, 2);
  auto socket = ConnectTcp("127.0.0.1", server_->port(), MonotonicNow() + absl::Seconds(20)).value();
  const Credentials member = {.secret = TestSecret(), .purpose = Purpose::kRendezvous};
  ASSERT_TRUE(AuthenticateTo(socket.get(), member, "it", MonotonicNow() + absl::Seconds(20)).ok());
  const auto stub = proto::Rendezvous::NewStub(grpc::CreateInsecureChannelFromFd("forged", socket.release()));
  for (const std::string& id : {std::string(), std::string("1"), std::string(16, '\0')}) {
    grpc::ClientContext context;
    proto::LeaveRequest leave;
    leave.set_member(id);
    proto::LeaveReply reply;
    EXPECT_TRUE(stub->Leave(&context, leave, &reply).ok());
    grpc::ClientContext taking;
    proto::ExchangeRequest exchange;
    exchange.set_member(id);
    exchange.set_name("x");
    exchange.set_value("forged");
    proto::ExchangeReply values;
    EXPECT_EQ(stub->Exchange(&taking, exchange, &values).error_code(), grpc::FAILED_PRECONDITION);
  }
  OnRanks(2, [&](int rank) {
    EXPECT_EQ((rank == 0 ? zero : one)->Exchange("x", "own").value_or(std::vector<std::string>()),
              (std::vector<std::string>{"own", "own"}));
  });
}

TEST(Rendezvous, AMemberThatMakesNoCallsIsNotLost) {
  auto server =
      RendezvousServer::Start("127.0.0.1", 0, TestSecret(), "rank", /*ping=*/absl::Seconds(1)).value();
  auto member = Rendezvous::Join(Options(0, 1, server->port(), absl::Seconds(20))).value();
  absl::SleepFor(absl::Seconds(3));  // longer than a ping and the time for its answer
  EXPECT_TRUE(member->Exchange("after a long step", "").ok());
}

TEST(Rendezvous, ProxiesOfTheEnvironmentAreNotUsed) {
  ASSERT_EQ(::setenv("http_proxy", "http://127.0.0.1:1", 1), 0);
  ASSERT_EQ(::setenv("grpc_proxy", "http://127.0.0.1:1", 1), 0);
  auto server = RendezvousServer::Start("127.0.0.1", 0, TestSecret()).value();
  EXPECT_TRUE(Rendezvous::Join(Options(0, 1, server->port(), absl::Seconds(5))).ok());
  ::unsetenv("http_proxy");
  ::unsetenv("grpc_proxy");
}

}  // namespace
}  // namespace psring
