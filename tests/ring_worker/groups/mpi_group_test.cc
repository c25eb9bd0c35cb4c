// Starts itself with mpirun as child processes with a deadline, because the ranks of MPI are processes.
#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <map>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/own_process.h"
#include "common/rendezvous/rendezvous.h"
#include "experiments/launch/launcher.h"
#include "experiments/launch/mpirun.h"
#include "ring_worker/groups/groups.h"
#include "tests/eventually.h"
#include "tests/has.h"
#include "tests/ring_worker/groups/channel_checks.h"
#include "tests/test_program.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

// A rank.

struct Rank {
  Rendezvous& rendezvous;
  Stream& stream;

  absl::StatusOr<std::unique_ptr<ProcessGroup>> Group(const std::string& algorithm = "",
                                                      absl::Duration timeout = absl::Seconds(30),
                                                      const std::string& transport = "auto") {
    GroupOptions options;
    options.backend = "mpi";
    options.algorithm = algorithm;
    options.transport = transport;
    options.timeout = timeout;
    return MakeProcessGroup(rendezvous, options);
  }
};

absl::Status Collectives(Rank& rank) {
  PSRING_ASSIGN_OR_RETURN(const auto group, rank.Group());
  return CheckAllCollectives({*group, rank.stream});
}

// Values whose sums depend on the order of addition.
std::vector<float> Unround(int rank) {
  std::vector<float> values(100003);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = 1.0f / float(1 + rank + (i * 2654435761u) % 1000003u);
  return values;
}

// Several groups with different algorithms. The bits of a sum show which algorithm ran, because a ring adds
// in another order than a tree.
absl::Status Algorithms(Rank& rank) {
  std::map<std::string, std::vector<float>> sums;
  std::vector<std::pair<std::string, std::unique_ptr<ProcessGroup>>> groups;
  for (const std::string& name : BackendNamed("mpi").algorithms(Collective::kAllReduce)) {
    PSRING_ASSIGN_OR_RETURN(auto group, rank.Group(name));
    if (group->info().algorithm != name) return absl::InternalError(group->info().algorithm);
    groups.emplace_back(name, std::move(group));
  }
  for (auto& [name, group] : groups) {
    PSRING_RETURN_IF_ERROR(CheckAllReduce({*group, rank.stream}, 1001, DType::kBFloat16, ReduceOp::kMean));
    std::vector<float>& values = sums[name] = Unround(group->rank());
    const Span span = {values.data(), values.size()};
    PSRING_RETURN_IF_ERROR(group->AllReduce(span, span, ReduceOp::kSum, rank.stream));
    PSRING_RETURN_IF_ERROR(rank.stream.Synchronize());
  }
  if (!sums.contains("ring")) return absl::OkStatus();  // MPICH's algorithms add in the same order
  if (sums["ring"] == sums["recursive-doubling"]) return absl::InternalError("ring added as a tree does");
  // Segments do not change the ring's order.
  if (sums["ring"] != sums["segmented-ring"]) return absl::InternalError("the two rings differ");
  return absl::OkStatus();
}

// MPICH is configured to fail if the requested algorithm is not usable, instead of choosing another one:
// recursive halving needs as many elements as ranks.
absl::Status KeepsToItsAlgorithm(Rank& rank) {
  for (const char* name : {"default", "recursive-doubling", "rabenseifner"}) {
    PSRING_ASSIGN_OR_RETURN(const auto group, rank.Group(name));
    for (const size_t count : {16, 1}) {
      const bool fits = name != std::string("rabenseifner") || count > 1;
      const absl::Status status =
          CheckAllReduce({*group, rank.stream}, count, DType::kFloat32, ReduceOp::kSum);
      if (fits) PSRING_RETURN_IF_ERROR(status);
      if (!fits && absl::StrContains(status.message(), "algorithm is not usable")) {
        return absl::FailedPreconditionError("it keeps the algorithm");  // after an error MPI is not usable
      }
    }
  }
  return absl::InternalError("MPICH chose another algorithm");
}

absl::Status ReportsItsTransport(Rank& rank) {
  PSRING_ASSIGN_OR_RETURN(const auto group, rank.Group("", absl::Seconds(30), "tcp"));
  if (rank.Group("", absl::Seconds(30), "shm").ok()) return absl::InternalError("shm was accepted over tcp");
  return group->info().transport == "tcp" ? absl::OkStatus() : absl::InternalError(group->info().transport);
}

absl::Status Parts(Rank& rank) {
  for (const std::string& algorithm :
       {std::string(), BackendNamed("mpi").algorithms(Collective::kAllReduce).back()}) {
    PSRING_ASSIGN_OR_RETURN(const auto group, rank.Group(algorithm));
    const bool odd = group->rank() % 2 == 1;
    PSRING_ASSIGN_OR_RETURN(const auto part, group->Split(odd ? 1 : 0, -group->rank()));
    PSRING_ASSIGN_OR_RETURN(const auto leaders, group->Split(part->rank() == 0 ? 0 : kNoColor, 0));
    if ((leaders != nullptr) != (part->rank() == 0)) return absl::InternalError("wrong leader");
    if (part->info().algorithm != group->info().algorithm) return absl::InternalError("another algorithm");
    if (part->size() != (group->size() + (odd ? 0 : 1)) / 2) return absl::InternalError("another size");
    PSRING_RETURN_IF_ERROR(CheckAllReduce({*part, rank.stream}, 1001, DType::kFloat32, ReduceOp::kSum));
    PSRING_RETURN_IF_ERROR(CheckAllToAll({*part, rank.stream}, 1001, DType::kFloat32));
    if (leaders != nullptr) {
      PSRING_RETURN_IF_ERROR(CheckAllReduce({*leaders, rank.stream}, 1001, DType::kBFloat16, ReduceOp::kSum));
    }
    PSRING_RETURN_IF_ERROR(CheckAllReduce({*group, rank.stream}, 1001, DType::kFloat32, ReduceOp::kSum));
  }
  return absl::OkStatus();
}

absl::Status Channels(Rank& rank) {
  PSRING_ASSIGN_OR_RETURN(const auto group, rank.Group());
  return CheckChannels({*group, rank.stream});
}

// Rank 0 has both calls in progress; rank 1 makes them one after the other.
absl::Status PartsAtATime(Rank& rank) {
  PSRING_ASSIGN_OR_RETURN(const auto group, rank.Group());
  PSRING_ASSIGN_OR_RETURN(const auto one, group->Split(0, group->rank()));
  PSRING_ASSIGN_OR_RETURN(const auto other, group->Split(0, group->rank()));
  std::vector<float> values(1000, 1), others(1000, 1);
  const Span span = {values.data(), values.size()}, of_other = {others.data(), others.size()};
  const auto lane = HostDevice().NewStream(StreamKind::kBackground, "lane");
  const auto add_up_one = [&] { return one->AllReduce(span, span, ReduceOp::kSum, *lane); };
  if (group->rank() == 0) PSRING_RETURN_IF_ERROR(add_up_one());
  PSRING_RETURN_IF_ERROR(other->AllReduce(of_other, of_other, ReduceOp::kSum, rank.stream));
  PSRING_RETURN_IF_ERROR(rank.stream.Synchronize());
  if (group->rank() == 1) PSRING_RETURN_IF_ERROR(add_up_one());
  PSRING_RETURN_IF_ERROR(lane->Synchronize());
  const std::vector<float> expected(1000, 2);
  return values == expected && others == expected ? absl::OkStatus() : absl::InternalError("wrong sums");
}

// Until mpirun kills this rank.
[[noreturn]] void Hang() {
  while (true) pause();
}

absl::Status IsLate(Rank& rank) {
  PSRING_ASSIGN_OR_RETURN(const auto first, rank.Group());  // starts MPI, which may take long
  PSRING_ASSIGN_OR_RETURN(const auto group, rank.Group("", absl::Seconds(1)));
  if (group->rank() == 1) Hang();
  return CheckAllReduce({*group, rank.stream}, 1000, DType::kFloat32, ReduceOp::kSum);
}

absl::Status SilentSender(Rank& rank) {
  PSRING_ASSIGN_OR_RETURN(const auto first, rank.Group());
  PSRING_ASSIGN_OR_RETURN(const auto group, rank.Group("", absl::Seconds(3)));
  PSRING_ASSIGN_OR_RETURN(const auto channel, ConnectChannel({*group, rank.stream}, 1, 2));
  if (group->rank() != 2) Hang();
  std::vector<float> values(1000);
  PSRING_RETURN_IF_ERROR(channel->Transfer({values.data(), values.size()}));
  return channel->lane().Synchronize();
}

absl::Status Dies(Rank& rank) {
  PSRING_ASSIGN_OR_RETURN(const auto group, rank.Group());
  if (group->rank() == 1) kill(getpid(), SIGKILL);
  return CheckAllReduce({*group, rank.stream}, 1000, DType::kFloat32, ReduceOp::kSum);
}

absl::Status Aborts(Rank& rank) {
  PSRING_ASSIGN_OR_RETURN(const auto group, rank.Group());
  if (group->rank() == 1) Hang();
  std::latch calling(1);
  std::thread aborter([&] {
    calling.wait();
    group->Abort(absl::CancelledError("had enough"));
  });
  calling.count_down();
  const absl::Status status = CheckAllReduce({*group, rank.stream}, 1000, DType::kFloat32, ReduceOp::kSum);
  aborter.join();
  return status;
}

// Like a trainer without data: the others wait in a collective that this rank never enters.
absl::Status LeavesWithAnError(Rank& rank) {
  PSRING_ASSIGN_OR_RETURN(const auto group, rank.Group());
  if (group->rank() == 1) return absl::NotFoundError("no data here");
  return CheckAllReduce({*group, rank.stream}, 1000, DType::kFloat32, ReduceOp::kSum);
}

const std::map<std::string, absl::Status (*)(Rank&)> kRankBodies = {{"collectives", Collectives},
                                                                    {"algorithms", Algorithms},
                                                                    {"keeps", KeepsToItsAlgorithm},
                                                                    {"transport", ReportsItsTransport},
                                                                    {"parts", Parts},
                                                                    {"at-a-time", PartsAtATime},
                                                                    {"channels", Channels},
                                                                    {"silent-sender", SilentSender},
                                                                    {"late", IsLate},
                                                                    {"dies", Dies},
                                                                    {"aborts", Aborts},
                                                                    {"leaves", LeavesWithAnError}};

int RankMain(const std::string& body) {
  const absl::Status status = [&] {
    PSRING_ASSIGN_OR_RETURN(RendezvousOptions join, ParseRendezvous("env://", ProcessEnvironment()));
    join.secret = TestSecret();
    PSRING_ASSIGN_OR_RETURN(const auto rendezvous, Rendezvous::Join(join));
    const auto device = MakeCpuDevice();
    const auto stream = device->NewStream(StreamKind::kCompute, "test");
    Rank rank = {*rendezvous, *stream};
    return kRankBodies.at(body)(rank);
  }();
  if (!status.ok()) std::fprintf(stderr, "rank: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}

// The number of processes that run this program with "--rank".
int RanksAlive() {
  int count = 0;
  DIR* proc = opendir("/proc");
  while (const dirent* entry = readdir(proc)) {
    std::ifstream file(absl::StrCat("/proc/", entry->d_name, "/cmdline"));
    std::stringstream text;
    text << file.rdbuf();
    const std::vector<std::string> words = absl::StrSplit(text.str(), '\0');
    if (words.size() > 2 && words[0] == *OwnProgram() && words[1] == "--rank") ++count;
  }
  closedir(proc);
  return count;
}

class MpiGroupTest : public testing::Test {
 protected:
  void SetUp() override {
    const BackendRow mpi = BackendNamed("mpi");
    if (!mpi.available()) GTEST_SKIP() << "this build has no mpi: " << mpi.missing;
    if (const auto found = FindMpirun({.family = PSRING_TEST_MPI}); !found.ok())
      GTEST_SKIP() << found.status().message();
    // Open MPI does not always remove its folder.
    std::string name = (std::filesystem::temp_directory_path() / "psring-mpi-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    setenv("TMPDIR", folder_.c_str(), 1);
  }
  void TearDown() override {
    EXPECT_TRUE(Eventually([] { return RanksAlive() == 0; }, absl::Seconds(10))) << "processes are left";
    unsetenv("TMPDIR");
    // Without mpirun, MPI starts a process that removes files a moment longer.
    const MonotonicTime deadline = MonotonicNow() + absl::Seconds(5);
    std::error_code busy;
    do {
      std::filesystem::remove_all(folder_, busy);
    } while (std::filesystem::exists(folder_) && MonotonicNow() < deadline);
  }

  absl::Status Run(const std::string& body, int ranks, const std::string& transport = "auto",
                   bool with_mpirun = true) {
    const auto store = RendezvousServer::Start("127.0.0.1", 0, TestSecret());
    PSRING_RETURN_IF_ERROR(store.status());
    PSRING_ASSIGN_OR_RETURN(const MpirunCommand mpirun,
                            FindMpirun({.ranks = ranks, .transport = transport, .family = PSRING_TEST_MPI}));
    LaunchSpec spec{.what = body, .deadline = absl::Seconds(60), .grace = absl::Seconds(5)};
    const std::string path = *OwnProgram();
    for (int rank = 0; rank < (with_mpirun ? 1 : ranks); ++rank) {
      ChildSpec child{.name = with_mpirun ? "mpirun" : absl::StrCat("rank ", rank)};
      if (with_mpirun) {
        child.command = mpirun.prefix;
        child.environment = mpirun.environment;
      }
      child.command.insert(child.command.end(), {path, "--rank", body});
      const auto number = [&](int value) { return with_mpirun ? std::string() : absl::StrCat(value); };
      child.environment.insert(
          child.environment.end(),
          {"MASTER_ADDR=127.0.0.1", absl::StrCat("MASTER_PORT=", (*store)->port()), "PSRING_STORE_HOSTED=1",
           absl::StrCat("RANK=", number(rank)), absl::StrCat("WORLD_SIZE=", number(ranks)), "LOCAL_RANK="});
      spec.children.push_back(child);
    }
    return RunChildren(spec, interrupt_);
  }

  Interrupt interrupt_;
  std::string folder_;
};

TEST_F(MpiGroupTest, EveryCollectiveIsCorrectForEveryTypeSizeAndOp) {
  for (int ranks : {1, 3, 4}) {
    const absl::Status status = Run("collectives", ranks);
    EXPECT_TRUE(status.ok()) << ranks << " ranks: " << status;
  }
}

TEST_F(MpiGroupTest, GroupsOfOneProcessKeepTheirAlgorithms) {
  if (BackendNamed("mpi").algorithms(Collective::kAllReduce).size() == 1) {
    GTEST_SKIP() << "this MPI does not let an algorithm be chosen";
  }
  EXPECT_EQ(Run("algorithms", 4), absl::OkStatus());
}

TEST_F(MpiGroupTest, MpichKeepsTheRequestedAlgorithmInEveryCall) {
  if (PSRING_TEST_MPI != std::string("MPICH")) GTEST_SKIP() << "this is " << PSRING_TEST_MPI;
  setenv("MPIR_CVAR_COLLECTIVE_FALLBACK", "error", 1);
  const absl::Status status = Run("keeps", 4);
  unsetenv("MPIR_CVAR_COLLECTIVE_FALLBACK");
  EXPECT_THAT(status.message(), Has("it keeps the algorithm"));
}

TEST_F(MpiGroupTest, PartsOfAGroupAreSeparateCommunicators) { EXPECT_EQ(Run("parts", 5), absl::OkStatus()); }

TEST_F(MpiGroupTest, CallsOfSeveralPartsAreInProgressAtATime) {
  EXPECT_EQ(Run("at-a-time", 2), absl::OkStatus());
}

TEST_F(MpiGroupTest, ChannelsCarryMessagesInOrderBesideTheGroup) {
  for (const char* transport : {"shm", "tcp"}) EXPECT_EQ(Run("channels", 3, transport), absl::OkStatus());
}

TEST_F(MpiGroupTest, ASilentSenderIsNamedAtTheTimeout) {
  EXPECT_THAT(Run("silent-sender", 3).message(),
              Has("rank 2: mpi broadcast of 1000 float32 elements", "has waited 3s for rank 1"));
}

TEST_F(MpiGroupTest, TheTransportIsThatOfTheJob) { EXPECT_EQ(Run("transport", 2, "tcp"), absl::OkStatus()); }

TEST_F(MpiGroupTest, ReportsThatItWasStartedWithoutMpirun) {
  EXPECT_THAT(Run("collectives", 2, "auto", /*with_mpirun=*/false).message(),
              Has("started without mpirun", "MPI job of size 1"));
}

TEST_F(MpiGroupTest, AMissingRankEndsTheJobAtTheTimeoutWithOneLine) {
  const MonotonicTime begin = MonotonicNow();
  EXPECT_THAT(Run("late", 2).message(),
              Has("all_reduce of 1000 float32 elements", "has waited 1s for the other 1 rank"));
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(15));
}

TEST_F(MpiGroupTest, AKilledRankEndsTheJob) {
  const MonotonicTime begin = MonotonicNow();
  EXPECT_FALSE(Run("dies", 3).ok());
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(15));
}

TEST_F(MpiGroupTest, AbortEndsTheJobWithTheReason) {
  EXPECT_THAT(Run("aborts", 2).message(), Has("had enough"));
}

TEST_F(MpiGroupTest, ARankThatLeavesWithAnErrorDoesNotHangInFinalize) {
  const MonotonicTime begin = MonotonicNow();
  EXPECT_THAT(Run("leaves", 3).message(), Has("no data here"));
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(15));
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--rank") == 0) return psring::RankMain(argv[2]);
  return psring::RunTests(argc, argv);
}
