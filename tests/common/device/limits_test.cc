#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/device/control_groups.h"
#include "common/device/memory_limit.h"
#include "common/device/task_limit.h"
#include "tests/common/device/fake_root.h"

namespace psring {
namespace {

using ControlGroupsTest = FakeRoot;
using MemoryLimitTest = FakeRoot;
using TaskLimitTest = FakeRoot;

constexpr char kNamespaceOfVersion2[] =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr char kCpuOfVersion1[] =
    "31 23 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    "33 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";

struct QuotaCase {
  std::string what;
  std::string mounts, groups;  // of /proc/self
  std::string files;           // for WriteFiles
  double cores = 0;
};

const std::vector<QuotaCase> kQuotaCases = {
    {"no file at all", "", "", "", 0},
    {"version 2, the quota of the root of a namespace", kNamespaceOfVersion2, "0::/\n",
     "cpu.max: 150000 100000", 1.5},
    {"version 2, a group of one's own (systemd-run)", kNamespaceOfVersion2, "0::/user.slice/run-1.scope\n",
     "user.slice/run-1.scope/cpu.max: 100000 100000; user.slice/cpu.max: max 100000", 1},
    {"version 2, the lowest of all ancestors (Slurm)", kNamespaceOfVersion2, "0::/slurm/job_7/step_0\n",
     "slurm/cpu.max: 800000 100000; slurm/job_7/cpu.max: 200000 100000; slurm/job_7/step_0/cpu.max: 300000 "
     "100000",
     2},
    {"version 2, no quota", kNamespaceOfVersion2, "0::/a\n", "cpu.max: max 100000; a/cpu.max: max 100000", 0},
    {"a group beside this one does not count", kNamespaceOfVersion2, "0::/a\n", "b/cpu.max: 100000 100000",
     0},
    {"version 1, whose folder has the names of two controllers", kCpuOfVersion1,
     "5:cpuset:/\n4:cpu,cpuacct:/job\n0::/\n",
     "cpu,cpuacct/job/cpu.cfs_quota_us: 100000; cpu,cpuacct/job/cpu.cfs_period_us: 50000", 2},
    {"version 1, an ancestor has the quota", kCpuOfVersion1, "4:cpu,cpuacct:/kubepods/pod1/c\n0::/\n",
     "cpu,cpuacct/kubepods/pod1/cpu.cfs_quota_us: 50000; cpu,cpuacct/kubepods/pod1/cpu.cfs_period_us: "
     "100000; cpu,cpuacct/kubepods/pod1/c/cpu.cfs_quota_us: -1; "
     "cpu,cpuacct/kubepods/pod1/c/cpu.cfs_period_us: 100000",
     0.5},
    {"version 1 in a container: the mount's top is this container's group",
     "33 31 0:29 /docker/01 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n", "4:cpu:/docker/01\n",
     "cpu/cpu.cfs_quota_us: 300000; cpu/cpu.cfs_period_us: 100000", 3},
    {"version 1 in a container whose mount does not name its group",
     "33 31 0:29 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n", "4:cpu:/docker/01\n",
     "cpu/cpu.cfs_quota_us: 300000; cpu/cpu.cfs_period_us: 100000", 3},
    {"mounted elsewhere, in a folder with a space",
     "30 23 0:26 / /mnt/control\\040groups rw - cgroup2 none rw\n", "0::/a\n",
     "/mnt/control groups/a/cpu.max: 200000 100000", 2},
    {"another container's mount does not count",
     absl::StrCat(kNamespaceOfVersion2, "35 23 0:26 /other /mnt/other rw - cgroup2 cgroup2 rw\n"),
     "0::/mine\n", "mine/cpu.max: 400000 100000; /mnt/other/cpu.max: 100000 100000", 4},
    {"a group above the namespace's root", kNamespaceOfVersion2, "0::/../other\n",
     "cpu.max: 400000 100000; /sys/fs/other/cpu.max: 100000 100000", 4},
    {"without mountinfo, in the usual places", "", "4:cpu:/job\n0::/\n",
     "cpu/job/cpu.cfs_quota_us: 100000; cpu/job/cpu.cfs_period_us: 100000", 1},
    {"malformed files", kNamespaceOfVersion2, "0::/a\nx\n:::\n", "a/cpu.max: -3 0", 0},
    {"numbers that are not finite", kNamespaceOfVersion2, "0::/\n", "cpu.max: nan inf", 0},
    {"a cut-off file and mount", "30 23 0:26 /\n30 - cgroup2\n", "0::/\n", "cpu.max: 7", 0},
};

TEST_F(ControlGroupsTest, TheLowestQuotaOfAllGroupsCounts) {
  for (const QuotaCase& of : kQuotaCases) {
    WriteFiles(of.files);
    Write("/proc/self/cgroup", of.groups);
    if (!of.mounts.empty()) Write("/proc/self/mountinfo", of.mounts);
    EXPECT_DOUBLE_EQ(QuotaCores(root_), of.cores) << of.what;
    Clear();
  }
}

TEST_F(ControlGroupsTest, AtLeastOneCoreIsUsable) { EXPECT_GE(UsableCores(), 1); }

TEST_F(MemoryLimitTest, WithoutALimitThereIsNoResult) {
  EXPECT_FALSE(ControlGroupMemory(root_).has_value());
  WriteFiles("/proc/self/cgroup: 0::/job; job/memory.max: max; job/memory.current: 1000");
  EXPECT_FALSE(ControlGroupMemory(root_).has_value());
}

TEST_F(MemoryLimitTest, VersionTwoUsesTheTightestAncestorAndFileCachesCountAsFree) {
  WriteFiles(
      "/proc/self/cgroup: 0::/slice/job; slice/memory.max: 5000; slice/memory.current: 4000; "
      "slice/memory.stat: anon 3000\ninactive_file 400\nactive_file 200; slice/job/memory.max: 9000; "
      "slice/job/memory.current: 4000");
  const auto memory = ControlGroupMemory(root_).value();
  EXPECT_EQ(memory.total, 5000u);
  EXPECT_EQ(memory.free, 1600u);
}

TEST_F(MemoryLimitTest, VersionOneInAContainerHasItsGroupAtTheTop) {
  WriteFiles(
      "/proc/self/cgroup: 5:devices:/\n4:cpu,memory:/docker/0123\n0::/; "
      "memory/memory.limit_in_bytes: 8192; memory/memory.usage_in_bytes: 9000");
  const auto memory = ControlGroupMemory(root_).value();
  EXPECT_EQ(memory.total, 8192u);
  EXPECT_EQ(memory.free, 0u);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(ControlGroupMemory(root_).has_value());
}

TEST_F(MemoryLimitTest, ProcessesOfOneGroupShareItsLimitAndAnAddressSpaceIsThatOfAProcess) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  if (before.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "the address space is limited already";
  WriteFiles(
      "/proc/self/cgroup: 0::/slice/job; slice/memory.max: 5000; slice/memory.current: 4000; "
      "slice/job/memory.max: max; slice/job/memory.current: 4000");
  EXPECT_EQ(MemoryScope(root_), root_ + "/sys/fs/cgroup/slice") << "also that of its other jobs";
  Write("/sys/fs/cgroup/slice/memory.max", "max\n");
  EXPECT_EQ(MemoryScope(root_), "");
  rlimit limited = before;
  limited.rlim_cur = rlim_t{1} << 62;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limited), 0);
  EXPECT_EQ(MemoryScope(root_), absl::StrCat("process ", getpid()));
  EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
}

TEST_F(MemoryLimitTest, AnEighthOfFreeMemoryIsReserved) {
  const auto device = MakeCpuDevice();
  const size_t usable = UsableMemory(*device);
  EXPECT_GT(usable, 0u);
  EXPECT_LT(usable, device->memory().value().total);
}

TEST_F(TaskLimitTest, TheGroupThatLeavesTheFewestCounts) {
  WriteFiles(
      "/proc/self/uid_map:          0          0 4294967295; /proc/self/cgroup: 0::/pod/job; "
      "/proc/self/status: Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff; pod/pids.max: 100; pod/pids.current: "
      "95; pod/job/pids.max: 50; pod/job/pids.current: 20");
  const auto limit = LowestTaskLimit(root_).value();
  EXPECT_EQ(limit.left, 5);
  EXPECT_EQ(limit.most, 100);
  EXPECT_TRUE(AllowTasks(5, "a job", root_).ok());
  EXPECT_EQ(
      AllowTasks(6, "2 ranks", root_).message(),
      absl::StrCat("5 more processes and threads may start (", root_,
                   "/sys/fs/cgroup/pod/pids.max is 100), and about 6 are needed for 2 ranks; raise it to 101 "
                   "(docker run --pids-limit, TasksMax of systemd, podPidsLimit of Kubernetes)"));
}

TEST_F(TaskLimitTest, VersionOneAndNoLimit) {
  WriteFiles(
      "/proc/self/uid_map: 0 0 4294967295; /proc/self/status: Uid:\t0\t0\t0\t0; /proc/self/cgroup: "
      "8:pids:/job; pids/job/pids.max: max; pids/job/pids.current: 20");
  EXPECT_FALSE(LowestTaskLimit(root_).has_value());
  EXPECT_TRUE(AllowTasks(1 << 20, "a job", root_).ok());
  Write("/sys/fs/cgroup/pids/job/pids.max", "12\n");
  EXPECT_EQ(LowestTaskLimit(root_)->left, 0) << "more run than the limit, which was lowered";
}

// How a child process ends that calls `then`, and its output on stderr.
std::string InAChild(const std::function<void()>& then) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    then();
    _exit(0);
  }
  close(ends[1]);
  std::string output;
  char text[4096];
  for (ssize_t bytes = 0; (bytes = read(ends[0], text, sizeof text)) > 0;)
    output.append(text, static_cast<size_t>(bytes));
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  return absl::StrCat("exit ", WEXITSTATUS(status), ": ", output);
}

TEST_F(TaskLimitTest, TheUsersLimitIsRaisedAsFarAsAllowedAndCountsItsThreads) {
  Write("/proc/self/uid_map", "0 1000 1\n");  // another user namespace: root is not exempt
  Write("/proc/10/status", absl::StrCat("Uid:\t", getuid(), "\t0\t0\t0\nThreads:\t30\n"));
  Write("/proc/11/status", absl::StrCat("Uid:\t", getuid(), "\t0\t0\t0\nThreads:\t5\n"));
  Write("/proc/12/status", absl::StrCat("Uid:\t", getuid() + 1, "\t0\t0\t0\nThreads:\t500\n"));
  const std::string said = InAChild([&] {
    const rlimit limits{36, 40};
    if (setrlimit(RLIMIT_NPROC, &limits) != 0) _exit(1);
    const std::string message(AllowTasks(9, "2 ranks", root_).message());
    if (!AllowTasks(5, "2 ranks", root_).ok()) _exit(2);
    if (write(STDERR_FILENO, message.data(), message.size()) < 0) _exit(3);
  });
  EXPECT_EQ(said,
            "exit 0: 5 more processes and threads may start (ulimit -u is 40), and about 9 are needed for 2 "
            "ranks; run: ulimit -u 44");
}

// The rest of the program need not handle std::system_error, and gRPC does not abort.
TEST_F(TaskLimitTest, AThreadThatCannotStartEndsTheProcessWithALine) {
  if (geteuid() != 0) GTEST_SKIP() << "another user, whose limit can be reached, needs root";
  const std::string said = InAChild([] {
    constexpr uid_t kUnusedUser = 64'123;
    const rlimit limits{4, 4};
    if (setresuid(kUnusedUser, kUnusedUser, kUnusedUser) != 0 || setrlimit(RLIMIT_NPROC, &limits) != 0)
      _exit(3);
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back([] { pause(); });
    _exit(4);
  });
  EXPECT_EQ(said, "exit 1: common_test: cannot start a thread; ulimit -u is 4: run: ulimit -u 8\n");
}

TEST_F(TaskLimitTest, OnlyOneErrorHasALimitAsItsCause) {
  EXPECT_EQ(TaskLimitText(ENOMEM), "");
  EXPECT_TRUE(absl::StartsWith(TaskLimitText(EAGAIN), "; "));
}

}  // namespace
}  // namespace psring
