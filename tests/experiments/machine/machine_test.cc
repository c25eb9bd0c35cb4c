#include "experiments/machine/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "experiments/machine/connections.h"

namespace psring {
namespace {

constexpr char kStat[] =
    "cpu  300 0 0 900 0 0 0 0 0 0\n"
    "cpu0 100 10 20 500 30 1 2 3 0 0\n"
    "cpu1 200 0 0 400 0 0 0 0 0 0\n"
    "intr 12345\n";

TEST(Machine, BusyExcludesIdleIoWaitAndInterrupts) {
  EXPECT_DOUBLE_EQ(BusySeconds(kStat, {0}, 100), 1.33);
  EXPECT_DOUBLE_EQ(BusySeconds(kStat, {0, 1}, 100), 3.33);
  EXPECT_DOUBLE_EQ(BusySeconds("", {0}, 100), 0);
}

TEST(Machine, IsDescribed) {
  const Machine machine = DescribeMachine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_GT(machine.memory_mb, 0);
  EXPECT_FALSE(machine.kernel.empty());
}

constexpr char kCpuInfo[] =
    "processor\t: 0\n"
    "cpu family\t: 26\n"
    "model\t\t: 17\n"
    "model name\t: AMD EPYC\n"
    "stepping\t: 0\n"
    "flags\t\t: fpu amx_tile avx512_bf16 avx512f sse fma avx2 avx512_vnni amx_int8 avx512_vnnix\n"
    "\n"
    "processor\t: 1\n"
    "model\t\t: 1\n"
    "flags\t\t: fpu\n";

TEST(Processor, IsTheFirstOfCpuInfoAndListsTheSetsThatMatter) {
  const Processor processor = ParseProcessor(kCpuInfo);
  EXPECT_EQ(processor.instruction_sets, "avx2 fma avx512f avx512_bf16 avx512_vnni amx_tile amx_int8");
  EXPECT_EQ(ProcessorText(processor),
            "AMD EPYC (family 26, model 17, stepping 0; avx2 fma avx512f avx512_bf16 avx512_vnni amx_tile "
            "amx_int8)");
}

TEST(Processor, WithoutFamilyOrInstructionSetsIsOnlyNamed) {
  EXPECT_EQ(ProcessorText(ParseProcessor("model name: Neoverse-N1\nFeatures: asimd\n")), "Neoverse-N1");
  EXPECT_EQ(ProcessorText(ParseProcessor("")), "");
}

TEST(Machine, OurOwnWorkIsNotForeign) {
  const ForeignCpu foreign;
  volatile double sum = 0;
  for (int i = 0; i < 50'000'000; ++i) sum = sum + i;
  const double percent = foreign.Percent();
  EXPECT_GE(percent, 0);
  EXPECT_LE(percent, 100);
}

TEST(Calibrate, MeasuresTheLoopback) {
  const auto wires = CalibrateLoopback(2, absl::Milliseconds(200)).value();
  EXPECT_GT(wires.latency_s, 1e-7);
  EXPECT_LT(wires.latency_s, 0.1);
  EXPECT_GT(wires.bytes_per_s, 1e6);
  EXPECT_GE(wires.medium_bytes_per_s, 1e6);
  EXPECT_GT(wires.add_s_per_byte, 0);
}

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
