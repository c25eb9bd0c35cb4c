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
#include "common/devices/make_device.h"
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

using Body = std::function<absl::Status(ProcessGroup& group, Device& device, Stream& stream)>;

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
  return body(*group, *device, *stream);
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

absl::Status Add(ProcessGroup& group, const Buffer& memory, Stream& stream) {
  const size_t count = memory.bytes() / sizeof(float);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = TestValue(group.rank(), i);
  stream.Copy(memory.data(), values.data(), memory.bytes());
  PSRING_RETURN_IF_ERROR(group.AllReduce(memory.span(), memory.span(), ReduceOp::kSum, stream));
  stream.Copy(values.data(), memory.data(), memory.bytes());
  PSRING_RETURN_IF_ERROR(stream.Synchronize());
  return ExpectReduced(values, 0, ReduceOp::kSum, DType::kFloat32, group.size(), "all_reduce");
}

TEST(CudaIpcProcesses, AddFromEachOthersMemory) {
  EXPECT_EQ(InProcesses(3, absl::Seconds(30),
                        [](ProcessGroup& group, Device& device, Stream& stream) -> absl::Status {
                          PSRING_ASSIGN_OR_RETURN(const Buffer shared,
                                                  device.AllocateShared(50000 * sizeof(float)));
                          PSRING_ASSIGN_OR_RETURN(const Buffer own, device.Allocate(50000 * sizeof(float)));
                          auto& registration = dynamic_cast<MemoryRegistration&>(group);
                          PSRING_RETURN_IF_ERROR(registration.Register(shared));
                          for (int call = 0; call < 3; ++call) {
                            PSRING_RETURN_IF_ERROR(Add(group, shared, stream));
                            PSRING_RETURN_IF_ERROR(Add(group, own, stream));
                          }
                          PSRING_RETURN_IF_ERROR(group.Barrier(stream));
                          PSRING_RETURN_IF_ERROR(stream.Synchronize());
                          registration.Unregister(shared);
                          return absl::OkStatus();
                        }),
            (std::vector<int>{0, 0, 0}));
}

TEST(CudaIpcProcesses, AKilledProcessIsNamedByTheOthers) {
  EXPECT_EQ(InProcesses(3, absl::Seconds(30),
                        [](ProcessGroup& group, Device& device, Stream& stream) -> absl::Status {
                          PSRING_ASSIGN_OR_RETURN(const Buffer memory,
                                                  device.Allocate(50000 * sizeof(float)));
                          PSRING_RETURN_IF_ERROR(Add(group, memory, stream));
                          if (group.rank() == 1) raise(SIGKILL);
                          const MonotonicTime begin = MonotonicNow();
                          const absl::Status status = Add(group, memory, stream);
                          if (absl::StrContains(status.message(), "rank 1") &&
                              MonotonicNow() - begin < absl::Seconds(20)) {
                            return absl::OkStatus();
                          }
                          return absl::InternalError(absl::StrCat("it said: ", status.ToString()));
                        }),
            (std::vector<int>{0, SIGKILL, 0}));
}

}  // namespace
}  // namespace psring
