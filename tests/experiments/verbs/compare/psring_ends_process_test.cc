// The real binary on a virtual cluster, and after a signal, after SIGKILL and after the death of a worker.
#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "tests/experiments/psring_in_a_folder.h"
#include "tests/experiments/training_processes.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

class PsringEndsTest : public PsringInAFolder {
 protected:
  // The output of psring in a shell that runs `before` first; expects the exit code 2.
  std::string RefusedAfter(const std::string& before, const std::string& arguments) {
    const std::string command = absl::StrCat("cd ", (root_ / "work").string(), " && ", before, " ",
                                             PSRING_BINARY, " ", arguments, " 2>&1");
    FILE* const psring = popen(command.c_str(), "r");
    if (psring == nullptr) return "popen failed";
    std::string output(1 << 16, 0);
    output.resize(fread(output.data(), 1, output.size(), psring));
    EXPECT_EQ(WEXITSTATUS(pclose(psring)), 2) << output;
    return output;
  }
};

constexpr char kFourSteps[] =
    "train --strategy ring --workers 4 --data synthetic --model mlp-small --steps 4 --no_eval";

TEST_F(PsringEndsTest, TooFewDescriptorsForItsProcessesAreReportedAtOnce) {
  const std::string output = RefusedAfter("ulimit -n 36 &&", kFourSteps);
  EXPECT_THAT(output,
              Has("this process may open 36 files, and 4 processes need about 38; run: ulimit -n 38"));
}

TEST_F(PsringEndsTest, TooLittleAddressSpaceIsReportedAtOnce) {
  for (const int mib : {150, 400}) {
    const std::string output = RefusedAfter(absl::StrCat("ulimit -v ", mib * 1024, " &&"), kFourSteps);
    EXPECT_THAT(output, OneLineWith(absl::StrCat("psring: this process may use ", mib,
                                                 " MiB of address space, and psring needs ")));
  }
}

TEST_F(PsringEndsTest, TooLittleSharedMemoryForOpenMpiIsReported) {
  const Outcome mpi = Run(Words("bench --backend mpi --transport shm -b 1K -e 1K --dry_run"));
  if (mpi.exit_code != 0) GTEST_SKIP() << mpi.err;
  const std::string small =
      "unshare --user --map-root-user --mount /bin/sh -c 'mount -t tmpfs -o size=1m none /dev/shm";
  if (std::system(absl::StrCat(small, "' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "user and mount namespaces are not permitted";
  }
  const std::string output =
      RefusedAfter(small + " && exec", "bench --backend mpi --transport shm -b 1K -e 1K' ");
  EXPECT_THAT(output, Has("MiB of /dev/shm, 4 MiB for each rank, and 1 MiB are free"));
}

// Skipped if this machine does not allow namespaces.
class VirtualClusterTest : public PsringEndsTest {
 protected:
  void SetUp() override {
    PsringEndsTest::SetUp();
    const Outcome possible =
        Run(Words("train --data synthetic --model mlp-small --link 1gbit --shaping netns --dry_run"));
    if (possible.exit_code != 0) GTEST_SKIP() << possible.err;
  }
};

TEST_F(VirtualClusterTest, RanksOfOneProcessShareALink) {
  const Outcome outcome = SucceedOnLinks(
      "compare --model mlp --data synthetic --strategies ring,hierarchical,ps-sync --workers 2,4 "
      "--ranks_per_process 2 "
      "--repeats 1 --warmup_steps 1 --steps 3 --no_eval --batch 16 --link 1gbit");
  int compared = 0;
  for (const auto& row : JsonFile("runs/latest/summary.json")) {
    const auto& figures = row["figures"];
    SCOPED_TRACE(figures.dump());
    const std::string strategy = figures["strategy"];
    // The part of two ranks' payload that leaves their machine. With both all-reduces each rank sends 3/2 of
    // a gradient; over its link a machine sends 3/2 of one in the ring, and one in hierarchical.
    const std::map<std::string, double> parts = {
        {"ring", 1.0 / 2}, {"hierarchical", 1.0 / 3}, {"ps-sync", 1}};
    if (!parts.contains(strategy)) continue;
    const double part = parts.at(strategy);
    const bool ring = strategy == "ring";
    ++compared;
    const double payload = figures["payload_tx_bytes_per_worker"];
    if (figures["workers"] == 2) {  // on one machine
      EXPECT_THAT(figures["note"].get<std::string>(),
                  Has(absl::StrCat("2 ranks in one process, ",
                                   strategy == "ps-sync" ? "on one link" : "which use no link")));
      EXPECT_TRUE(figures["predicted_comm_ms"].is_null());
      continue;
    }
    EXPECT_THAT(figures["note"].get<std::string>(), Has("2 ranks per process, on one link"));
    EXPECT_NEAR(figures["wire_tx_bytes_per_worker"].get<double>() / payload, part * 1.035, 0.035);
    EXPECT_GT(figures["comm_busy_ms"].get<double>(), 0.9 * 1e3 * 2 * part * payload / 125e6);
    EXPECT_EQ(figures["predicted_comm_ms"].is_null(), !ring);
    if (strategy == "hierarchical") {
      EXPECT_EQ(figures["algorithm"], "hierarchical:2");
    }
  }
  EXPECT_EQ(compared, 6);
  const auto manifest = JsonFile("runs/latest/manifest.json");
  EXPECT_EQ(manifest["link"]["preflight"]["each_link_mbps"].size(), 3) << manifest["link"];
  EXPECT_GT(manifest["link"]["server_wires_mb_per_s"]["grpc"], 0);
  EXPECT_FALSE(manifest["link"]["server_wires_mb_per_s"].contains("stream")) << "no row uses it";
}

TEST_F(VirtualClusterTest, KillingPsringRemovesTheCluster) {
  const pid_t psring = StartLongTraining("ps-sync", "--link 1gbit");
  // A namespace exists as long as a process is in it, and these are all.
  const fs::path ours = fs::read_symlink("/proc/self/ns/net");
  int elsewhere = 0;
  for (const std::string& process : Processes(Out())) {
    std::error_code gone;
    elsewhere += fs::read_symlink(fs::path("/proc") / process / "ns/net", gone) != ours;
  }
  EXPECT_EQ(elsewhere, 3);
  kill(psring, SIGKILL);
  Finish(psring);
  ExpectNoProcessWith(Out());
}

class SignalTest : public PsringEndsTest, public testing::WithParamInterface<int> {};

TEST_P(SignalTest, EndsAllProcessesAndSetsTheExitCode) {
  const pid_t psring = StartLongTraining("ps-sync");
  EXPECT_GE(Processes(Out()).size(), 4);
  kill(psring, GetParam());
  const Outcome outcome = FinishSoon(psring);
  EXPECT_EQ(outcome.exit_code, 128 + GetParam()) << outcome.err;
  EXPECT_EQ(outcome.err, absl::StrCat("psring train: interrupted (SIG", sigabbrev_np(GetParam()),
                                      "); there are no results; the logs are in ", Out(), "\n"));
  EXPECT_TRUE(Processes(Out()).empty());
}

INSTANTIATE_TEST_SUITE_P(Signals, SignalTest, testing::Values(SIGINT, SIGTERM, SIGHUP),
                         [](const auto& info) { return sigabbrev_np(info.param); });

// As NTP does after a pause: ten hours are more than any deadline of this job, and no wait may end by them.
TEST_F(PsringEndsTest, SettingTheWallClockForwardEndsNoJob) {
  setenv("LD_PRELOAD", PSRING_CLOCK_OFF, 1);
  for (const std::string strategy : {"ring", "ps-async"}) {
    SCOPED_TRACE(strategy);
    const fs::path out = root_ / strategy, jumps = root_ / absl::StrCat(strategy, "-jumps");
    setenv("PSRING_CLOCK_JUMPS", jumps.c_str(), 1);
    constexpr int kSteps = 300;
    const pid_t psring = Start(Words(
        absl::StrCat("train --data synthetic --model mlp-small --workers 2 --no_eval --timeout 20 --steps ",
                     kSteps, " --strategy ", strategy, " --out ", out.string())));
    const fs::path steps = out / absl::StrCat("records/training-1/", strategy, "-2/steps-rank0.jsonl");
    AwaitSteps(steps);
    const std::string before = Slurp(steps);
    EXPECT_LT(std::count(before.begin(), before.end(), '\n'), kSteps / 2) << "it jumps too late";
    std::ofstream(jumps).close();
    const Outcome outcome = Finish(psring);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  unsetenv("PSRING_CLOCK_JUMPS");
  unsetenv("LD_PRELOAD");
}

TEST_F(PsringEndsTest, AKilledWorkerIsNamedAndEndsTheJob) {
  const pid_t psring = StartLongTraining("ring");
  SignalProcess(Out(), "rank 1", SIGKILL);
  const Outcome outcome = FinishSoon(psring);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_TRUE(absl::StartsWith(outcome.err, "psring train: ring x 2: rank 1 was killed by SIGKILL"))
      << outcome.err;
  EXPECT_TRUE(Processes(Out()).empty());
}

}  // namespace
}  // namespace psring
