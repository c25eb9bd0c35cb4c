// Our schedules between GPUs with forked processes as ranks. Each has a part of the memory of one GPU of the
// fake CUDA runtime (tests/common/cuda/fake_cuda.h), whose handles the others can open.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/device_factory/make_device.h"
#include "common/rendezvous/rendezvous.h"
#include "ring_worker/groups/process_group.h"
#include "tests/common/cuda/fake_cuda.h"
#include "tests/ring_worker/groups/group_checks.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

// Before anything else: pointers of other ranks are invalid.
const bool kOpensElsewhere = TheFakeCuda().opens_elsewhere = true;

constexpr size_t kPart = size_t{32} << 20;

using Body = std::function<absl::Status(const GroupRank& rank)>;

absl::Status RunRank(int rank, int ranks, const std::string& file, absl::Duration timeout, const Body& body) {
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Rendezvous> rendezvous,
                          Rendezvous::Join({.rank = rank,
                                            .world_size = ranks,
                                            .local_world_size = ranks,
                                            .file = file,
                                            .secret = TestSecret(),
                                            .timeout = absl::Seconds(30)}));
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, MakeDevice("cuda:0"));
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                          MakeProcessGroup(*rendezvous, {.algorithm = "ring", .timeout = timeout, .gpu = 0}));
  if (group->info().transport != "cuda_ipc on shared GPUs") {
    return absl::InternalError(absl::StrCat("it runs over ", group->info().transport));
  }
  const std::unique_ptr<Stream> stream = device->NewStream(StreamKind::kBackground, "test");
  return body({*group, *stream, *device});
}

// How each rank's process ended: 0 if `body` returned OK, otherwise its signal or code. Errors are on
// standard error.
std::vector<int> InProcesses(int ranks, absl::Duration timeout, const Body& body) {
  // Made before the fork, so that all have it.
  PSRING_CHECK((*MakeDevice("cuda:0"))->Allocate(1).ok());
  const std::string file = absl::StrCat(testing::TempDir(), "/cuda_ipc_process_test.", getpid());
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      TheFakeCuda().memory_from = kPart * static_cast<size_t>(rank + 1);
      const absl::Status status = RunRank(rank, ranks, file, timeout, body);
      if (!status.ok()) std::fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
      _exit(status.ok() ? 0 : 1);
    }
    children.push_back(child);
  }
  std::vector<int> ends;
  for (const pid_t child : children) {
    int status = 0;
    PSRING_CHECK(waitpid(child, &status, 0) == child);
    ends.push_back(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }
  std::remove(file.c_str());
  return ends;
}

absl::Status Add(const GroupRank& rank, bool shared) {
  return CheckAllReduce(rank, 50000, DType::kFloat32, ReduceOp::kSum, shared);
}

TEST(CudaIpcProcesses, AddFromEachOthersMemory) {
  const auto body = [](const GroupRank& rank) -> absl::Status {
    for (const bool shared : {true, false, true, false, true, false}) {
      PSRING_RETURN_IF_ERROR(Add(rank, shared));
    }
    return absl::OkStatus();
  };
  EXPECT_EQ(InProcesses(3, absl::Seconds(30), body), (std::vector<int>{0, 0, 0}));
}

TEST(CudaIpcProcesses, AKilledProcessIsNamedByTheOthers) {
  const auto body = [](const GroupRank& rank) -> absl::Status {
    PSRING_RETURN_IF_ERROR(Add(rank, false));
    if (rank.group.rank() == 1) raise(SIGKILL);
    const MonotonicTime begin = MonotonicNow();
    const absl::Status status = Add(rank, false);
    if (absl::StrContains(status.message(), "rank 1") && MonotonicNow() - begin < absl::Seconds(20)) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("it said: ", status.ToString()));
  };
  EXPECT_EQ(InProcesses(3, absl::Seconds(30), body), (std::vector<int>{0, SIGKILL, 0}));
}

}  // namespace
}  // namespace psring
