#include "experiments/compare/runner.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/cuda/cuda_device.h"
#include "common/device/task_limit.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "common/net/descriptor_limit.h"
#include "common/text/translate.h"
#include "experiments/compare/checkpoints.h"
#include "experiments/host/machine.h"
#include "experiments/plan/launches.h"
#include "experiments/plan/plan_text.h"
#include "experiments/processes/launcher.h"
#include "experiments/processes/mpirun.h"
#include "experiments/runs/run_folder.h"
#include "experiments/summary/launch_figures.h"

namespace psring {
namespace {

// Longer than a trainer needs to write a checkpoint and exit.
constexpr absl::Duration kGraceWithCheckpoint = absl::Seconds(25);

// Where and how a launch runs.
struct Ground {
  Site site;
  NodeLayout layout;  // of the job's processes
  int ranks_per_process = 1;
  JobStore store;
  int attempt = 0;  // above 0: the job was restarted

  // A process's log; those of earlier attempts stay.
  std::string LogPath(const std::string& folder, const std::string& who) const {
    return absl::StrCat(folder, "/log-", who, attempt > 0 ? absl::StrCat("-restart", attempt) : "", ".txt");
  }

  // `node`: of the virtual cluster, or a machine.
  void Place(int node, ChildSpec& child) const {
    if (site.cluster != nullptr) site.cluster->Place(node, child);
  }
  int NodeOfProcess(int process) const {
    return site.nodes != nullptr ? layout.NodeOfProcess(process) : process;
  }
  // On several machines this psring starts only node 0's processes.
  bool IsHere(int node) const { return site.nodes == nullptr || node == 0; }
  // Whether psring restarts the server: only on this machine, which has its saved state. It does not contain
  // tables.
  bool Returns(const Configuration& configuration, int server) const {
    return ServerReturns(configuration.training, configuration.servers()) &&
           !configuration.model.has_tables && (site.nodes == nullptr || NodeOf(configuration, server) == 0);
  }
  int NodeOf(const Configuration& configuration, int server) const {
    if (site.nodes == nullptr) return NodeOfServer(configuration, server);
    return layout.NodeOfServer(configuration.training.server_placement, server, ranks_per_process);
  }
};

// Checked before the store is started: gRPC does not end if it runs out of descriptors.
absl::Status AllowProcesses(const Configuration& configuration, const Ground& ground) {
  int64_t trainers = 0, servers = 0;
  for (int process = 0; process < configuration.processes() && !configuration.simulated(); ++process) {
    trainers += ground.IsHere(ground.NodeOfProcess(process));
  }
  for (int server = 0; server < configuration.servers() && !configuration.simulated(); ++server) {
    servers += ground.IsHere(ground.NodeOf(configuration, server));
  }
  const int64_t of_trainer = RankTasks(configuration.training.ranks_per_process, configuration.servers());
  const int64_t processes = std::max<int64_t>(1, trainers + servers);
  const std::string whose = absl::StrCat(processes, processes == 1 ? " process" : " processes");
  PSRING_RETURN_IF_ERROR(
      AllowTasks(LauncherTasks() + trainers * of_trainer + servers * ServerTasks(), whose));
  const bool one_child = configuration.simulated() || configuration.backend() == "mpi";
  return AllowDescriptors(LauncherDescriptors(one_child ? 1 : trainers + servers), whose);
}

absl::StatusOr<Ground> PrepareGround(const Site& site, const Configuration& configuration, int attempt) {
  const TrainingOptions& training = configuration.training;
  Ground ground{.site = site, .ranks_per_process = training.ranks_per_process, .attempt = attempt};
  const int processes = configuration.processes();
  if (site.nodes != nullptr) {
    ground.layout = site.nodes->options().layout();
  } else if (site.cluster != nullptr && training.local_aggregation) {
    ground.layout = {.nodes = processes};  // a rank's machine is the virtual one
  } else {
    ground.layout = {.per_node = processes};  // ranks choose GPUs by their local numbers
  }
  ground.layout.processes = processes;
  PSRING_RETURN_IF_ERROR(AllowProcesses(configuration, ground));
  PSRING_ASSIGN_OR_RETURN(ground.store, StartStore(site, training.tls));
  return ground;
}

bool ContinuesWithoutAWorker(const Configuration& configuration) {
  const std::string& wanted = configuration.training.on_worker_loss;
  return wanted.empty() ? !configuration.strategy.synchronous : wanted == "continue";
}

// A server saves its state for its own restart, separately for each attempt, because restarted workers bring
// their own weights.
std::vector<std::string> StateArguments(const TrainingOptions& training, const std::string& folder,
                                        int attempt) {
  return {absl::StrCat("--checkpoint_dir=", folder, "/server-state-", attempt),
          absl::StrCat("--checkpoint_every=", training.checkpoint_every)};
}

TrainingJob JobOf(const Configuration& configuration, const Ground& ground) {
  TrainingJob job{.training = configuration.training,
                  .workers = configuration.ranks(),
                  .servers = configuration.servers(),
                  .layout = ground.layout,
                  .outlives_workers = configuration.servers() > 0 && ContinuesWithoutAWorker(configuration),
                  .store = ground.store.address};
  return job;
}

// `node`: of a virtual cluster, or a machine.
JobHost HostOf(const Ground& ground, int node, const std::string& folder, const Binaries& binaries) {
  return {.binaries = binaries,
          .records = folder,
          .address = ground.site.Address(node),
          .gpus = CudaDeviceCount()};
}

ChildSpec Trainer(const TrainingJob& job, int process, const Ground& ground, const std::string& folder,
                  const Binaries& binaries) {
  const int each = ground.ranks_per_process, first = process * each, last = first + each - 1;
  const int node = ground.NodeOfProcess(process);
  ChildSpec child = TrainerProcess(job, HostOf(ground, node, folder, binaries), process);
  child.log_path = ground.LogPath(
      folder, each == 1 ? absl::StrCat("rank", first) : absl::StrCat("ranks", first, "-", last));
  const std::string interface = ground.site.cluster != nullptr ? ground.site.cluster->interface() : "";
  if (!interface.empty()) child.command.push_back(absl::StrCat("--count_interface=", interface));
  ground.Place(node, child);
  return child;
}

absl::StatusOr<ChildSpec> Mpirun(const Configuration& configuration, const TrainingJob& job,
                                 const Ground& ground, const std::string& folder, const Binaries& binaries) {
  const JobHost host{.binaries = binaries, .records = folder};
  PSRING_ASSIGN_OR_RETURN(
      ChildSpec child,
      MpirunProcess({.ranks = configuration.workers, .transport = configuration.training.transport},
                    TrainerCommand(job.training, host), StoreEnvironment(job.store)));
  child.log_path = ground.LogPath(folder, "mpirun");
  return child;
}

// One process simulates all ranks, without a store and servers.
ChildSpec VirtualTrainer(const Configuration& configuration, const std::string& folder,
                         const Binaries& binaries) {
  ChildSpec child{
      .name = "the virtual clock",
      .command = TrainerCommand(configuration.training, {.binaries = binaries, .records = folder}),
      .environment = {"RANK=", "WORLD_SIZE=", "LOCAL_RANK="},
      .log_path = absl::StrCat(folder, "/log-virtual.txt")};
  std::erase(child.command, "--rendezvous=env://");
  child.command.push_back(absl::StrCat("--workers=", configuration.workers));
  return child;
}

ChildSpec Server(const Configuration& configuration, const TrainingJob& job, int server, const Ground& ground,
                 const std::string& folder, const Binaries& binaries) {
  const int node = ground.NodeOf(configuration, server);
  ChildSpec child = ServerProcess(job, HostOf(ground, node, folder, binaries), server);
  child.log_path = ground.LogPath(folder, absl::StrCat("server", server));
  child.may_return = ground.Returns(configuration, server);
  if (child.may_return) {
    for (const std::string& argument : StateArguments(configuration.training, folder, ground.attempt)) {
      child.command.push_back(argument);
    }
  }
  ground.Place(node, child);
  return child;
}

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

// Runs the job's processes until all have ended. `restarts`: the number allowed; reduced by those used.
absl::Status RunOnce(const Configuration& configuration, const std::string& folder, const std::string& label,
                     double expected_s, int attempt, const Binaries& binaries, const Site& site,
                     const Interrupt& interrupt, Display& display, int& restarts) {
  const int each = configuration.training.ranks_per_process;
  PSRING_ASSIGN_OR_RETURN(const Ground ground, PrepareGround(site, configuration, attempt));
  const TrainingJob job = JobOf(configuration, ground);
  LaunchSpec spec{.what = configuration.name(), .restarts = restarts};
  const bool simulated = configuration.simulated();
  if (simulated) spec.children.push_back(VirtualTrainer(configuration, folder, binaries));
  const bool by_mpirun = configuration.backend() == "mpi" && !simulated;
  if (by_mpirun) {
    PSRING_ASSIGN_OR_RETURN(ChildSpec mpirun, Mpirun(configuration, job, ground, folder, binaries));
    spec.children.push_back(std::move(mpirun));
    spec.grace = absl::Seconds(8);  // mpirun ends its ranks in turn, by SIGTERM and SIGKILL
    spec.is_noise = IsMpirunBoilerplate;
  }
  for (int process = 0; process < configuration.processes() && !by_mpirun && !simulated; ++process) {
    if (!ground.IsHere(ground.NodeOfProcess(process))) continue;
    spec.children.push_back(Trainer(job, process, ground, folder, binaries));
  }
  // Servers come last, so that a child's index determines its ranks.
  for (int server = 0; server < configuration.servers() && !simulated; ++server) {
    if (!ground.IsHere(ground.NodeOf(configuration, server))) continue;
    spec.children.push_back(Server(configuration, job, server, ground, folder, binaries));
  }
  spec.deadline =
      std::min(DeadlineOf(expected_s, configuration.training.timeout_s), site.until - MonotonicNow());

  LaunchProgress progress(simulated ? 1 : configuration.ranks());
  const std::string shown_label = absl::StrCat(label, configuration.name());
  const std::string unit = UnitOf(configuration.training.reads_text());
  std::set<int> lost;  // workers that the job has ended without
  const auto on_lost = [&](int worker) {
    site.nodes != nullptr ? site.nodes->ReportLost(worker) : static_cast<void>(lost.insert(worker));
  };
  spec.on_line = [&](int, const std::string& line) {
    for (const int worker : EndedWithout(line)) on_lost(worker);
    const std::optional<ProgressEvent> event = ParseProgress(line);
    if (!event) return false;
    if (event->event == "note") {
      const std::string& note = event->text;
      // A configuration's notes are the same in every round.
      progress.HasStepped(event->rank) ? display.Note(note) : display.NoteOnce(note);
      return true;
    }
    progress.Note(*event);
    progress.Show(shown_label, unit, display);
    if (site.on_progress) site.on_progress();
    return true;
  };
  if (Checkpoints(configuration.training)) spec.interrupt_grace = kGraceWithCheckpoint;
  // The store does not notice the end of a rank that has not joined yet.
  const auto on_process_death = [&](int first, const std::string& what) {
    for (int rank = first; rank < first + each; ++rank) ground.store.server->RankEnded(rank, what);
    display.Note(Tr("$0; the others continue", what));
  };
  spec.on_death = [&](int child, const std::string& what, bool again) {
    if (again) --restarts;
    const bool serves = spec.children[static_cast<size_t>(child)].serves;
    if (!serves) return on_process_death(child * each, what);
    display.Note(Tr(
        again ? TrNoop("$0; it is restarted and continues") : TrNoop("$0 after all ranks had ended"), what));
  };
  spec.is_lost = [&](int child) {
    const int first = child * each;
    if (by_mpirun || !job.outlives_workers) return false;
    if (site.nodes != nullptr) return site.nodes->AnyLost(first, each);
    const auto next = lost.lower_bound(first);
    return next != lost.end() && *next < first + each;
  };
  spec.on_lost = [&](int child) {
    display.Note(Tr("$0 no longer responded: the others ended the job without it",
                    spec.children[static_cast<size_t>(child)].name));
  };
  spec.last_known = [&](int child) {
    if (each == 1 && !by_mpirun) return progress.LastKnown(child);
    return by_mpirun ? progress.LastKnownOfLast(0, configuration.ranks())
                     : progress.LastKnownOfLast(child * each, each);
  };
  progress.Show(shown_label, unit, display);

  const NodeLaunch launch{
      .order = OrderOf(job), .job = job, .on_death = on_process_death, .may_restart = [&] {
        return restarts > 0;
      }};
  return RunLaunch(site, launch, spec, folder, interrupt, display);
}

// As torchrun: if a process dies, the entire job ends and restarts from its last checkpoint.
absl::Status RunWithRestarts(const Configuration& configuration, const std::string& folder,
                             const std::string& label, double expected_s, const Binaries& binaries,
                             const Site& site, const Interrupt& interrupt, Display& display) {
  Configuration attempted = configuration;
  int restarts = configuration.training.max_restarts;
  const std::string others = NewestCheckpoint(attempted.training);  // of an earlier training
  for (int attempt = 0;; ++attempt) {
    absl::Status status =
        RunOnce(attempted, folder, label, expected_s, attempt, binaries, site, interrupt, display, restarts);
    std::string newest = NewestCheckpoint(attempted.training);
    if (newest == others) newest.clear();
    if (absl::IsAborted(status) && restarts > 0) {
      --restarts;
      if (!newest.empty()) attempted.training.resume = attempted.training.checkpoint_dir;
      KeepEarlierSteps(folder);
      display.Note(std::string(status.message()));
      const std::string from = !newest.empty()                      ? newest
                               : !attempted.training.resume.empty() ? attempted.training.resume
                                                                    : Tr("the beginning");
      display.Note(Tr("all ranks are restarted from $0; $1", from,
                      restarts == 1 ? Tr("1 restart is left") : Tr("$0 restarts are left", restarts)));
      continue;
    }
    if (status.ok() && !newest.empty()) display.Say(absl::StrCat("checkpoint: ", newest));
    if (status.ok() || newest.empty()) return status;
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), "\n--resume ", newest, " continues from there"));
  }
}

}  // namespace

int NoteOtherPsring(const MeasuringNow* measuring, Display& display) {
  const int other = OtherPsring(measuring);
  if (other > 0)
    display.NoteOnce(Tr("another psring (process $0) is running; times will not be valid", other));
  return other;
}

absl::StatusOr<Launched> Launch(const Configuration& asked, const std::string& folder,
                                const std::string& label, double expected_s, const Binaries& binaries,
                                const Site& site, const Interrupt& interrupt, Display& display) {
  Configuration configuration = asked;
  TrainingOptions& training = configuration.training;
  if (Checkpoints(training) && training.checkpoint_dir.empty())
    training.checkpoint_dir = folder + "/checkpoints";
  PSRING_RETURN_IF_ERROR(WriteFile(folder + "/launch.json", ToJson(NoteOf(configuration))));
  Launched launched;
  std::vector<NodeCounters> counted_before;
  if (site.cluster != nullptr) counted_before = site.cluster->Counters(interrupt);
  const ForeignCpu foreign;
  launched.other_psring = NoteOtherPsring(site.measuring, display);
  const int64_t begin = MonotonicNanos();
  const absl::Status ran =
      RunWithRestarts(configuration, folder, label, expected_s, binaries, site, interrupt, display);
  PSRING_RETURN_IF_ERROR(ran);
  launched.wall_s = 1e-9 * static_cast<double>(MonotonicNanos() - begin);
  launched.foreign_cpu_pct = foreign.Percent();
  launched.other_psring = std::max(launched.other_psring, NoteOtherPsring(site.measuring, display));
  absl::StatusOr<RunRecords> records = ReadRecords(folder, configuration.ranks(), configuration.servers());
  if (!records.ok()) {
    return absl::DataLossError(absl::StrCat(configuration.name(), ": ", records.status().message()));
  }
  launched.records = *std::move(records);
  if (!counted_before.empty()) {
    launched.records.network =
        NetworkOf(counted_before, site.cluster->Counters(interrupt), launched.records.steps.front().size(),
                  site.cluster->report().bits_per_s);
  }
  PSRING_RETURN_IF_ERROR(WriteOutcome(launched, folder));
  DivideTimes(training.time_scale, launched.records);
  return launched;
}

}  // namespace psring
