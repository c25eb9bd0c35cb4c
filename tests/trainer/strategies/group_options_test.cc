// The collectives of a strategy, and flags that are rejected.
#include "trainer/strategies/group_options.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace psring {
namespace {

StrategyRow Row(const std::string& name) { return *FindStrategy(name); }

TrainingOptions Flags(const std::string& backend, const std::string& transport = "auto") {
  TrainingOptions options;
  options.backend = backend;
  options.transport = transport;
  return options;
}

TEST(GroupOptionsTest, TheBackendFlagReplacesANativeBackend) {
  const GroupOptions ours = GroupOptionsOf(Row("ring"), Flags("", "shm"));
  EXPECT_EQ(ours.backend, "native");
  EXPECT_EQ(ours.algorithm, "ring");
  EXPECT_EQ(ours.transport, "shm");
  const GroupOptions theirs = GroupOptionsOf(Row("ring"), Flags("gloo", "tcp"));
  EXPECT_EQ(theirs.backend, "gloo");
  EXPECT_EQ(theirs.algorithm, "ring");
  EXPECT_EQ(theirs.transport, "tcp");
}

TEST(GroupOptionsTest, StrategiesOfOtherLibrariesKeepTheirBackend) {
  const GroupOptions mpi = GroupOptionsOf(Row("mpi"), Flags("gloo", "tcp"));
  EXPECT_EQ(mpi.backend, "mpi");
  EXPECT_EQ(mpi.algorithm, "default");
  EXPECT_EQ(GroupOptionsOf(Row("nccl"), Flags("", "tcp")).transport, "tcp");
}

TEST(GroupOptionsTest, AStrategyMayNameItsTransport) {
  for (const char* transport : {"auto", "tcp"}) {
    const GroupOptions options = GroupOptionsOf(Row("nccl-tcp"), Flags("", transport));
    EXPECT_EQ(options.backend, "nccl");
    EXPECT_EQ(options.transport, "tcp");
    EXPECT_TRUE(CheckGroupFlagsCount(Row("nccl-tcp"), Flags("", transport)).ok());
  }
  EXPECT_EQ(GroupOptionsOf(Row("nccl"), Flags("")).transport, "auto");
  const absl::Status status = CheckGroupFlagsCount(Row("nccl-tcp"), Flags("", "shm"));
  EXPECT_EQ(status.message(),
            "--transport shm has no effect with --strategy nccl-tcp, which always uses tcp; omit it");
}

TEST(GroupOptionsTest, RingBetweenGpusUsesNcclUnlessABackendIsGiven) {
  const bool has_nccl = CheckGroupOptions({.backend = "nccl"}, Collective::kAllReduce).ok();
  const GroupOptions ring = GroupOptionsOf(Row("ring"), Flags(""), /*gpu=*/1);
  EXPECT_EQ(ring.backend, has_nccl ? "nccl" : "native");
  EXPECT_EQ(ring.algorithm, "ring");
  EXPECT_EQ(ring.gpu, 1);
  EXPECT_EQ(GroupOptionsOf(Row("ring"), Flags("native"), 1).backend, "native");
  EXPECT_EQ(GroupOptionsOf(Row("star"), Flags(""), 1).backend, "native");
  EXPECT_EQ(GroupOptionsOf(Row("ring"), Flags("")).backend, "native") << "on the CPU";
}

TEST(GroupOptionsTest, SaysWhereNcclReplacesTheStrategysBackend) {
  const bool has_nccl = CheckGroupOptions({.backend = "nccl"}, Collective::kAllReduce).ok();
  EXPECT_EQ(BackendNote(Row("ring"), Flags(""), /*gpu=*/1),
            has_nccl ? "--strategy ring between GPUs uses NCCL's ring; give --backend native for psring's own"
                     : "");
  EXPECT_EQ(BackendNote(Row("ring"), Flags("native"), 1), "");
  EXPECT_EQ(BackendNote(Row("ring"), Flags("gloo"), 1), "");
  EXPECT_EQ(BackendNote(Row("star"), Flags(""), 1), "");
  EXPECT_EQ(BackendNote(Row("nccl"), Flags(""), 1), "");
  EXPECT_EQ(BackendNote(Row("ring"), Flags(""), -1), "") << "on the CPU";
}

TEST(GroupOptionsTest, MpiHasOneRankPerProcess) {
  for (const auto& [strategy, backend] : {std::pair{"mpi", ""}, {"ring", "mpi"}}) {
    TrainingOptions options = Flags(backend);
    options.ranks_per_process = 2;
    const absl::Status status = CheckGroup(Row(strategy), options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "MPI has one rank per process")) << status;
  }
  TrainingOptions ring = Flags("");
  ring.ranks_per_process = 2;
  EXPECT_TRUE(CheckGroup(Row("ring"), ring).ok());
}

TEST(GroupOptionsTest, OnlyPsringsOwnConnectionsAreEncrypted) {
  for (const auto& [strategy, backend] :
       {std::pair{"gloo", ""}, {"mpi", ""}, {"nccl", ""}, {"ring", "gloo"}}) {
    TrainingOptions options = Flags(backend);
    options.tls = "auto";
    const absl::Status status = CheckGroup(Row(strategy), options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "opens its own connections; omit --tls")) << status;
  }
  TrainingOptions ring = Flags("");
  ring.tls = "auto";
  EXPECT_TRUE(CheckGroup(Row("ring"), ring).ok());
  EXPECT_EQ(GroupOptionsOf(Row("ring"), ring, /*gpu=*/1).backend, "native");
}

TEST(GroupOptionsTest, NativeGroupsUseTheGpuUnlessTheHostRounds) {
  TrainingOptions options = Flags("native");
  EXPECT_EQ(GroupOptionsOf(Row("ring"), options, 1).gpu, 1);
  options.wire = "bfloat16";
  EXPECT_EQ(GroupOptionsOf(Row("ring"), options, 1).gpu, -1);
  EXPECT_EQ(GroupOptionsOf(Row("star"), options, 1).gpu, -1);
}

TEST(GroupOptionsTest, RejectsFlagsWithoutEffect) {
  EXPECT_TRUE(CheckGroupFlagsCount(Row("ring"), Flags("gloo", "tcp")).ok());
  EXPECT_TRUE(CheckGroupFlagsCount(Row("gloo"), Flags("gloo")).ok());
  EXPECT_TRUE(CheckGroupFlagsCount(Row("single"), Flags("")).ok());
  for (const auto& [strategy, flags] : std::vector<std::pair<std::string, TrainingOptions>>{
           {"gloo", Flags("mpi")}, {"none", Flags("native")}, {"none", Flags("", "tcp")}}) {
    const absl::Status status = CheckGroupFlagsCount(Row(strategy), flags);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << strategy;
    EXPECT_TRUE(absl::StrContains(status.message(), "omit it")) << status;
  }
}

TEST(GroupOptionsTest, RejectsWhatABackendDoesNotSupport) {
  EXPECT_TRUE(CheckGroup(Row("single"), Flags("gloo")).ok());
  EXPECT_TRUE(CheckGroup(Row("ring"), Flags("", "tcp")).ok());
  const absl::Status status = CheckGroup(Row("star"), Flags("gloo"));
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(absl::StartsWith(status.message(), "strategy star: ")) << status;
}

}  // namespace
}  // namespace psring
