#include "experiments/verbs/bench/bench.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/read_file.h"
#include "common/base/wall_time.h"
#include "common/cuda/cuda_device.h"
#include "common/device/device.h"
#include "common/device_factory/make_device.h"
#include "common/io/files.h"
#include "common/measure/trace.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/engine/failure.h"
#include "experiments/engine/launch.h"
#include "experiments/engine/programs.h"
#include "experiments/launch/mpirun.h"
#include "experiments/machine/machine.h"
#include "experiments/machine/network_report.h"
#include "experiments/page/page.h"
#include "experiments/run_folder/recorded_run.h"
#include "experiments/run_folder/run_claim.h"
#include "experiments/run_folder/run_folder.h"
#include "experiments/verbs/bench/result.h"
#include "experiments/verbs/bench/runner.h"
#include "experiments/verbs/bench/text.h"

namespace psring {
namespace {

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
          Tr("--output_file: cannot write $0: $1", path, Translation(strerror(errno))));
    }
    path = absl::StrCat(wanted, ".", count);
  }
}

absl::Status CheckMemory(const BenchPlan& plan, const Machine& machine) {
  const uint64_t needed = BenchMemoryBytes(plan), there = static_cast<uint64_t>(machine.memory_mb) << 20;
  if (there == 0 || needed <= there / 10 * 8) return absl::OkStatus();
  return InvalidTr(
      "the buffers of all processes need $0 GiB, but this machine has $1; use a smaller --maxbytes or "
      "fewer --workers",
      Fixed(1.0 * needed / (1 << 30), 1), Fixed(1.0 * there / (1 << 30), 1));
}

// What is known before anything is measured; on several machines, each has its own.
struct Prepared {
  BenchFlags flags;
  Binaries binaries;
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
  const auto control = ReadFile("/proc/sys/net/ipv4/tcp_congestion_control");
  if (control.ok()) request.congestion_control = std::string(absl::StripAsciiWhitespace(*control));
  PSRING_ASSIGN_OR_RETURN(prepared.binaries, FindBenchBinaries());
  PSRING_ASSIGN_OR_RETURN(const std::string described, Described(prepared.binaries.ring_worker, interrupt));
  PSRING_ASSIGN_OR_RETURN(const BenchCatalog catalog, BenchCatalogFromJson(described));
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
        expected_s_(ExpectedBenchSeconds(prepared.plan, prepared.flags.request, prepared.machine.cores)),
        bench_{.request = prepared.flags.request,
               .plan = prepared.plan,
               .binaries = prepared.binaries,
               .site = {.nodes = nodes},
               .expected_s = expected_s_},
        manifest_{.verb = "bench",
                  .command_line = prepared.flags.command_line,
                  .started_utc = UtcText(WallNow()),
                  .machine = prepared.machine,
                  .plan = {.notes = prepared.plan.notes},
                  .bench = BenchPlanJson(prepared.flags.request, prepared.plan)},
        result_(prepared.plan) {
    if (nodes != nullptr) manifest_.machines = nodes->Machines();
  }

  absl::Status Run() {
    PSRING_ASSIGN_OR_RETURN(manifest_.provenance, DescribeProvenance(bench_.binaries.all(), {}));
    if (!flags_.dry_run) PSRING_RETURN_IF_ERROR(OpenFiles());
    SayLines(Head());
    if (flags_.dry_run) return absl::OkStatus();
    const int64_t begin = MonotonicNanos();
    if (const absl::Status measured = Measure(); !measured.ok()) return WithoutJson(measured);
    manifest_.wall_s = 1e-9 * (MonotonicNanos() - begin);
    PSRING_RETURN_IF_ERROR(Write());
    return CheckBusbw(flags_.request, result_, Slowest());
  }

 private:
  void SayLines(const std::string& text) const {
    display_.SayLines(text.substr(0, text.find_last_not_of('\n') + 1));
  }

  std::string Head() const { return BenchHeadText(flags_.request, plan_, manifest_.machine, expected_s_); }
  std::string Network() const {
    return manifest_.network ? NetworkText(*manifest_.network, manifest_.machines) : "";
  }
  std::string Slowest() const {
    return manifest_.network ? SlowestText(SlowestOf(*manifest_.network), manifest_.machines) : "";
  }

  absl::Status OpenFiles() {
    PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<RunClaim> claim,
                            RunClaim::Make(flags_.out, "bench", WallNow()));
    if (!flags_.json_file.empty()) {
      PSRING_ASSIGN_OR_RETURN(json_, ReserveFile(flags_.json_file));
    }
    absl::StatusOr<RunFolder> folder = RunFolder::Open(*claim);
    if (!folder.ok()) return WithoutJson(folder.status());
    folder_.emplace(*std::move(folder));
    manifest_.run_id = folder_->run_id();
    return absl::OkStatus();
  }

  // After a failure: deletes the reserved file, but keeps the logs.
  absl::Status WithoutJson(const absl::Status& why) const {
    if (!json_.empty()) unlink(json_.c_str());
    return why;
  }

  absl::Status Measure() {
    PSRING_RETURN_IF_ERROR(folder_->WriteManifest(manifest_));
    const MeasuringNow measuring;
    NoteOtherPsring(&measuring, display_, /*commented=*/true);
    absl::Status measured = MeasureRounds();
    NoteOtherPsring(&measuring, display_, /*commented=*/true);
    return measured;
  }

  absl::Status MeasureRounds() {
    if (bench_.site.nodes != nullptr) PSRING_RETURN_IF_ERROR(MeasureNetwork());
    int rounds = 0;
    PSRING_RETURN_IF_ERROR(RunRounds(
        plan_.launches.size(), /*seed=*/1,
        [&] { return rounds < plan_.rounds ? std::optional(rounds++) : std::nullopt; },
        [&](int round, size_t launch) -> absl::Status {
          const std::string label =
              plan_.rounds > 1 ? absl::StrFormat("round %d/%d  ", round + 1, plan_.rounds) : "";
          PSRING_ASSIGN_OR_RETURN(
              const std::string folder,
              folder_->RecordFolder(absl::StrFormat("logs/round%d-launch%d", round + 1, launch + 1)));
          return LaunchBench(bench_, launch, folder, interrupt_, label, display_, result_);
        },
        [] { return absl::OkStatus(); }));
    display_.Clear();
    return result_.RequireComplete();
  }

  // Several machines: measures the network before the collectives.
  absl::Status MeasureNetwork() {
    display_.Redraw("# measuring the network between the machines");
    PSRING_ASSIGN_OR_RETURN(manifest_.network, bench_.site.nodes->MeasureNetwork(interrupt_));
    display_.Clear();
    manifest_.wires = WiresBetween(*manifest_.network);
    bench_.expected_s =
        ExpectedBenchSeconds(plan_, flags_.request, manifest_.machine.cores, SlowestRate(*manifest_.network));
    SayLines(Network());
    PSRING_RETURN_IF_ERROR(
        folder_->Write("network.csv", NetworkCsv(manifest_.run_id, *manifest_.network, manifest_.machines)));
    return folder_->WriteManifest(manifest_);
  }

  absl::Status Write() const {
    const BenchRequest& request = flags_.request;
    PSRING_RETURN_IF_ERROR(folder_->WriteManifest(manifest_));
    PSRING_RETURN_IF_ERROR(folder_->Write("bench.csv", BenchCsv(request, result_, manifest_)));
    const std::string json = BenchJson(request, result_, manifest_, UtcText(WallNow()));
    PSRING_RETURN_IF_ERROR(folder_->Write("bench.json", json));
    if (!json_.empty()) PSRING_RETURN_IF_ERROR(WriteFile(json_, json));
    const std::string text = InLanguage(Language::kEnglish, [&] {
      return absl::StrCat(Head(), Network(), BenchTablesText(request, result_));
    });
    PSRING_RETURN_IF_ERROR(folder_->Write("bench.txt", text));
    PSRING_RETURN_IF_ERROR(WriteRunReport(folder_->path()));
    SayLines(BenchTablesText(request, result_));
    if (manifest_.network) SayLines(absl::StrCat("# ", Slowest()));
    if (!json_.empty()) display_.Say(absl::StrCat("# Writing JSON output to ", json_));
    display_.Say(
        Tr("# results: $0/report.html and other files in this folder ($1 s); repeat: $2 bench --config "
           "$0/config.toml",
           folder_->path(), Fixed(manifest_.wall_s, 0), CommandName()));
    return absl::OkStatus();
  }

  const BenchFlags& flags_;
  const BenchPlan& plan_;
  const Interrupt& interrupt_;
  Display& display_;
  const double expected_s_;  // before the network was measured
  BenchSite bench_;
  Manifest manifest_;
  BenchResult result_;
  std::optional<RunFolder> folder_;  // nullopt: --dry_run
  std::string json_;                 // reserved for --output_file; empty: none
};

absl::Status Bench(const BenchFlags& flags, const Interrupt& interrupt, Display& display) {
  PSRING_ASSIGN_OR_RETURN(const Prepared prepared, Prepare(flags, interrupt));
  const BenchRequest& request = prepared.flags.request;
  const auto measure = [&](Nodes* nodes) { return Benchmark(prepared, nodes, interrupt, display).Run(); };
  if (flags.dry_run) return measure(nullptr);
  const auto task = [&](const Nodes& nodes, const NodeOrder& order, const std::string& /*folder*/) {
    const int node = nodes.options().node;
    return BenchTaskOf(order, request, prepared.plan,
                       {.node = node,
                        .host = {.binaries = prepared.binaries, .address = nodes.address(node)},
                        .store = {.host = nodes.address(0), .secret = nodes.options().secret}});
  };
  return LeadOrFollow(flags.nodes, request.tls, SharedBenchFlags(request, prepared.plan), task, interrupt,
                      display, measure);
}

}  // namespace

int RunBench(const BenchFlags& flags, const Interrupt& interrupt, Display& display) {
  return EndOfVerb("bench", Bench(flags, interrupt, display), flags.nodes.node == 0, display);
}

}  // namespace psring
