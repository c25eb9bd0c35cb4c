#include "common/device/task_limit.h"

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
#include "tests/common/device/fake_root.h"

namespace psring {
namespace {

using TaskLimitTest = FakeRoot;

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
