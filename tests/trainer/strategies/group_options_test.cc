// The collectives of a strategy, and flags that are rejected.
#include "trainer/strategies/group_options.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/has.h"

namespace psring {
namespace {

StrategyRow Row(const std::string& name) { return *FindStrategy(name); }

TrainingOptions Flags(const std::string& backend, const std::string& transport = "auto") {
  TrainingOptions options;
  options.backend = backend;
  options.transport = transport;
  return options;
}

constexpr int kNoGpu = -1;
bool HasNcclHere() { return CheckGroupOptions({.backend = "nccl"}, Collective::kAllReduce).ok(); }

TEST(GroupOptionsTest, FollowFromTheStrategyTheFlagsAndTheGpu) {
  const std::string nccl_or_ours = HasNcclHere() ? "nccl" : "native";
  const struct {
    const char *strategy, *backend_flag, *transport_flag;
    int gpu;
    std::string backend, algorithm, transport;
  } cases[] = {{"ring", "", "shm", kNoGpu, "native", "ring", "shm"},
               // The flag replaces a native backend, but not another library's.
               {"ring", "gloo", "tcp", kNoGpu, "gloo", "ring", "tcp"},
               {"mpi", "gloo", "tcp", kNoGpu, "mpi", "default", "tcp"},
               {"nccl", "", "tcp", kNoGpu, "nccl", "default", "tcp"},
               {"nccl", "", "auto", kNoGpu, "nccl", "default", "auto"},
               // A strategy may name its transport.
               {"nccl-tcp", "", "auto", kNoGpu, "nccl", "default", "tcp"},
               {"nccl-tcp", "", "tcp", kNoGpu, "nccl", "default", "tcp"},
               // Between GPUs, a ring is NCCL's unless a backend is given.
               {"ring", "", "auto", 1, nccl_or_ours, "ring", "auto"},
               {"ring", "native", "auto", 1, "native", "ring", "auto"},
               {"star", "", "auto", 1, "native", "star", "auto"},
               {"hierarchical:2", "", "tcp", kNoGpu, "native", "hierarchical:2", "tcp"},
               {"zero1", "", "shm", kNoGpu, "native", "ring", "shm"},
               {"zero1", "mpi", "auto", kNoGpu, "mpi", "ring", "auto"},
               {"zero1", "", "auto", 1, nccl_or_ours, "ring", "auto"}};
  for (const auto& [strategy, backend_flag, transport_flag, gpu, backend, algorithm, transport] : cases) {
    SCOPED_TRACE(absl::StrCat(strategy, ", ", backend_flag, ", ", transport_flag, ", GPU ", gpu));
    const GroupOptions options = GroupOptionsOf(Row(strategy), Flags(backend_flag, transport_flag), gpu);
    EXPECT_EQ(options.backend, backend);
    EXPECT_EQ(options.algorithm, algorithm);
    EXPECT_EQ(options.transport, transport);
    EXPECT_EQ(options.gpu, gpu);
  }
}

TEST(GroupOptionsTest, PipelinesUsePsringsOwnRingAndTheTransportOfAnyStrategy) {
  TrainingOptions options = Flags("", "shm");
  options.pp = 2;
  EXPECT_EQ(GroupOptionsOf(Row("ring"), options, /*gpu=*/1).backend, "native");
  EXPECT_TRUE(CheckGroupFlagsCount(Row("single"), options).ok()) << "stages exchange activations";
  options.pp = 1;
  EXPECT_FALSE(CheckGroupFlagsCount(Row("single"), options).ok());
  options.tp = 2;
  for (const char* strategy : {"ring", "fsdp"}) {
    EXPECT_EQ(GroupOptionsOf(Row(strategy), options, /*gpu=*/1).backend, "native");
    EXPECT_EQ(BackendNote(Row(strategy), options, /*gpu=*/1), "");
  }
}

TEST(GroupOptionsTest, SaysWhereNcclReplacesTheStrategysBackend) {
  EXPECT_EQ(BackendNote(Row("ring"), Flags(""), /*gpu=*/1),
            HasNcclHere()
                ? "--strategy ring between GPUs uses NCCL's ring; give --backend native for psring's own"
                : "");
  for (const auto& [strategy, flag] :
       {std::pair{"ring", "native"}, {"ring", "gloo"}, {"star", ""}, {"nccl", ""}})
    EXPECT_EQ(BackendNote(Row(strategy), Flags(flag), 1), "");
  EXPECT_EQ(BackendNote(Row("ring"), Flags(""), kNoGpu), "");
}

TEST(GroupOptionsTest, OtherLibrariesHaveOneRankPerProcessOrTheirOwnConnections) {
  TrainingOptions several, encrypted;
  several.ranks_per_process = 2;
  encrypted.tls = "auto";
  const auto error = [](const char* strategy, const char* backend, TrainingOptions options) {
    options.backend = backend;
    const absl::Status status = CheckGroup(Row(strategy), options);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  for (const auto& [strategy, backend] : {std::pair{"mpi", ""}, {"ring", "mpi"}})
    EXPECT_THAT(error(strategy, backend, several), Has("MPI has one rank per process"));
  for (const auto& [strategy, backend] : {std::pair{"gloo", ""}, {"mpi", ""}, {"nccl", ""}, {"ring", "gloo"}})
    EXPECT_THAT(error(strategy, backend, encrypted), Has("opens its own connections; omit --tls"));
  EXPECT_EQ(error("ring", "", several), "");
  EXPECT_EQ(error("ring", "", encrypted), "");
  EXPECT_EQ(GroupOptionsOf(Row("ring"), encrypted, /*gpu=*/1).backend, "native");
}

TEST(GroupOptionsTest, NativeGroupsUseTheGpuUnlessTheHostRounds) {
  TrainingOptions options = Flags("native");
  EXPECT_EQ(GroupOptionsOf(Row("ring"), options, 1).gpu, 1);
  options.wire = "bfloat16";
  for (const char* strategy : {"ring", "star"}) EXPECT_EQ(GroupOptionsOf(Row(strategy), options, 1).gpu, -1);
}

TEST(GroupOptionsTest, RejectsFlagsWithoutEffect) {
  const struct {
    const char *strategy, *backend, *transport, *error;
  } cases[] = {{"ring", "gloo", "tcp", ""},
               {"gloo", "gloo", "auto", ""},
               {"single", "", "auto", ""},
               {"nccl-tcp", "", "tcp", ""},
               {"nccl-tcp", "", "shm",
                "--transport shm has no effect with --strategy nccl-tcp, which always uses tcp; omit it"},
               {"gloo", "mpi", "auto",
                "--backend mpi has no effect with --strategy gloo, which always uses gloo; omit it"},
               {"none", "native", "auto",
                "--backend native has no effect with --strategy none, which has no collectives; omit it"},
               {"none", "", "tcp",
                "--transport tcp has no effect with --strategy none, which does not communicate; omit it"}};
  for (const auto& [strategy, backend, transport, error] : cases) {
    EXPECT_EQ(CheckGroupFlagsCount(Row(strategy), Flags(backend, transport)).message(), error);
  }
}

TEST(GroupOptionsTest, RejectsWhatABackendDoesNotSupport) {
  EXPECT_TRUE(CheckGroup(Row("single"), Flags("gloo")).ok());
  EXPECT_TRUE(CheckGroup(Row("ring"), Flags("", "tcp")).ok());
  EXPECT_THAT(std::string(CheckGroup(Row("star"), Flags("gloo")).message()),
              testing::StartsWith("strategy star: "));
}

TEST(GroupOptionsTest, ShardsNeedAReduceScatter) {
  EXPECT_TRUE(CheckGroup(Row("zero1"), Flags("")).ok());
  EXPECT_TRUE(CheckGroup(Row("zero1"), Flags("native", "tcp")).ok());
  EXPECT_EQ(CheckGroup(Row("zero1"), Flags("mpi")).ok(), CheckGroup(Row("ring"), Flags("mpi")).ok());
  if (!CheckGroup(Row("ring"), Flags("gloo")).ok()) GTEST_SKIP() << "no Gloo in this build";
  EXPECT_THAT(std::string(CheckGroup(Row("zero1"), Flags("gloo")).message()),
              testing::StartsWith("strategy zero1: gloo offers no reduce_scatter; choose --backend native"));
}

}  // namespace
}  // namespace psring
