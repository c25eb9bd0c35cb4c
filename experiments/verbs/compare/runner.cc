#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/cuda/cuda_device.h"
#include "common/device/task_limit.h"
#include "common/io/checkpoint_folder.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "common/net/descriptor_limit.h"
#include "common/text/translate.h"
#include "experiments/analysis/launch_figures.h"
#include "experiments/design/launches.h"
#include "experiments/design/plan.h"
#include "experiments/launch/launcher.h"
#include "experiments/launch/mpirun.h"
#include "experiments/machine/machine.h"
#include "experiments/run_folder/run_folder.h"
#include "experiments/verbs/compare/prepare.h"

namespace psring {
namespace {

// Longer than a trainer needs to write a checkpoint and exit.
constexpr absl::Duration kGraceWithCheckpoint = absl::Seconds(25);

// The difference of the links' counters, per step.
std::optional<NetworkFigures> NetworkOf(const std::vector<NodeCounters>& before,
                                        const std::vector<NodeCounters>& after, size_t steps,
                                        double bits_per_s) {
  if (after.size() != before.size() || steps == 0) return std::nullopt;
  const std::vector<NodeCounters> nodes = Difference(after, before);
  const double part = 1 / static_cast<double>(steps);
  NetworkFigures figures{.again_ms = part * RetransmissionMs(nodes, bits_per_s)};
  for (const NodeCounters& node : nodes) {
    figures.retransmitted_segments += part * static_cast<double>(node.retransmitted_segments);
    figures.timeouts += part * static_cast<double>(node.timeouts);
    figures.queue_drops += part * static_cast<double>(node.queue_drops);
  }
  return figures;
}

// The processes of a configuration, which are started again if the job restarts.
class TrainingLaunch {
 public:
  TrainingLaunch(Configuration configuration, const std::string& folder, const std::string& label,
                 double expected_s, const Binaries& binaries, const Site& site, const Interrupt& interrupt,
                 Display& display)
      : configuration_(std::move(configuration)),
        folder_(folder),
        label_(label),
        expected_s_(expected_s),
        binaries_(binaries),
        site_(site),
        interrupt_(interrupt),
        display_(display),
        simulated_(configuration_.simulated()),
        by_mpirun_(configuration_.backend() == "mpi" && !simulated_),
        each_(configuration_.training.ranks_per_process),
        restarts_(configuration_.training.max_restarts) {}

  // As torchrun: if a process dies, the entire job ends and restarts from its last checkpoint.
  absl::Status Run() {
    TrainingOptions& training = configuration_.training;
    const std::string others = NewestCheckpoint(training);  // of an earlier training
    for (;; ++attempt_) {
      absl::Status status = RunOnce();
      std::string newest = NewestCheckpoint(training);
      if (newest == others) newest.clear();
      if (absl::IsAborted(status) && restarts_ > 0) {
        --restarts_;
        if (!newest.empty()) training.resume = training.checkpoint_dir;
        KeepEarlierSteps(folder_);
        display_.Note(std::string(status.message()));
        const std::string from = !newest.empty()            ? newest
                                 : !training.resume.empty() ? training.resume
                                                            : Tr("the beginning");
        display_.Note(Tr("all ranks are restarted from $0; $1", from,
                         restarts_ == 1 ? Tr("1 restart is left") : Tr("$0 restarts are left", restarts_)));
        continue;
      }
      if (status.ok() && !newest.empty()) display_.Say(absl::StrCat("checkpoint: ", newest));
      if (status.ok() || newest.empty()) return status;
      return absl::Status(status.code(),
                          absl::StrCat(status.message(), "\n--resume ", newest, " continues from there"));
    }
  }

 private:
  // Nodes are those of the virtual cluster, or machines.
  int NodeOfProcess(int process) const {
    return site_.nodes != nullptr ? layout_.NodeOfProcess(process) : process;
  }
  int NodeOf(int server) const {
    if (site_.nodes == nullptr) return NodeOfServer(configuration_, server);
    return layout_.NodeOfServer(configuration_.training.server_placement, server, each_);
  }
  // On several machines this psring starts only node 0's processes.
  bool IsHere(int node) const { return site_.nodes == nullptr || node == 0; }
  // Whether psring restarts the server: only on this machine, which has its saved state. It does not contain
  // tables.
  bool Returns(int server) const {
    return ServerReturns(configuration_.training, configuration_.servers()) &&
           !configuration_.model.has_tables && (site_.nodes == nullptr || NodeOf(server) == 0);
  }

  // The trainers and servers to start here. A simulation has only one process.
  NodePart Here() const {
    NodePart here;
    for (int process = 0; process < configuration_.processes() && !simulated_; ++process) {
      if (IsHere(NodeOfProcess(process))) here.processes.push_back(process);
    }
    for (int server = 0; server < configuration_.servers() && !simulated_; ++server) {
      if (IsHere(NodeOf(server))) here.servers.push_back(server);
    }
    return here;
  }

  // Checked before the store is started: gRPC does not end if it runs out of descriptors.
  absl::Status AllowProcesses(const NodePart& here) const {
    const auto trainers = static_cast<int64_t>(here.processes.size());
    const auto servers = static_cast<int64_t>(here.servers.size());
    const int64_t processes = std::max<int64_t>(1, trainers + servers);
    const std::string whose = absl::StrCat(processes, processes == 1 ? " process" : " processes");
    const int64_t of_trainer = RankTasks(each_, configuration_.servers());
    PSRING_RETURN_IF_ERROR(
        AllowTasks(LauncherTasks() + trainers * of_trainer + servers * ServerTasks(), whose));
    return AllowDescriptors(LauncherDescriptors(simulated_ || by_mpirun_ ? 1 : trainers + servers), whose);
  }

  void LayOut() {
    const int processes = configuration_.processes();
    if (site_.nodes != nullptr) {
      layout_ = site_.nodes->options().layout();
    } else if (site_.cluster != nullptr && configuration_.training.local_aggregation) {
      layout_ = {.nodes = processes};  // a rank's machine is the virtual one
    } else {
      layout_ = {.per_node = processes};  // ranks choose GPUs by their local numbers
    }
    layout_.processes = processes;
  }

  JobHost HostOf(int node) const {
    return {.binaries = binaries_,
            .records = folder_,
            .address = site_.Address(node),
            .gpus = CudaDeviceCount(),
            .logs = folder_,
            .attempt = attempt_};
  }

  void Add(int node, ChildSpec child) {
    if (site_.cluster != nullptr) site_.cluster->Place(node, child);
    spec_.children.push_back(std::move(child));
  }
  absl::Status AddChildren(const TrainingJob& job, const NodePart& here) {
    // Of all ranks; without addresses.
    const JobHost host{.binaries = binaries_, .records = folder_, .logs = folder_, .attempt = attempt_};
    if (simulated_) {  // by one process, without a store and servers
      ChildSpec child{.name = "the virtual clock",
                      .command = TrainerCommand(job.training, host),
                      .environment = {"RANK=", "WORLD_SIZE=", "LOCAL_RANK="},
                      .log_path = absl::StrCat(folder_, "/log-virtual.txt")};
      std::erase(child.command, "--rendezvous=env://");
      child.command.push_back(absl::StrCat("--workers=", configuration_.workers));
      spec_.children.push_back(std::move(child));
      return absl::OkStatus();
    }
    if (by_mpirun_) {
      PSRING_ASSIGN_OR_RETURN(
          spec_.children.emplace_back(),
          MpirunProcess({.ranks = configuration_.workers, .transport = job.training.transport},
                        TrainerCommand(job.training, host), StoreEnvironment(job.store)));
      spec_.children.back().log_path = host.LogPath("mpirun");
      spec_.grace = absl::Seconds(8);  // mpirun ends its ranks in turn, by SIGTERM and SIGKILL
      spec_.is_noise = IsMpirunBoilerplate;
    }
    const std::string interface = site_.cluster != nullptr ? site_.cluster->interface() : "";
    for (const int process : by_mpirun_ ? std::vector<int>() : here.processes) {
      const int node = NodeOfProcess(process);
      ChildSpec child = TrainerProcess(job, HostOf(node), process);
      if (!interface.empty()) child.command.push_back(absl::StrCat("--count_interface=", interface));
      Add(node, std::move(child));
    }
    // Servers come last, so that a child's index determines its ranks.
    for (const int server : here.servers) {
      const int node = NodeOf(server);
      ChildSpec child = ServerProcess(job, HostOf(node), server);
      child.may_return = Returns(server);
      if (child.may_return) {
        // Its own state, separately for each attempt, because restarted workers bring their own weights.
        child.command.push_back(absl::StrCat("--checkpoint_dir=", folder_, "/server-state-", attempt_));
        child.command.push_back(absl::StrCat("--checkpoint_every=", job.training.checkpoint_every));
      }
      Add(node, std::move(child));
    }
    return absl::OkStatus();
  }

  // Runs the job's processes until all have ended. Reduces `restarts_` by those used.
  absl::Status RunOnce() {
    const TrainingOptions& training = configuration_.training;
    const int servers = configuration_.servers();
    LayOut();
    const NodePart here = Here();
    PSRING_RETURN_IF_ERROR(AllowProcesses(here));
    PSRING_ASSIGN_OR_RETURN(const JobStore store, StartStore(site_, training.tls));
    const bool continues = training.on_worker_loss.empty()
                               ? training.pp == 1 && !configuration_.strategy.synchronous
                               : training.on_worker_loss == "continue";
    const TrainingJob job{.training = training,
                          .workers = configuration_.ranks(),
                          .servers = servers,
                          .layout = layout_,
                          .outlives_workers = servers > 0 && continues,
                          .store = store.address};
    spec_ = {.what = configuration_.name(), .restarts = restarts_};
    PSRING_RETURN_IF_ERROR(AddChildren(job, here));
    spec_.deadline = std::min(DeadlineOf(expected_s_, training.timeout_s), site_.until - MonotonicNow());

    LaunchProgress progress(simulated_ ? 1 : configuration_.ranks());
    const std::string shown_label = absl::StrCat(label_, configuration_.name());
    const std::string unit = UnitOf(training.reads_text());
    std::set<int> lost;  // workers that the job has ended without
    const auto on_lost = [&](int worker) {
      site_.nodes != nullptr ? site_.nodes->ReportLost(worker) : static_cast<void>(lost.insert(worker));
    };
    spec_.on_line = [&](int, const std::string& line) {
      for (const int worker : EndedWithout(line)) on_lost(worker);
      const std::optional<ProgressEvent> event = ParseProgress(line);
      if (!event) return false;
      if (event->event == "note") {
        const std::string note = event->text;
        // A configuration's notes are the same in every round.
        progress.HasStepped(event->rank) ? display_.Note(note) : display_.NoteOnce(note);
        return true;
      }
      progress.Note(*event);
      progress.Show(shown_label, unit, display_);
      if (site_.on_progress) site_.on_progress();
      return true;
    };
    if (Checkpoints(training)) spec_.interrupt_grace = kGraceWithCheckpoint;
    // The store does not notice the end of a rank that has not joined yet.
    const auto on_process_death = [&](int first, const std::string& what) {
      for (int rank = first; rank < first + each_; ++rank) store.server->RankEnded(rank, what);
      display_.Note(Tr("$0; the others continue", what));
    };
    spec_.on_death = [&](int child, const std::string& what, bool again) {
      if (again) --restarts_;
      const bool serves = spec_.children[child].serves;
      if (!serves) return on_process_death(child * each_, what);
      display_.Note(
          Tr(again ? TrNoop("$0; it is restarted and continues") : TrNoop("$0 after all ranks had ended"),
             what));
    };
    spec_.is_lost = [&](int child) {
      const int first = child * each_;
      if (by_mpirun_ || !job.outlives_workers) return false;
      if (site_.nodes != nullptr) return site_.nodes->AnyLost(first, each_);
      const auto next = lost.lower_bound(first);
      return next != lost.end() && *next < first + each_;
    };
    spec_.on_lost = [&](int child) {
      display_.Note(
          Tr("$0 no longer responded: the others ended the job without it", spec_.children[child].name));
    };
    spec_.last_known = [&](int child) {
      if (each_ == 1 && !by_mpirun_) return progress.LastKnown(child);
      return by_mpirun_ ? progress.LastKnownOfLast(0, configuration_.ranks())
                        : progress.LastKnownOfLast(child * each_, each_);
    };
    progress.Show(shown_label, unit, display_);

    const NodeLaunch launch{
        .order = OrderOf(job), .job = job, .on_death = on_process_death, .may_restart = [&] {
          return restarts_ > 0;
        }};
    return RunLaunch(site_, launch, spec_, folder_, interrupt_, display_);
  }

  Configuration configuration_;
  const std::string& folder_;
  const std::string& label_;
  const double expected_s_;
  const Binaries& binaries_;
  const Site& site_;
  const Interrupt& interrupt_;
  Display& display_;
  const bool simulated_, by_mpirun_;
  const int each_;  // ranks of a process
  int restarts_;    // that are left
  int attempt_ = 0;
  NodeLayout layout_;  // of the job's processes
  LaunchSpec spec_;
};

namespace fs = std::filesystem;

constexpr char kLatestRun[] = "runs/latest";
constexpr int kDepth = 4;  // records/training-1/ring-2/checkpoints

std::vector<std::string> FoldersIn(const std::string& run) {
  std::vector<std::string> folders;
  std::error_code error;
  // With a trailing slash, because runs/latest is a link.
  for (fs::recursive_directory_iterator at(run + "/", error), end; !error && at != end; at.increment(error)) {
    if (at.depth() >= kDepth) at.disable_recursion_pending();
    std::error_code none;
    if (at->is_directory(none) && !ListCheckpoints(at->path().string()).empty()) {
      folders.push_back(at->path().lexically_normal().string());
    }
  }
  std::ranges::sort(folders);
  return folders;
}

}  // namespace

absl::StatusOr<Launched> Launch(const Configuration& asked, const std::string& folder,
                                const std::string& label, double expected_s, const Binaries& binaries,
                                const Site& site, const Interrupt& interrupt, Display& display) {
  Configuration configuration = asked;
  TrainingOptions& training = configuration.training;
  if (Checkpoints(training) && training.checkpoint_dir.empty())
    training.checkpoint_dir = folder + "/checkpoints";
  PSRING_RETURN_IF_ERROR(WriteFile(folder + "/launch.json", ToJson(NoteOf(configuration))));
  std::vector<NodeCounters> counted_before;
  if (site.cluster != nullptr) counted_before = site.cluster->Counters(interrupt);
  const ForeignCpu foreign;
  const int other_before = NoteOtherPsring(site.measuring, display);
  const int64_t begin = MonotonicNanos();
  PSRING_RETURN_IF_ERROR(
      TrainingLaunch(configuration, folder, label, expected_s, binaries, site, interrupt, display).Run());
  Launched launched{.wall_s = 1e-9 * (MonotonicNanos() - begin)};
  const double foreign_cpu_pct = foreign.Percent();
  const int other_after = NoteOtherPsring(site.measuring, display);
  absl::StatusOr<RunRecords> records = ReadRecords(folder, configuration.ranks(), configuration.servers());
  if (!records.ok()) {
    return absl::DataLossError(absl::StrCat(configuration.name(), ": ", records.status().message()));
  }
  launched.records = *std::move(records);
  launched.records.foreign_cpu_pct = foreign_cpu_pct;
  launched.records.other_psring = std::max(other_before, other_after);
  if (!counted_before.empty()) {
    launched.records.network =
        NetworkOf(counted_before, site.cluster->Counters(interrupt), launched.records.steps.front().size(),
                  site.cluster->report().bits_per_s);
  }
  PSRING_RETURN_IF_ERROR(WriteOutcome(launched, folder));
  DivideTimes(training.time_scale, launched.records);
  return launched;
}

absl::Status ResolveResume(TrainingOptions& training) {
  std::string& resume = training.resume;
  if (resume.empty()) return absl::OkStatus();
  const bool latest = resume == "latest";
  if (latest && !training.checkpoint_dir.empty()) return absl::OkStatus();  // the trainer finds it
  const std::string run = latest ? kLatestRun : resume;
  std::error_code error;
  if (!latest && (!fs::is_directory(run, error) || fs::exists(fs::path(run) / kPositionFile, error) ||
                  !ListCheckpoints(run).empty())) {
    // A checkpoint, a folder of checkpoints, or an error that the trainer reports. The path is resolved
    // because this training changes runs/latest.
    if (const fs::path place = fs::canonical(resume, error); !error) resume = place.string();
    return absl::OkStatus();
  }
  const std::vector<std::string> folders = FoldersIn(run);
  if (folders.empty()) {
    return absl::NotFoundError(
        Tr("--resume $0: there is no checkpoint$1; train with --checkpoint_every or --checkpoint_dir to "
           "write some",
           resume, latest ? Tr(" in $0", kLatestRun) : ""));
  }
  if (folders.size() > 1) {
    return InvalidArgument("--resume ", resume, ": several trainings have checkpoints there; name one of ",
                           absl::StrJoin(folders, ", "));
  }
  resume = fs::canonical(folders.front(), error).string();
  return absl::OkStatus();
}

std::string NewestCheckpoint(const TrainingOptions& training) {
  if (training.checkpoint_dir.empty()) return "";
  for (const CheckpointPath& one : ListCheckpoints(training.checkpoint_dir)) {
    if (one.sequence >= 0) return one.path;
  }
  return "";
}

}  // namespace psring
