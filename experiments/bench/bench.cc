#include "experiments/bench/bench.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/byte_size.h"
#include "common/base/check.h"
#include "common/base/wall_time.h"
#include "common/cuda/cuda_device.h"
#include "common/device/device.h"
#include "common/devices/make_device.h"
#include "common/io/files.h"
#include "common/measure/trace.h"
#include "experiments/bench/files.h"
#include "experiments/bench/network_text.h"
#include "experiments/bench/on_nodes.h"
#include "experiments/bench/requirement.h"
#include "experiments/bench/runner.h"
#include "experiments/bench/text.h"
#include "experiments/compare/experiment.h"
#include "experiments/compare/on_nodes.h"
#include "experiments/host/other_runs.h"
#include "experiments/host/slowest_link.h"
#include "experiments/processes/mpirun.h"
#include "experiments/report/report_verb.h"
#include "experiments/runs/recorded_run.h"
#include "experiments/runs/run_claim.h"
#include "experiments/texts/bench.h"
#include "experiments/texts/plan.h"
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
                            RunClaim::Make(flags.out, "bench", WallNow()));
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

absl::Status Measure(const BenchSite& site, const Outputs& outputs, const Interrupt& interrupt,
                     Display& display, BenchResult& result) {
  const BenchPlan& plan = site.plan;
  for (int round = 0; round < plan.rounds; ++round) {
    const std::string label = plan.rounds > 1 ? absl::StrFormat("round %d/%d  ", round + 1, plan.rounds) : "";
    for (size_t i = 0; i < plan.launches.size(); ++i) {
      PSRING_ASSIGN_OR_RETURN(const std::string folder, outputs.LogFolder(round, i));
      PSRING_RETURN_IF_ERROR(LaunchBench(site, i, folder, interrupt, label, display, result));
    }
  }
  display.Clear();
  return result.RequireComplete();
}

// What is known before anything is measured; on several machines, each has its own.
struct Prepared {
  BenchFlags flags;
  BenchBinaries binaries;
  BenchPlan plan;
  Machine machine;
};

absl::StatusOr<Prepared> Prepare(const BenchFlags& flags, const Interrupt& interrupt) {
  Prepared prepared{.flags = flags};
  BenchRequest& request = prepared.flags.request;
  if (request.device != "cpu") {
    PSRING_RETURN_IF_ERROR(MakeDevice(request.device).status());
    request.gpus = CudaDeviceCount();
  }
  PSRING_ASSIGN_OR_RETURN(prepared.binaries, FindBenchBinaries());
  PSRING_ASSIGN_OR_RETURN(const BenchCatalog catalog, AskRingWorker(prepared.binaries, interrupt));
  const absl::Status mpirun = FindMpirun({}).status();
  PSRING_ASSIGN_OR_RETURN(prepared.plan, MakeBenchPlan(request, catalog, mpirun));
  prepared.machine = DescribeMachine();
  PSRING_RETURN_IF_ERROR(CheckMemory(prepared.plan, prepared.machine));
  return prepared;
}

// One benchmark, on this machine or, if `nodes` is not null, led by it.
class Benchmark {
 public:
  Benchmark(const Prepared& prepared, Nodes* nodes, const Interrupt& interrupt, Display& display)
      : flags_(prepared.flags),
        plan_(prepared.plan),
        interrupt_(interrupt),
        display_(display),
        site_{.request = prepared.flags.request,
              .plan = prepared.plan,
              .binaries = prepared.binaries,
              .nodes = nodes,
              .expected_s =
                  ExpectedBenchSeconds(prepared.plan, prepared.flags.request, prepared.machine.cores)},
        run_{.command_line = prepared.flags.command_line,
             .started_utc = UtcText(WallNow()),
             .machine = prepared.machine},
        result_(prepared.plan) {
    if (nodes != nullptr) run_.machines = nodes->Machines();
  }

  absl::Status Run() {
    PSRING_ASSIGN_OR_RETURN(run_.provenance, DescribeProvenance(site_.binaries.all(), {}));
    const double expected_s = site_.expected_s;
    if (flags_.dry_run) {
      SayLines(BenchHeadText(flags_.request, plan_, run_.machine, expected_s, flags_.language));
      return absl::OkStatus();
    }
    PSRING_ASSIGN_OR_RETURN(const Outputs outputs, Outputs::Make(flags_));
    run_.run_id = fs::path(outputs.folder()).filename().string();
    SayLines(BenchHeadText(flags_.request, plan_, run_.machine, expected_s, flags_.language));

    const int64_t begin = MonotonicNanos();
    absl::Status status = outputs.Write("manifest.json", BenchManifest(flags_.request, plan_, run_));
    if (status.ok()) {
      status = outputs.Write(
          "config.toml",
          ConfigOf({.verb = "bench", .command_line = run_.command_line, .provenance = run_.provenance}, ""));
    }
    const MeasuringNow measuring;
    const auto note_others = [&] {
      const std::vector<int> others = measuring.Others();
      if (others.empty()) return;
      const std::string note = Say(flags_.language, kOtherPsring, others.back());
      SayLines(absl::StrCat("# ", Say(flags_.language, kNoteOnErrors, note)));
    };
    note_others();
    if (status.ok()) status = MeasureNetwork(outputs);
    if (status.ok()) status = Measure(site_, outputs, interrupt_, display_, result_);
    note_others();
    if (!status.ok()) {
      outputs.Discard();
      return status;
    }
    run_.wall_s = 1e-9 * static_cast<double>(MonotonicNanos() - begin);
    run_.ended_utc = UtcText(WallNow());
    PSRING_RETURN_IF_ERROR(Write(outputs, expected_s));
    return CheckBusbw(flags_.request, result_, Slowest(Language::kEnglish));
  }

 private:
  void SayLines(const std::string& text) const {
    display_.SayLines(text.substr(0, text.find_last_not_of('\n') + 1));
  }

  std::string Network(Language language) const {
    return run_.network ? NetworkText(*run_.network, run_.machines, language) : "";
  }
  std::string Slowest(Language language) const {
    return run_.network ? SlowestText(SlowestOf(*run_.network), run_.machines, language) : "";
  }

  // Several machines: measures the network before the collectives.
  absl::Status MeasureNetwork(const Outputs& outputs) {
    if (site_.nodes == nullptr) return absl::OkStatus();
    display_.Redraw("# measuring the network between the machines");
    PSRING_ASSIGN_OR_RETURN(run_.network, site_.nodes->MeasureNetwork(interrupt_));
    display_.Clear();
    run_.wires = WiresBetween(*run_.network);
    site_.expected_s =
        ExpectedBenchSeconds(plan_, flags_.request, run_.machine.cores, SlowestRate(*run_.network));
    SayLines(Network(flags_.language));
    PSRING_RETURN_IF_ERROR(
        outputs.Write("network.csv", NetworkCsv(run_.run_id, *run_.network, run_.machines)));
    return outputs.Write("manifest.json", BenchManifest(flags_.request, plan_, run_));
  }

  absl::Status Write(const Outputs& outputs, double expected_s) const {
    const BenchRequest& request = flags_.request;
    PSRING_RETURN_IF_ERROR(outputs.Write("manifest.json", BenchManifest(request, plan_, run_)));
    PSRING_RETURN_IF_ERROR(outputs.Write("bench.csv", BenchCsv(request, result_, run_)));
    const std::string json = BenchJson(request, result_, run_);
    PSRING_RETURN_IF_ERROR(outputs.Write("bench.json", json));
    if (!outputs.json().empty()) PSRING_RETURN_IF_ERROR(WriteFile(outputs.json(), json));
    if (!flags_.profile.empty()) {
      PSRING_ASSIGN_OR_RETURN(const std::vector<MachineProfile> profiles, ProfilesOfBench(run_.run_id, json));
      PSRING_RETURN_IF_ERROR(WriteFile(flags_.profile, ProfilesJson(profiles)));
      for (const MachineProfile& profile : profiles) display_.Say(absl::StrCat("# ", Describe(profile)));
    }
    PSRING_RETURN_IF_ERROR(
        outputs.Write("bench.txt", BenchHeadText(request, plan_, run_.machine, expected_s) +
                                       Network(Language::kEnglish) + BenchTablesText(request, result_)));
    PSRING_RETURN_IF_ERROR(WriteRunReport(outputs.folder(), flags_.language));
    SayLines(BenchTablesText(request, result_, flags_.language));
    if (run_.network) SayLines(absl::StrCat("# ", Slowest(flags_.language)));
    if (!outputs.json().empty()) display_.Say(absl::StrCat("# Writing JSON output to ", outputs.json()));
    display_.Say(Say(flags_.language, kBenchAllOfIt, outputs.folder(), absl::StrFormat("%.0f", run_.wall_s),
                     CommandName()));
    return absl::OkStatus();
  }

  const BenchFlags& flags_;
  const BenchPlan& plan_;
  const Interrupt& interrupt_;
  Display& display_;
  BenchSite site_;
  BenchRun run_;
  BenchResult result_;
};

absl::Status Bench(const BenchFlags& flags, const Interrupt& interrupt, Display& display) {
  PSRING_ASSIGN_OR_RETURN(const Prepared prepared, Prepare(flags, interrupt));
  const auto measure = [&](Nodes* nodes) { return Benchmark(prepared, nodes, interrupt, display).Run(); };
  if (!flags.nodes.several() || flags.dry_run) return measure(nullptr);
  return RunBenchOnNodes(prepared.flags, prepared.plan, prepared.binaries, interrupt, display,
                         [&](Nodes& nodes) { return measure(&nodes); });
}

}  // namespace

int RunBench(const BenchFlags& flags, const Interrupt& interrupt, Display& display) {
  const absl::Status status = Bench(flags, interrupt, display);
  if (status.ok()) return 0;
  return ReportFailure("bench", flags.nodes.node == 0 ? WithNothingKept(status) : status, display);
}

}  // namespace psring
