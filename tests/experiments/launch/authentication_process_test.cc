// Processes with and without the job's secret: the real binaries, on the loopback.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/net/address.h"
#include "common/net/authentication.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/common/net/flood.h"
#include "tests/experiments/start_psring.h"
#include "tests/experiments/training_processes.h"
#include "tests/has.h"
#include "tests/site_certificates.h"
#include "tests/test_secret.h"
#include "tests/write_all.h"

namespace psring {
namespace {

using testing::ContainsRegex;

constexpr char kTraining[] =
    "--strategy ps-sync --deterministic --model mlp-small --data synthetic --steps 20 --batch 16 --no_eval "
    "--timeout 30";

class AuthenticationTest : public LaunchTest {
 protected:
  // A trainer of two, whose rank 0 hosts the store at `port`.
  std::unique_ptr<Started> Trainer(int rank, int port, const std::vector<std::string>& environment,
                                   const std::string& flags = kTraining) {
    std::vector<std::string> variables = {absl::StrCat("RANK=", rank), "WORLD_SIZE=2"};
    variables.insert(variables.end(), environment.begin(), environment.end());
    return StartTrainer(
        absl::StrCat(flags, " --rendezvous tcp://127.0.0.1:", port, " --record ", Folder("records")),
        variables);
  }
  // As if the user had configured nothing.
  std::vector<std::string> OnlyAHome() const {
    return {"PSRING_SECRET=", "PSRING_SECRET_FILE=", "XDG_CONFIG_HOME=", absl::StrCat("HOME=", folder_)};
  }
};

constexpr size_t kHelloBytes = 64, kOpeningBytes = 8, kAnswerBytes = 48, kProofBytes = 32;

std::string BytesFrom(const FileDescriptor& from, size_t bytes) {
  std::string text(bytes, 0);
  for (size_t got = 0; got < bytes;) {
    if (!AwaitSocket(from.get(), POLLIN, MonotonicNow() + absl::Seconds(10), "it").ok()) return "";
    const ssize_t n = recv(from.get(), text.data() + got, bytes - got, 0);
    if (n <= 0) return "";
    got += static_cast<size_t>(n);
  }
  return text;
}

void SendTo(const FileDescriptor& to, const std::string& bytes) {
  (void)WriteAll(to.get(), bytes.data(), bytes.size(), MonotonicNow() + absl::Seconds(1));
}

FileDescriptor ConnectTo(const HostPort& to) {
  auto socket = ConnectTcp(to.host, to.port, MonotonicNow() + absl::Seconds(1));
  return socket.ok() ? *std::move(socket) : FileDescriptor();
}

// A member's two messages, as a stranger on the network sees them.
struct Recorded {
  std::string hello, proof;
};
Recorded RecordAMember(const HostPort& to, Purpose purpose) {
  // Of a connection within a host to the store.
  const JobSecret of_store = TestSecret().Derived(absl::StrCat("at ", AddressText(to.host, to.port)));
  const JobSecret secret = purpose == Purpose::kRendezvous ? of_store : TestSecret();
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  const FileDescriptor member(ends[0]), proxy(ends[1]), server = ConnectTo(to);
  absl::Status status;
  std::thread client([&] {
    status = AuthenticateTo(member.get(), {.secret = secret, .purpose = purpose, .token = to.token}, "it",
                            MonotonicNow() + absl::Seconds(10));
  });
  Recorded recorded;
  recorded.hello = BytesFrom(proxy, kHelloBytes);
  SendTo(server, recorded.hello);
  SendTo(proxy, BytesFrom(server, kOpeningBytes));
  SendTo(proxy, BytesFrom(server, kAnswerBytes));
  recorded.proof = BytesFrom(proxy, kProofBytes);
  client.join();
  EXPECT_TRUE(status.ok()) << status;
  SendTo(server, recorded.proof);
  return recorded;
}

// Connects to `address` in every way that a stranger could, until `stop`. The number of connections.
int Attack(const std::string& address, Purpose purpose, const std::atomic<bool>& stop) {
  const HostPort to = *ParseAddress(address);
  const Recorded recorded = RecordAMember(to, purpose);
  const std::string& hello = recorded.hello;
  std::string other_purpose = hello;
  other_purpose[7] = static_cast<char>(other_purpose[7] % 6 + 1);
  const std::string texts[] = {"",
                               std::string(100, 'x'),
                               std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33),
                               "GET / HTTP/1.1\r\n\r\n",
                               hello.substr(0, 20),
                               hello,  // and nothing more
                               hello + recorded.proof,
                               other_purpose};
  std::vector<FileDescriptor> silent;
  const MonotonicTime deadline = MonotonicNow() + absl::Seconds(30);
  int connections = 0;
  for (; !stop && MonotonicNow() < deadline; ++connections) {
    FileDescriptor socket = ConnectTo(to);
    if (!socket.valid()) break;  // the job has ended
    const size_t way = static_cast<size_t>(connections) % (std::size(texts) + 2);
    if (way < std::size(texts)) {
      SendTo(socket, texts[way]);
      if (silent.size() < 300) silent.push_back(std::move(socket));
    } else if (way == std::size(texts)) {
      const absl::Status status = AuthenticateTo(socket.get(), {.secret = OtherSecret(), .purpose = purpose},
                                                 "it", MonotonicNow() + absl::Seconds(5));
      EXPECT_FALSE(status.ok());
    } else {  // the server's proof, sent back to it
      SendTo(socket, hello);
      const std::string answer = BytesFrom(socket, kOpeningBytes + kAnswerBytes);
      if (!answer.empty()) SendTo(socket, answer.substr(answer.size() - kProofBytes));
    }
  }
  return connections;
}

TEST_F(AuthenticationTest, AJobUnderAttackEndsWithItsUsualWeights) {
  std::vector<std::string> weights[2];
  for (const bool attacked : {false, true}) {
    std::filesystem::remove_all(Folder("records"));
    const int port = FreePort();
    StartedOnes ranks;
    ranks.push_back(Trainer(0, port, {}));
    // Rank 0 waits for rank 1, and its server is up.
    RendezvousOptions member{
        .host = "127.0.0.1", .port = port, .hosted_elsewhere = true, .secret = TestSecret()};
    absl::StatusOr<std::string> server = "";
    std::atomic<bool> stop = false;
    std::vector<std::thread> attacks;
    std::vector<std::unique_ptr<Flood>> floods;
    const MonotonicTime begin = MonotonicNow();
    if (attacked) {
      const auto store = Rendezvous::Connect(member);
      ASSERT_TRUE(store.ok()) << store.status();
      attacks.emplace_back(
          [&] { EXPECT_GT(Attack(absl::StrCat("127.0.0.1:", port), Purpose::kRendezvous, stop), 10); });
      floods.push_back(std::make_unique<Flood>("127.0.0.1", port));
      ranks.push_back(Trainer(1, port, {}));
      server = (*store)->Get("ps/0", "the server");
      ASSERT_TRUE(server.ok()) << server.status();
      attacks.emplace_back([&] { EXPECT_GT(Attack(*server, Purpose::kParameterServer, stop), 10); });
      floods.push_back(std::make_unique<Flood>("127.0.0.1", ParseAddress(*server)->port));
    } else {
      ranks.push_back(Trainer(1, port, {}));
    }
    ExpectSuccess(ranks);
    stop = true;
    for (std::thread& attack : attacks) attack.join();
    floods.clear();
    weights[attacked] = Weights(Folder("records"));
    if (!attacked) continue;
    EXPECT_THAT(ranks[0]->errors(), Has("without the job's secret, last from 127.0.0.1:"));
    // Of each of the two listeners and two reasons: at most one every 10 s, and one at the end.
    const auto lines = std::count(ranks[0]->errors().begin(), ranks[0]->errors().end(), '\n');
    EXPECT_LE(lines, 4 * (2 + (MonotonicNow() - begin) / absl::Seconds(10))) << ranks[0]->errors();
    EXPECT_EQ(ranks[1]->errors(), "");
  }
  EXPECT_EQ(weights[0].size(), 2u);
  EXPECT_EQ(weights[0], weights[1]);
}

TEST_F(AuthenticationTest, ARankWithAnotherSecretGetsOneLine) {
  const int port = FreePort();
  StartedOnes ranks;
  ranks.push_back(Trainer(0, port, {}));
  const auto other = Ended(Trainer(1, port, {SecretEnvironment(OtherSecret())}));
  EXPECT_FALSE(other->Succeeded());
  EXPECT_EQ(
      other->errors(),
      absl::StrCat("trainer: rank 1: the rendezvous store at 127.0.0.1:", port,
                   " does not have this job's secret; give all processes the same PSRING_SECRET_FILE\n"));
  ranks.push_back(Trainer(1, port, {}));  // the rank is still free
  ExpectSuccess(ranks);
}

TEST_F(AuthenticationTest, WithoutConfigurationTheUsersOwnFileIsUsed) {
  const int port = FreePort();
  StartedOnes ranks;
  for (const int rank : {1, 0}) ranks.push_back(Trainer(rank, port, OnlyAHome()));
  ExpectSuccess(ranks);
  struct stat made = {};
  ASSERT_EQ(stat(Folder(".config/psring/secret").c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 07777, 0600u);

  ASSERT_EQ(chmod(Folder(".config/psring/secret").c_str(), 0644), 0);
  const auto refused = Ended(Trainer(0, FreePort(), OnlyAHome()));
  EXPECT_FALSE(refused->Succeeded());
  EXPECT_THAT(refused->errors(), Has("is accessible to other users; run: chmod 600"));
  EXPECT_THAT(refused->errors(), IsOneLine());
}

TEST_F(AuthenticationTest, TheLauncherCreatesASecretThatIsNotOnACommandLine) {
  StartedOnes psring;
  psring.push_back(
      StartPsring(absl::StrCat("train --strategy ring --model mlp-small --data synthetic --workers 2 "
                               "--steps 100000000 --batch 16 --no_eval --out ",
                               Folder("run"))));
  std::vector<std::pair<std::string, pid_t>> processes;
  ASSERT_TRUE(WaitUntil(*psring[0], [&] {
    processes = TrainingProcesses(Folder("run"));
    return processes.size() == 2;
  })) << psring[0]->Story();
  std::vector<std::string> secrets;
  for (const auto& [role, pid] : processes) {
    const std::string environment = Slurp(absl::StrCat("/proc/", pid, "/environ"));
    const size_t at = environment.find("PSRING_SECRET=");
    ASSERT_NE(at, std::string::npos);
    secrets.push_back(environment.substr(at + 14, 32));
    EXPECT_THAT(Slurp(absl::StrCat("/proc/", pid, "/cmdline")), Lacks(secrets.back()));
  }
  EXPECT_EQ(secrets[0], secrets[1]);
  EXPECT_NE(secrets[0], kTestSecret) << "a new one, although the environment has one";
}

// Jobs with --tls: the real binaries, on the loopback.

constexpr char kTlsTraining[] =
    " --model mlp-small --data synthetic --steps 20 --batch 16 --no_eval --timeout 60";
constexpr char kRing[] = "--strategy ring --transport tcp";
// Two workers and a server. Its sums do not depend on the order of arrival.
constexpr char kServer[] =
    "--strategy ps-sync --deterministic --transport tcp --server_placement dedicated --servers 1";

class TlsProcess : public LaunchTest {
 protected:
  // One of `ranks` processes, of which rank 0 hosts the store at `port`.
  std::unique_ptr<Started> Trainer(int rank, int ranks, int port, const std::string& flags) const {
    return StartTrainer(absl::StrCat(flags, kTlsTraining, " --rendezvous tcp://127.0.0.1:", port,
                                     " --record ", Folder("records")),
                        {absl::StrCat("RANK=", rank), absl::StrCat("WORLD_SIZE=", ranks)});
  }
  // The weights after a training whose ranks have these values of --tls.
  std::vector<std::string> Train(const std::string& flags, const std::vector<std::string>& tls) {
    std::filesystem::remove_all(Folder("records"));
    const int port = FreePort(), ranks = static_cast<int>(tls.size());
    StartedOnes processes;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string& choice = tls[static_cast<size_t>(rank)];
      processes.push_back(
          Trainer(rank, ranks, port, choice.empty() ? flags : absl::StrCat(flags, " --tls ", choice)));
    }
    ExpectSuccess(processes);
    return Weights(Folder("records"));
  }
  // Each with its own certificate.
  std::vector<std::string> OfSite(size_t ranks) {
    std::filesystem::create_directories(Folder("certificates"));
    const SiteCertificates site(Folder("certificates"), OtherSecret());
    std::vector<std::string> choices;
    for (size_t rank = 0; rank < ranks; ++rank) choices.push_back(site.Issue(absl::StrCat("rank", rank)));
    return choices;
  }
  // A process that fails with one line on stderr, which contains `part`.
  static void ExpectOneLine(std::unique_ptr<Started> process, const std::string& part) {
    const auto ones = Ended(std::move(process));
    EXPECT_FALSE(ones->Succeeded());
    EXPECT_THAT(ones->errors(), OneLineWith(part));
  }
  static std::string Beside(const char* name) {
    return (std::filesystem::path(PSRING_TRAINER).parent_path() / name).string();
  }
};

TEST_F(TlsProcess, ARingOverTcpEndsWithTheSameWeights) {
  const std::vector<std::string> plain = Train(kRing, {"", "", ""});
  EXPECT_EQ(plain.size(), 3u);
  EXPECT_EQ(Train(kRing, {"auto", "auto", "auto"}), plain);
  EXPECT_EQ(Train(kRing, OfSite(3)), plain);
}

TEST_F(TlsProcess, ADedicatedServerEndsWithTheSameWeights) {
  const std::vector<std::string> plain = Train(kServer, {"", "", ""});
  EXPECT_EQ(plain.size(), 2u);
  EXPECT_EQ(Train(kServer, {"auto", "auto", "auto"}), plain);
  EXPECT_EQ(Train(absl::StrCat(kServer, " --server_wire stream"), {"auto", "auto", "auto"}), plain);
  EXPECT_EQ(Train(kServer, OfSite(3)), plain);
}

TEST_F(TlsProcess, ProcessesWithoutAndWithTlsSayThatItDiffers) {
  for (const bool host_has_it : {true, false}) {
    const std::string with = absl::StrCat(kRing, " --tls auto");
    const int port = FreePort();
    StartedOnes host;
    host.push_back(Trainer(0, 2, port, host_has_it ? with : kRing));
    ExpectOneLine(Trainer(1, 2, port, host_has_it ? kRing : with),
                  host_has_it
                      ? absl::StrCat("the rendezvous store at 127.0.0.1:", port,
                                     " uses --tls, and this process does not; give --tls to all ")
                      : absl::StrCat("the rendezvous store at 127.0.0.1:", port,
                                     " does not use --tls, and this process does; give --tls to all "));
    EXPECT_TRUE(WaitUntil(*host[0], [&] { return !host[0]->errors().empty(); }));
    EXPECT_THAT(host[0]->errors(),
                ContainsRegex(host_has_it ? "^psring: rejected 1 connection without --tls, which this "
                                            "process uses, last from 127.0.0.1:[0-9]+; give --tls to all"
                                          : "^psring: rejected 1 connection with --tls, which this process "
                                            "does not use, last from 127.0.0.1:[0-9]+; give --tls to all"));
    // It does not wait for the other rank until its timeout.
    EXPECT_TRUE(WaitForAll(host));
    EXPECT_THAT(host[0]->errors(),
                ContainsRegex("rank 1 at 127.0.0.1:[0-9]+ was started with another --tls than the rendezvous "
                              "store; give --tls to all processes of the job, or omit it for all\n$"));
  }
}

TEST_F(TlsProcess, RanksThatMeetInAFileSayThatTheirTlsDiffers) {
  StartedOnes ranks;
  for (const int rank : {0, 1}) {
    ranks.push_back(StartTrainer(absl::StrCat(kRing, kTlsTraining, " --rendezvous file://", Folder("meet"),
                                              rank == 1 ? " --tls auto" : ""),
                                 {absl::StrCat("RANK=", rank), "WORLD_SIZE=2"}));
  }
  EXPECT_TRUE(WaitForAll(ranks));
  for (const auto& rank : ranks)
    EXPECT_THAT(rank->errors(), Has("; give --tls to all processes of the job, or omit it for all"));
  EXPECT_THAT(ranks[0]->errors(), ContainsRegex("rank 1 at .* was started with another --tls"));
}

TEST_F(TlsProcess, WrongFilesAndCombinationsAreRejectedAtTheStart) {
  const int port = FreePort();
  const auto trainer = [&](const std::string& flags) { return Trainer(0, 2, port, flags); };
  ExpectOneLine(trainer("--strategy ring --tls none.pem,none.key,ca.pem"), "none.pem");
  ExpectOneLine(trainer("--strategy ring --tls yes"), "--tls: 'yes' is neither auto nor CERT,KEY,CA");
  for (const char* const other : {"gloo", "mpi", "nccl"})
    ExpectOneLine(trainer(absl::StrCat("--strategy ring --tls auto --backend ", other)),
                  absl::StrCat("--tls with --backend ", other, ", which opens its own connections"));
  for (const char* const strategy : {"gloo", "nccl-tcp"})
    ExpectOneLine(trainer(absl::StrCat("--strategy ", strategy, " --tls auto")),
                  "opens its own connections; omit --tls");
}

TEST_F(TlsProcess, TheLauncherPassesItOn) {
  std::vector<std::string> weights[2];
  for (const bool encrypted : {false, true}) {
    const std::string out = Folder(encrypted ? "encrypted" : "plain");
    Succeeded(StartPsring(absl::StrCat("train ", kServer, kTlsTraining, " --workers 2 --out ", out,
                                       encrypted ? " --tls auto" : "")));
    weights[encrypted] = Weights(out);
  }
  EXPECT_EQ(weights[0].size(), 2u);
  EXPECT_EQ(weights[0], weights[1]);
}

TEST_F(TlsProcess, TheBenchmarksOfRingsAndServersCheckTheirSums) {
  const std::string calls = " --bytes 4,1M --iters 2 --warmup_iters 1 --tls auto --limits --timeout 60";
  for (const bool server : {false, true}) {
    const int port = FreePort();
    const std::string store = absl::StrCat(" --rendezvous tcp://127.0.0.1:", port);
    StartedOnes processes;
    for (const int rank : {0, 1}) {
      const std::string who = absl::StrCat(" --world_size 2 --rank ", rank, " --transport tcp");
      processes.push_back(
          StartProgram(Beside(server ? "ps_worker" : "ring_worker"), absl::StrCat(calls, store, who)));
    }
    if (server) {
      processes.push_back(
          StartProgram(Beside("ps_server"), absl::StrCat("--workers 2 --limits --tls auto", store)));
    }
    ExpectSuccess(processes);
  }
}

}  // namespace
}  // namespace psring
