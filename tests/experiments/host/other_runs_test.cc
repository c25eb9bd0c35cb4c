#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "experiments/host/machine.h"

namespace psring {
namespace {

using testing::Contains;
using testing::Not;

TEST(OtherRuns, AreReadFromTheNamesOfSockets) {
  const std::string line = "0000000000000000: 00000002 00000000 00000000 0002 01 123 ";
  const std::string text = absl::StrCat("Num       RefCount Protocol Flags    Type St Inode Path\n", line,
                                        "@psring-measures-77.0\n", line, "@psring-measures-9.0\n", line,
                                        "@psring-measures-9.1\n", line, "@psring-measures-5.0\n", line,
                                        "@psring-measures-x.0\n", line, "@psring-measures-99999999999.0\n",
                                        line, "/run/psring-measures-3.0\n", line, "@other\n", line, "\n");
  EXPECT_EQ(MeasuringProcesses(text, "psring-measures-5.0"), (std::vector<int>{9, 77}));
  EXPECT_EQ(MeasuringProcesses(text, "psring-measures-9.0"), (std::vector<int>{5, 9, 77}));
  EXPECT_EQ(MeasuringProcesses("", "psring-measures-5.0"), std::vector<int>());
}

// A process that measures until it is killed.
class Measuring {
 public:
  Measuring() {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const MeasuringNow measuring;
      if (write(ready[1], "x", 1) == 1) pause();
      _exit(1);
    }
    char byte = 0;
    close(ready[1]);
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  ~Measuring() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  int pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

TEST(OtherRuns, AreFoundWhileTheyMeasureAndNotAfterTheyWereKilled) {
  const MeasuringNow own;
  EXPECT_THAT(own.Others(), Not(Contains(getpid())));
  Measuring other;
  const int pid = other.pid();
  EXPECT_THAT(own.Others(), Contains(pid));
  other.Kill();
  EXPECT_THAT(own.Others(), Not(Contains(pid)));
}

TEST(OtherRuns, ANamesakeOfAnotherContainerIsAnother) {
  const MeasuringNow own;
  const MeasuringNow namesake;  // as if it had our process ID in a namespace of its own
  EXPECT_THAT(own.Others(), Contains(getpid()));
  EXPECT_THAT(namesake.Others(), Contains(getpid()));
}

}  // namespace
}  // namespace psring
