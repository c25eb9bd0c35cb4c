#include "experiments/runner.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/records.h"
#include "common/rendezvous.h"
#include "common/trace.h"
#include "experiments/checkpoints.h"
#include "experiments/launcher.h"
#include "experiments/launches.h"
#include "experiments/machine.h"
#include "experiments/mpirun.h"
#include "experiments/run_folder.h"
#include "experiments/temporary_folder.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr char kLoopback[] = "127.0.0.1";
// Longer than a trainer takes that ends with a checkpoint.
constexpr absl::Duration kGraceWithCheckpoint = absl::Seconds(25);

// What a launch stands on.
struct Ground {
  const VirtualCluster* cluster = nullptr;
  std::unique_ptr<RendezvousServer> store;
  std::string store_host = kLoopback;
  int attempt = 0;  // above 0: the job was started again

  // A file of a process, beside those of earlier attempts.
  std::string LogPath(const std::string& folder, const std::string& who) const {
    return absl::StrCat(folder, "/log-", who, attempt > 0 ? absl::StrCat("-restart", attempt) : "", ".txt");
  }

  std::string Address(int node) const { return cluster != nullptr ? cluster->Address(node) : kLoopback; }
  void Place(int node, ChildSpec& child) const {
    if (cluster != nullptr) cluster->Place(node, child);
  }
};

absl::StatusOr<Ground> Prepare(const VirtualCluster* cluster, int attempt) {
  Ground ground{.cluster = cluster, .attempt = attempt};
  if (cluster != nullptr) {
    PSRING_ASSIGN_OR_RETURN(ground.store, cluster->HostStore(ground.store_host));
  } else {
    PSRING_ASSIGN_OR_RETURN(ground.store, RendezvousServer::Start(kLoopback, 0));
  }
  return ground;
}

// Where the store is, and that psring hosts it.
std::vector<std::string> StoreEnvironment(const Ground& ground) {
  return {absl::StrCat("MASTER_ADDR=", ground.store_host), absl::StrCat("MASTER_PORT=", ground.store->port()),
          "PSRING_STORE_HOSTED=1"};
}

// What torchrun would set.
std::vector<std::string> Environment(const Configuration& configuration, int rank, const Ground& ground) {
  std::vector<std::string> environment = StoreEnvironment(ground);
  environment.insert(environment.end(), {absl::StrCat("RANK=", rank), absl::StrCat("LOCAL_RANK=", rank),
                                         absl::StrCat("WORLD_SIZE=", configuration.processes())});
  return environment;
}

bool GoesOnWithoutAWorker(const Configuration& configuration) {
  const std::string& wanted = configuration.training.on_worker_loss;
  return wanted.empty() ? !configuration.strategy.synchronous : wanted == "continue";
}

// What becomes of lost workers and of the server's own death.
std::vector<std::string> StateArguments(const TrainingOptions& training, int servers,
                                        const std::string& folder, int attempt) {
  std::vector<std::string> arguments = {absl::StrCat("--worker_timeout=", training.worker_timeout_s),
                                        absl::StrCat("--reject_nonfinite=", training.reject_nonfinite),
                                        absl::StrCat("--staging_mb=", training.staging_mb)};
  if (!training.on_worker_loss.empty()) {
    arguments.push_back(absl::StrCat("--on_worker_loss=", training.on_worker_loss));
  }
  if (ServerReturns(training, servers)) {
    // For itself alone, and of one attempt: workers that are started again bring what they begin with.
    arguments.push_back(absl::StrCat("--checkpoint_dir=", folder, "/server-state-", attempt));
    arguments.push_back(absl::StrCat("--checkpoint_every=", training.checkpoint_every));
  }
  return arguments;
}

std::vector<std::string> TrainerCommand(const Configuration& configuration, const std::string& folder,
                                        const Binaries& binaries) {
  std::vector<std::string> command = {binaries.trainer, "--rendezvous=env://", "--progress=json",
                                      absl::StrCat("--record=", folder)};
  for (const std::string& argument : TrainingArguments(configuration.training)) command.push_back(argument);
  return command;
}

ChildSpec Trainer(const Configuration& configuration, int rank, const Ground& ground,
                  const std::string& folder, const Binaries& binaries) {
  ChildSpec child{.name = absl::StrCat("rank ", rank),
                  .command = TrainerCommand(configuration, folder, binaries),
                  .environment = Environment(configuration, rank, ground),
                  .log_path = ground.LogPath(folder, absl::StrCat("rank", rank)),
                  .may_die = configuration.servers() == 1 && GoesOnWithoutAWorker(configuration)};
  child.command.push_back(absl::StrCat("--bind_host=", ground.Address(rank)));
  const std::string interface = ground.cluster != nullptr ? ground.cluster->interface() : "";
  if (!interface.empty()) child.command.push_back(absl::StrCat("--count_interface=", interface));
  ground.Place(rank, child);
  return child;
}

// All ranks behind one child: MPI wants its processes started by its own hand, which numbers them.
absl::StatusOr<ChildSpec> Mpirun(const Configuration& configuration, const Ground& ground,
                                 const std::string& folder, const Binaries& binaries) {
  PSRING_ASSIGN_OR_RETURN(
      const MpirunCommand mpirun,
      FindMpirun({.ranks = configuration.workers, .transport = configuration.training.fabric}));
  ChildSpec child{.name = "mpirun",
                  .command = mpirun.prefix,
                  .environment = StoreEnvironment(ground),
                  .log_path = ground.LogPath(folder, "mpirun"),
                  .keeps = mpirun.folder};
  for (const std::string& word : TrainerCommand(configuration, folder, binaries))
    child.command.push_back(word);
  for (const std::string& variable : mpirun.environment) child.environment.push_back(variable);
  // Empty, in case somebody has numbered psring itself.
  for (const char* variable : {"RANK=", "WORLD_SIZE=", "LOCAL_RANK="}) child.environment.push_back(variable);
  return child;
}

// One process for all: it needs no store and no server.
ChildSpec VirtualTrainer(const Configuration& configuration, const std::string& folder,
                         const Binaries& binaries) {
  ChildSpec child{.name = "the virtual clock",
                  .command = TrainerCommand(configuration, folder, binaries),
                  .environment = {"RANK=", "WORLD_SIZE=", "LOCAL_RANK="},
                  .log_path = absl::StrCat(folder, "/log-virtual.txt")};
  std::erase(child.command, "--rendezvous=env://");
  child.command.push_back(absl::StrCat("--workers=", configuration.workers));
  return child;
}

ChildSpec Server(const Configuration& configuration, int server, const Ground& ground,
                 const std::string& folder, const Binaries& binaries) {
  const int servers = configuration.servers();
  const int node = NodeOfServer(configuration, server);
  ChildSpec child{
      .name = servers == 1 ? "the server" : absl::StrCat("server ", server),
      .command = {binaries.ps_server,
                  absl::StrFormat("--rendezvous=tcp://%s:%d", ground.store_host, ground.store->port()),
                  absl::StrCat("--workers=", configuration.workers), absl::StrCat("--server=", server),
                  absl::StrCat("--servers=", servers), absl::StrCat("--bind=", ground.Address(node)),
                  "--port=0", absl::StrCat("--record=", folder),
                  absl::StrCat("--timeout=", configuration.training.timeout_s)},
      .environment = Environment(configuration, 0, ground),
      .log_path = ground.LogPath(folder, absl::StrCat("server", server)),
      .serves = true,
      .may_return = ServerReturns(configuration.training, servers)};
  for (const std::string& argument :
       StateArguments(configuration.training, servers, folder, ground.attempt)) {
    child.command.push_back(argument);
  }
  ground.Place(node, child);
  return child;
}

}  // namespace

absl::StatusOr<Binaries> FindBinaries() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError(absl::StrCat("cannot read /proc/self/exe: ", error.message()));
  Binaries binaries{.trainer = (self.parent_path() / "trainer").string(),
                    .ps_server = (self.parent_path() / "ps_server").string()};
  for (const std::string& binary : {binaries.trainer, binaries.ps_server}) {
    if (access(binary.c_str(), X_OK) != 0) {
      return absl::NotFoundError(absl::StrCat(binary, " is missing; build it: ./run build"));
    }
  }
  return binaries;
}

absl::StatusOr<Catalog> AskTrainer(const Binaries& binaries, const Interrupt& interrupt) {
  PSRING_ASSIGN_OR_RETURN(const std::string text,
                          RunForOutput({binaries.trainer, "--describe"}, absl::Seconds(30), interrupt));
  return CatalogFromJson(text);
}

absl::StatusOr<Probe> CheckWithTrainer(const Binaries& binaries, const TrainingOptions& training,
                                       const Interrupt& interrupt) {
  std::vector<std::string> command = {binaries.trainer, "--check_only"};
  for (const std::string& argument : TrainingArguments(training)) command.push_back(argument);
  absl::StatusOr<std::string> text = RunForOutput(command, absl::Minutes(2), interrupt);
  if (!text.ok()) {
    // What the trainer says is about the input; anything else is a crash.
    absl::string_view message = text.status().message();
    if (!absl::ConsumePrefix(&message, "trainer: ")) return text.status();
    return absl::FailedPreconditionError(message);
  }
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object() || !json.contains("samples") || !json.contains("parameters")) {
    return absl::InternalError(absl::StrCat("`trainer --check_only` answered: ", *text));
  }
  Probe probe{.samples = json["samples"].get<int64_t>(),
              .test_samples = json.value("test_samples", int64_t{0}),
              .parameters = json["parameters"].get<int64_t>()};
  for (const nlohmann::json& update : json.value("updates", nlohmann::json::array())) {
    probe.updates.push_back({.strategy = update.value("strategy", ""),
                             .optimizer = update.value("optimizer", ""),
                             .lr = update.value("lr", 0.0),
                             .momentum = update.value("momentum", 0.0),
                             .warnings = update.value("warnings", std::vector<std::string>()),
                             .refused = update.value("refused", "")});
  }
  return probe;
}

namespace {

// The job's processes from their start to the end of all. `restarts`: how many there may be, less those that
// were needed here.
absl::Status RunOnce(const Configuration& configuration, const std::string& folder, const std::string& label,
                     double expected_s, int attempt, const Binaries& binaries, const VirtualCluster* cluster,
                     const Interrupt& interrupt, Display& display, int& restarts) {
  PSRING_ASSIGN_OR_RETURN(const Ground ground, Prepare(cluster, attempt));
  LaunchSpec spec{.what = configuration.name(), .restarts = restarts};
  const bool simulated = configuration.simulated();
  if (simulated) spec.children.push_back(VirtualTrainer(configuration, folder, binaries));
  const bool by_mpirun = configuration.backend() == "mpi" && !simulated;
  if (by_mpirun) {
    PSRING_ASSIGN_OR_RETURN(ChildSpec mpirun, Mpirun(configuration, ground, folder, binaries));
    spec.children.push_back(std::move(mpirun));
    spec.grace = absl::Seconds(8);  // mpirun ends its ranks in turn, by SIGTERM and SIGKILL
    spec.is_noise = IsMpirunsFrame;
  }
  for (int rank = 0; rank < configuration.processes() && !by_mpirun && !simulated; ++rank) {
    spec.children.push_back(Trainer(configuration, rank, ground, folder, binaries));
  }
  // Last, so that child and rank have one number.
  for (int server = 0; server < configuration.servers() && !simulated; ++server) {
    spec.children.push_back(Server(configuration, server, ground, folder, binaries));
  }
  spec.deadline = absl::Seconds(2 * configuration.training.timeout_s + 30 + 10 * expected_s);

  LaunchProgress progress(simulated ? 1 : configuration.processes());
  spec.on_line = [&](int, const std::string& line) {
    const std::optional<ProgressEvent> event = ParseProgress(line);
    if (!event) return false;
    if (event->event == "note") {
      display.Say(absl::StrCat("note:      ", event->text));
      return true;
    }
    progress.Note(*event);
    display.Redraw(absl::StrCat(label, configuration.name(), "  ", progress.Bar()));
    return true;
  };
  if (Checkpoints(configuration.training)) spec.interrupt_grace = kGraceWithCheckpoint;
  spec.on_death = [&](const std::string& what, bool again) {
    if (again) --restarts;
    display.Say(
        absl::StrCat("note:      ", what, again ? "; it is started anew and goes on" : "; the others go on"));
  };
  spec.last_known = [&](int child) {
    return by_mpirun ? progress.LastKnownOfLast() : progress.LastKnown(child);
  };
  display.Redraw(absl::StrCat(label, configuration.name(), "  ", progress.Bar()));

  return RunChildren(spec, interrupt);
}

// As torchrun does: a process of the job has died, so all of it ends, and begins again from its last
// checkpoint.
absl::Status RunWithRestarts(const Configuration& configuration, const std::string& folder,
                             const std::string& label, double expected_s, const Binaries& binaries,
                             const VirtualCluster* cluster, const Interrupt& interrupt, Display& display) {
  Configuration attempted = configuration;
  int restarts = configuration.training.max_restarts;
  const std::string others = NewestCheckpoint(attempted.training);  // not ours: nothing is written yet
  for (int attempt = 0;; ++attempt) {
    const absl::Status status = RunOnce(attempted, folder, label, expected_s, attempt, binaries, cluster,
                                        interrupt, display, restarts);
    std::string newest = NewestCheckpoint(attempted.training);
    if (newest == others) newest.clear();
    if (absl::IsAborted(status) && restarts > 0) {
      --restarts;
      if (!newest.empty()) attempted.training.resume = attempted.training.checkpoint_dir;
      display.Say(absl::StrCat("note:      ", status.message()));
      display.Say(absl::StrCat("note:      all ranks are started again, from ",
                               !newest.empty()                      ? newest
                               : !attempted.training.resume.empty() ? attempted.training.resume
                                                                    : "the beginning",
                               "; ", restarts, restarts == 1 ? " restart is left" : " restarts are left"));
      continue;
    }
    if (status.ok() && !newest.empty()) display.Say(absl::StrCat("checkpoint: ", newest));
    if (status.ok() || newest.empty()) return status;
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), "\n--resume ", newest, " goes on from there"));
  }
}

}  // namespace

absl::StatusOr<Launched> Launch(const Configuration& asked, const std::string& folder,
                                const std::string& label, double expected_s, const Binaries& binaries,
                                const VirtualCluster* cluster, const Interrupt& interrupt, Display& display) {
  Configuration configuration = asked;
  TrainingOptions& training = configuration.training;
  if (Checkpoints(training) && training.checkpoint_dir.empty())
    training.checkpoint_dir = folder + "/checkpoints";
  PSRING_RETURN_IF_ERROR(WriteFile(folder + "/launch.json", ToJson(NoteOf(configuration))));
  Launched launched;
  const ForeignCpu foreign;
  const int64_t begin = MonotonicNanos();
  PSRING_RETURN_IF_ERROR(
      RunWithRestarts(configuration, folder, label, expected_s, binaries, cluster, interrupt, display));
  launched.wall_s = 1e-9 * static_cast<double>(MonotonicNanos() - begin);
  launched.foreign_cpu_pct = foreign.Percent();
  absl::StatusOr<RunRecords> records =
      ReadRecords(folder, configuration.processes(), configuration.servers());
  if (!records.ok()) {
    return absl::DataLossError(absl::StrCat(configuration.name(), ": ", records.status().message()));
  }
  launched.records = *std::move(records);
  return launched;
}

absl::Status TimeTrainer(const Binaries& binaries, const Catalog& catalog, const TrainingOptions& training,
                         const Interrupt& interrupt, Display& display, Probe& probe) {
  TrainingOptions moment = training;
  moment.strategy = "single";
  moment.micro_batches = 1;
  moment.samples = 0;
  moment.epochs = 0;
  moment.warmup_steps = 2;
  moment.steps = 3;
  moment.evaluate = false;
  moment.eval_every = 0;
  moment.clock = "wall";
  moment.compute_ms.clear();
  moment.network_ms = moment.serve_ms = "none";
  moment.straggler = "none";
  moment.jitter_ms = "none";
  moment.checkpoint_dir.clear();
  moment.checkpoint_every = 0;
  moment.resume.clear();
  moment.max_restarts = 0;
  PSRING_ASSIGN_OR_RETURN(const Configuration single,
                          MakeConfiguration("single", 1, moment, catalog, probe, 1));
  PSRING_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Create());
  PSRING_ASSIGN_OR_RETURN(const Launched launched, Launch(single, folder.path(), "a first look: ", 60,
                                                          binaries, /*cluster=*/nullptr, interrupt, display));
  display.Clear();
  PSRING_ASSIGN_OR_RETURN(const RunFigures figures, FiguresOf(single, launched.records));
  // The median, because the first steps of a process are often disturbed.
  probe.step_s = 1e-3 * Quantile(figures.every_step_ms, 0.5);
  probe.launch_s = std::max(0.05, launched.wall_s - 5 * probe.step_s);
  return absl::OkStatus();
}

}  // namespace psring
