// Jobs with --tls: the real binaries, on the loopback.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/experiments/start_psring.h"
#include "tests/has.h"
#include "tests/site_certificates.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

using testing::ContainsRegex;

constexpr char kTraining[] =
    " --model mlp-small --data synthetic --steps 20 --batch 16 --no_eval --timeout 60";
constexpr char kRing[] = "--strategy ring --transport tcp";
// Two workers and a server. Its sums do not depend on the order of arrival.
constexpr char kServer[] =
    "--strategy ps-sync --deterministic --transport tcp --server_placement dedicated --servers 1";

class TlsProcess : public LaunchTest {
 protected:
  // One of `ranks` processes, of which rank 0 hosts the store at `port`.
  std::unique_ptr<Started> Trainer(int rank, int ranks, int port, const std::string& flags) const {
    return StartTrainer(absl::StrCat(flags, kTraining, " --rendezvous tcp://127.0.0.1:", port, " --record ",
                                     Folder("records")),
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
    ranks.push_back(StartTrainer(absl::StrCat(kRing, kTraining, " --rendezvous file://", Folder("meet"),
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
    Succeeded(StartPsring(absl::StrCat("train ", kServer, kTraining, " --workers 2 --out ", out,
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
