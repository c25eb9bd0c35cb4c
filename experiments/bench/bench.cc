#include "experiments/bench/bench.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/byte_size.h"
#include "common/base/check.h"
#include "common/cuda/cuda_device.h"
#include "common/device/device.h"
#include "common/devices/make_device.h"
#include "common/io/files.h"
#include "common/measure/trace.h"
#include "experiments/bench/files.h"
#include "experiments/bench/runner.h"
#include "experiments/bench/text.h"
#include "experiments/compare/experiment.h"
#include "experiments/processes/mpirun.h"
#include "experiments/report/report_verb.h"
#include "experiments/runs/recorded_run.h"
#include "experiments/runs/run_claim.h"
#include "experiments/texts/bench.h"
#include "experiments/theory/machine_profile.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

std::string UtcText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", time, absl::UTCTimeZone());
}

// Like nccl-tests, takes the first of FILE, FILE.0, FILE.1, ... that does not exist. Creates it now, so that
// an unwritable path fails before anything is measured.
absl::StatusOr<std::string> ReserveFile(const std::string& wanted) {
  std::string path = wanted;
  for (int count = 0;; ++count) {
    const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (fd >= 0) {
      close(fd);
      return path;
    }
    if (errno != EEXIST) {
      return absl::FailedPreconditionError(
          absl::StrCat("--output_file: cannot write ", path, ": ", strerror(errno)));
    }
    path = absl::StrCat(wanted, ".", count);
  }
}

// The result files.
class Outputs {
 public:
  static absl::StatusOr<Outputs> Make(const BenchFlags& flags) {
    Outputs outputs;
    PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<RunClaim> claim,
                            RunClaim::Make(flags.out, "bench", absl::Now()));
    outputs.folder_ = claim->path();
    if (!flags.json_file.empty()) {
      PSRING_ASSIGN_OR_RETURN(outputs.json_, ReserveFile(flags.json_file));
    }
    const absl::Status kept = claim->Keep();
    if (kept.ok()) return outputs;
    outputs.Discard();
    return kept;
  }

  // Deletes the reserved JSON file after a failure, but keeps the logs.
  void Discard() const {
    if (!json_.empty()) unlink(json_.c_str());
  }

  const std::string& folder() const { return folder_; }
  const std::string& json() const { return json_; }
  absl::Status Write(const std::string& name, const std::string& text) const {
    return WriteFile(absl::StrCat(folder_, "/", name), text);
  }
  absl::StatusOr<std::string> LogFolder(int round, size_t launch) const {
    const std::string path = absl::StrFormat("%s/logs/round%d-launch%d", folder_, round + 1, launch + 1);
    std::error_code error;
    fs::create_directories(path, error);
    if (error)
      return absl::FailedPreconditionError(absl::StrCat("cannot make ", path, ": ", error.message()));
    return path;
  }

 private:
  std::string folder_, json_;
};

absl::Status CheckMemory(const BenchPlan& plan, const Machine& machine) {
  const uint64_t needed = BenchMemoryBytes(plan), there = static_cast<uint64_t>(machine.memory_mb) << 20;
  if (there == 0 || needed <= there / 10 * 8) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("the buffers of all processes need %.1f GiB, but this machine has %.1f; use a smaller "
                      "--maxbytes or fewer --workers",
                      static_cast<double>(needed) / (1 << 30), static_cast<double>(there) / (1 << 30)));
}

absl::Status Measure(const BenchFlags& flags, const BenchPlan& plan, const BenchBinaries& binaries,
                     const Outputs& outputs, double expected_s, const Interrupt& interrupt, Display& display,
                     BenchResult& result) {
  for (int round = 0; round < plan.rounds; ++round) {
    const std::string label = plan.rounds > 1 ? absl::StrFormat("round %d/%d  ", round + 1, plan.rounds) : "";
    for (size_t i = 0; i < plan.launches.size(); ++i) {
      PSRING_ASSIGN_OR_RETURN(const std::string folder, outputs.LogFolder(round, i));
      PSRING_RETURN_IF_ERROR(LaunchBench(flags.request, plan, plan.launches[i], binaries, folder, expected_s,
                                         interrupt, label, display, result));
    }
  }
  display.Clear();
  return result.RequireComplete();
}

absl::Status Bench(BenchFlags flags, const Interrupt& interrupt, Display& display) {
  if (flags.request.device != "cpu") {
    PSRING_RETURN_IF_ERROR(MakeDevice(flags.request.device).status());
    flags.request.gpus = CudaDeviceCount();
  }
  PSRING_ASSIGN_OR_RETURN(const BenchBinaries binaries, FindBenchBinaries());
  PSRING_ASSIGN_OR_RETURN(const BenchCatalog catalog, AskRingWorker(binaries, interrupt));
  const absl::Status mpirun = FindMpirun({}).status();
  PSRING_ASSIGN_OR_RETURN(const BenchPlan plan, MakeBenchPlan(flags.request, catalog, mpirun));
  BenchRun run{
      .command_line = flags.command_line, .started_utc = UtcText(absl::Now()), .machine = DescribeMachine()};
  PSRING_ASSIGN_OR_RETURN(run.provenance, DescribeProvenance(binaries.all(), {}));
  PSRING_RETURN_IF_ERROR(CheckMemory(plan, run.machine));
  const double expected_s = ExpectedBenchSeconds(plan, flags.request, run.machine.cores);
  const auto say = [&](const std::string& text) {
    display.Say(text.substr(0, text.find_last_not_of('\n') + 1));
  };
  if (flags.dry_run) {
    say(BenchHeadText(flags.request, plan, run.machine, expected_s, flags.language));
    return absl::OkStatus();
  }
  PSRING_ASSIGN_OR_RETURN(const Outputs outputs, Outputs::Make(flags));
  run.run_id = fs::path(outputs.folder()).filename().string();
  say(BenchHeadText(flags.request, plan, run.machine, expected_s, flags.language));

  const int64_t begin = MonotonicNanos();
  BenchResult result(plan);
  absl::Status status = outputs.Write("manifest.json", BenchManifest(flags.request, plan, run));
  if (status.ok()) {
    status = outputs.Write(
        "config.toml",
        ConfigOf({.verb = "bench", .command_line = run.command_line, .provenance = run.provenance}, ""));
  }
  if (status.ok()) {
    status = Measure(flags, plan, binaries, outputs, expected_s, interrupt, display, result);
  }
  if (!status.ok()) {
    outputs.Discard();
    return status;
  }
  run.wall_s = 1e-9 * static_cast<double>(MonotonicNanos() - begin);
  run.ended_utc = UtcText(absl::Now());
  PSRING_RETURN_IF_ERROR(outputs.Write("manifest.json", BenchManifest(flags.request, plan, run)));
  PSRING_RETURN_IF_ERROR(outputs.Write("bench.csv", BenchCsv(flags.request, result, run)));
  const std::string json = BenchJson(flags.request, result, run);
  PSRING_RETURN_IF_ERROR(outputs.Write("bench.json", json));
  if (!outputs.json().empty()) PSRING_RETURN_IF_ERROR(WriteFile(outputs.json(), json));
  if (!flags.profile.empty()) {
    PSRING_ASSIGN_OR_RETURN(const std::vector<MachineProfile> profiles, ProfilesOfBench(run.run_id, json));
    PSRING_RETURN_IF_ERROR(WriteFile(flags.profile, ProfilesJson(profiles)));
    for (const MachineProfile& profile : profiles) display.Say(absl::StrCat("# ", Describe(profile)));
  }
  PSRING_RETURN_IF_ERROR(outputs.Write(
      "bench.txt",
      BenchHeadText(flags.request, plan, run.machine, expected_s) + BenchTablesText(flags.request, result)));
  PSRING_RETURN_IF_ERROR(WriteRunReport(outputs.folder(), flags.language));
  say(BenchTablesText(flags.request, result, flags.language));
  if (!outputs.json().empty()) display.Say(absl::StrCat("# Writing JSON output to ", outputs.json()));
  display.Say(Say(flags.language, kBenchAllOfIt, outputs.folder(), absl::StrFormat("%.0f", run.wall_s)));
  return absl::OkStatus();
}

}  // namespace

int RunBench(const BenchFlags& flags, const Interrupt& interrupt, Display& display) {
  const absl::Status status = Bench(flags, interrupt, display);
  return status.ok() ? 0 : ReportFailure("bench", status, display);
}

}  // namespace psring
