// trainer: one rank of any strategy; started by psring, mpirun, srun or torchrun, or by hand.
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/begin_together.h"
#include "common/check.h"
#include "common/command_line.h"
#include "common/cuda_device.h"
#include "common/http_server.h"
#include "common/keep_freed_memory.h"
#include "common/link_flags.h"
#include "common/open_metrics.h"
#include "common/own_address.h"
#include "common/rendezvous.h"
#include "common/server_arguments.h"
#include "common/training_options.h"
#include "ps_server/ps_client.h"
#include "ring_worker/process_group.h"
#include "trainer/checkpoint.h"
#include "trainer/describe.h"
#include "trainer/device_choice.h"
#include "trainer/group_options.h"
#include "trainer/model.h"
#include "trainer/own_servers.h"
#include "trainer/progress.h"
#include "trainer/record_writer.h"
#include "trainer/replayed_model.h"
#include "trainer/resume.h"
#include "trainer/step_probe.h"
#include "trainer/stop_signal.h"
#include "trainer/sync_strategy.h"
#include "trainer/train_loop.h"
#include "trainer/training_plan.h"
#include "trainer/virtual_main.h"
#include "trainer/virtual_training.h"
#include "trainer/worker_metrics.h"

namespace psring {
namespace {

struct Flags {
  TrainingOptions training;
  std::string rendezvous;  // empty: env:// where RANK or mpirun's is set, else alone
  NetworkChoice network;
  bool servers_elsewhere = false;
  std::string record;
  std::string progress = "plain";
  std::string count_interface;
  LinkShape link;
  bool describe = false;
  bool check_only = false;
  int workers = 0;  // 0: as many processes as there are
  std::string replay;
  int metrics_port = -1;  // below 0: none

  // This process stands for all workers.
  bool alone_for_all() const { return training.clock == "virtual" || !replay.empty(); }
};

Flags ParseFlags(int argc, char** argv) {
  Flags flags;
  CLI::App app("One rank of a training run, under any strategy.", "trainer");
  AddTrainingFlags(app, flags.training);
  app.add_option("--rendezvous", flags.rendezvous,
                 "env://, tcp://HOST:PORT or file://PATH, with RANK and WORLD_SIZE in the environment; by "
                 "default env:// where RANK (or mpirun's, or srun's) is set, else this rank is alone")
      ->group("This process");
  app.add_option("--bind", flags.network.bind,
                 "This machine's address that this rank, and a server beside it, listen on; by default the "
                 "loopback where all ranks are on one host, else the address that leads to rank 0")
      ->group("This process");
  app.add_option("--interface", flags.network.interface, "The same, by its network interface's name: eth0")
      ->group("This process");
  app.add_flag("--servers_elsewhere", flags.servers_elsewhere,
               "Parameter servers are started by hand; else, where psring is not the launcher, rank 0 starts "
               "them, or with --server_placement colocated every rank one, or with dedicated the last ranks "
               "are servers")
      ->group("This process");
  app.add_option("--record", flags.record, "Folder for steps, trace and result")->group("This process");
  app.add_option("--progress", flags.progress, "plain, json (for a launcher) or none")
      ->group("This process")
      ->check(OneOf({"plain", "json", "none"}))
      ->capture_default_str();
  app.add_option("--count_interface", flags.count_interface,
                 "Network interface whose sent bytes are recorded: right where nobody else uses it")
      ->group("This process");
  AddLinkFlags(app, flags.link);
  app.add_flag("--describe", flags.describe, "Print strategies, models and data as JSON, and exit")
      ->group("This process");
  app.add_option(
         "--metrics_port", flags.metrics_port,
         "Serve this rank's steps, bytes, waits and staleness as OpenMetrics at "
         "http://ADDRESS:PORT+rank/metrics, where it listens for others (--bind); the servers that it "
         "starts take the ports behind the ranks'; 0: the system chooses, and the log says which")
      ->group("This process")
      ->option_text("PORT")
      ->check(WholeNumber(0, 65535));
  app.add_flag("--check_only", flags.check_only,
               "Load the data, build the model, print what the flags come to as JSON, and exit")
      ->group("This process");
  app.add_option("--workers", flags.workers,
                 "With --clock virtual: how many workers this process stands for [1]")
      ->group("This process")
      ->check(WholeNumber(1, kMostLogicalWorkers));
  app.add_option("--replay", flags.replay,
                 "Make an asynchronous run again, from the order of arrivals that its server left "
                 "(arrivals-server0.bin); the other flags are those of that run")
      ->group("This process");
  ParseOrExit(app, argc, argv);
  return flags;
}

// Between SIGTERM and giving up, where checkpoints are kept: for the step that is under way, and the writing.
constexpr absl::Duration kStopWithCheckpoint = absl::Seconds(20);
constexpr absl::Duration kStopOfOthers = absl::Seconds(5);

// How often a rank that waits for nobody looks whether others were told that there are more.
constexpr absl::Duration kSurplusLook = absl::Milliseconds(200);

void Note(const std::string& text) { std::fprintf(stderr, "trainer: note: %s\n", text.c_str()); }

// What can be refused by looking at the flags alone.
absl::Status CheckFlags(const Flags& flags, int world_size) {
  PSRING_RETURN_IF_ERROR(ValidateTrainingOptions(flags.training));
  PSRING_ASSIGN_OR_RETURN(const StrategyRow* strategy, FindStrategy(flags.training.strategy));
  PSRING_RETURN_IF_ERROR(ModelOf(flags.training).status());
  if (flags.training.checkpoint_dir.empty() && !flags.check_only) {
    const char* flag = flags.training.resume == kLatestCheckpoint ? "--resume latest"
                       : flags.training.checkpoint_every > 0      ? "--checkpoint_every"
                                                                  : nullptr;
    if (flag != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(flag, " needs --checkpoint_dir DIR"));
    }
  }
  if (flags.workers > 0 && !flags.alone_for_all()) {
    return absl::InvalidArgumentError(
        "--workers is for --clock virtual; live workers are processes, which psring starts");
  }
  if (flags.alone_for_all() && world_size > 1) {
    return absl::InvalidArgumentError(
        "--clock virtual and --replay are one process; start it without RANK and WORLD_SIZE");
  }
  if (!flags.replay.empty()) return absl::OkStatus();  // the arrivals say how many workers there were
  if (flags.alone_for_all()) return CheckStrategy(flags.training, *strategy, std::max(1, flags.workers));
  if (!flags.check_only) {
    PSRING_RETURN_IF_ERROR(CheckGroupFlagsCount(*strategy, flags.training));
    if (world_size > 1) PSRING_RETURN_IF_ERROR(CheckGroup(*strategy, flags.training));
  }
  return CheckStrategy(flags.training, *strategy, world_size);
}

// The flags that every rank must share; where its data and cores are is a rank's own affair.
std::vector<std::string> SharedArguments(TrainingOptions options) {
  const TrainingOptions standard;
  options.data_dir = standard.data_dir;
  options.device = standard.device;
  options.threads = standard.threads;
  // Rank 0's count; the others need only know whether there are any.
  if (!options.checkpoint_dir.empty()) options.checkpoint_dir = "given";
  if (!options.resume.empty()) options.resume = "given";
  return TrainingArguments(options);
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectGroup(const Flags& flags, const StrategyRow& strategy,
                                                           const Device& device, Rendezvous& rendezvous,
                                                           const std::string& address, LinkShaper* shaper) {
  GroupOptions options = GroupOptionsOf(strategy, flags.training, device.gpu());
  options.bind_host = address;
  options.shaper = shaper;
  return MakeProcessGroup(rendezvous, options);
}

absl::StatusOr<std::unique_ptr<PsClient>> ConnectServer(const Flags& flags, Rendezvous* rendezvous,
                                                        const std::string& address, LinkShaper* shaper) {
  if (rendezvous == nullptr) {
    return absl::InvalidArgumentError(
        "a parameter-server strategy needs --rendezvous, through which it finds its server");
  }
  PSRING_ASSIGN_OR_RETURN(const Payload payload, ParsePayload(PayloadOf(flags.training)));
  const int servers = ServersOf(flags.training, rendezvous->options().world_size);
  const bool returns = ServerReturns(flags.training, servers);
  std::vector<std::unique_ptr<PsClient>> clients;
  for (int server = 0; server < servers; ++server) {
    const std::string whom =
        servers == 1 ? "the parameter server" : absl::StrCat("parameter server ", server, " of ", servers);
    const auto find = [rendezvous, server, whom] {
      return rendezvous->Get(absl::StrCat("ps/", server), whom);
    };
    absl::StatusOr<std::string> found = find();
    // One that died before it could be found may be started again.
    const absl::Time patience = absl::Now() + absl::Seconds(flags.training.timeout_s);
    while (returns && absl::IsUnavailable(found.status()) && absl::Now() < patience) {
      absl::SleepFor(absl::Milliseconds(100));
      found = find();
    }
    PSRING_ASSIGN_OR_RETURN(const std::string server_address, std::move(found));
    clients.push_back(MakeGrpcPsClient(
        server_address, {.payload = payload,
                         .reply_timeout = absl::Seconds(flags.training.timeout_s),
                         .patience = returns ? absl::Seconds(flags.training.timeout_s) : absl::ZeroDuration(),
                         .find_again = find,
                         .link = {.shaper = shaper, .source = shaper != nullptr ? address : ""}}));
  }
  return MakeShardedPsClient(std::move(clients));
}

// How a rank takes part in a job of several.
struct Part {
  RendezvousOptions join;
  std::string address = "127.0.0.1";              // of this process, as others reach it
  std::vector<std::vector<std::string>> servers;  // flags of those that it starts beside itself
  std::vector<std::string> becomes;               // it is to be the server of these flags, and no worker
};

// Where nobody else starts the servers, some ranks do, or are servers.
absl::Status TakeRole(const Flags& flags, Part& part) {
  PSRING_ASSIGN_OR_RETURN(const StrategyRow* strategy, FindStrategy(flags.training.strategy));
  if (strategy->needs != Needs::kParameterServer) return absl::OkStatus();
  if (part.join.hosted_elsewhere || flags.servers_elsewhere) return absl::OkStatus();
  RendezvousOptions& join = part.join;
  PSRING_ASSIGN_OR_RETURN(const ServerRole role, ServerRoleOf(flags.training, join.rank, join.world_size));
  const auto arguments = [&](int server) {
    return ServerArguments(flags.training, {.server = server,
                                            .servers = role.servers,
                                            .workers = role.workers,
                                            .rendezvous = SpecOf(join),
                                            .bind = part.address,
                                            .record = flags.record,
                                            .local_rank = join.local_rank,
                                            .gpus = CudaDeviceCount(),
                                            .metrics_port = flags.metrics_port});
  };
  if (role.becomes >= 0) part.becomes = arguments(role.becomes);
  for (const int server : role.starts) part.servers.push_back(arguments(server));
  if (join.on_one_host()) join.local_world_size = role.workers;
  join.world_size = role.workers;
  return absl::OkStatus();
}

// What rank 0 found where --resume says.
struct Kept {
  std::optional<CheckpointBytes> bytes;
  std::vector<std::string> notes;
};

absl::StatusOr<Kept> ReadKept(const TrainingOptions& training) {
  Kept kept;
  PSRING_ASSIGN_OR_RETURN(kept.bytes,
                          ReadResume(training, [&](const std::string& text) { kept.notes.push_back(text); }));
  PSRING_RETURN_IF_ERROR(OpenCheckpointsOf(training, kept.bytes));
  return kept;
}

absl::Status Train(const Flags& flags, const Part* part, Kept kept, StopSignal& stop) {
  const RendezvousOptions* join = part != nullptr ? &part->join : nullptr;
  const int rank = join != nullptr ? join->rank : 0;
  const int world_size = join != nullptr ? join->world_size : 1;
  const std::unique_ptr<Progress> progress = MakeProgress(flags.progress, rank, world_size);
  progress->Started();
  const auto note = [&progress](const std::string& text) {
    if (!progress->Note(text)) Note(text);
  };

  const int local_rank = join != nullptr ? join->local_rank : 0;
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                          MakeDevice(DeviceOfRank(flags.training.device, local_rank, CudaDeviceCount())));
  PSRING_ASSIGN_OR_RETURN(const StrategyRow* strategy, FindStrategy(flags.training.strategy));
  std::unique_ptr<RecordWriter> records;
  if (!flags.record.empty()) {
    PSRING_ASSIGN_OR_RETURN(records, RecordWriter::Open(flags.record, rank));
  }
  std::unique_ptr<Rendezvous> rendezvous;
  if (join != nullptr) {
    PSRING_ASSIGN_OR_RETURN(rendezvous, Rendezvous::Join(*join));
    PSRING_RETURN_IF_ERROR(RequireEqualFlags(*rendezvous, SharedArguments(flags.training)));
    PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> units,
                            rendezvous->Exchange("device", device->unit()));
    PSRING_RETURN_IF_ERROR(CheckSharing(units, flags.training.oversubscribe));
  }
  PSRING_ASSIGN_OR_RETURN(DataSplits data, DataOf(flags.training));
  PSRING_RETURN_IF_ERROR(HoldOut(flags.training.validation, flags.training.score == "validation", data));
  PSRING_ASSIGN_OR_RETURN(
      const std::optional<CheckpointBytes> resume,
      ShareCheckpoint(flags.training, *strategy, rank, rendezvous.get(), std::move(kept.bytes), note));
  for (const std::string& text : kept.notes) note(text);
  std::unique_ptr<WorkerParts> parts;
  if (rendezvous != nullptr && world_size > 1) {
    PSRING_ASSIGN_OR_RETURN(parts, PartsOf(flags.training, *strategy, *rendezvous, note));
  }

  std::unique_ptr<OwnServers> servers;
  if (part != nullptr && !part->servers.empty()) {
    PSRING_ASSIGN_OR_RETURN(servers, OwnServers::Start(part->servers, join->timeout));
  }

  std::vector<Buffer> registered;  // the group knows them, so they live longer than it
  const std::unique_ptr<LinkShaper> shaper = MakeLinkShaper(flags.link);
  std::unique_ptr<ProcessGroup> group;
  std::unique_ptr<PsClient> client;
  if (strategy->needs == Needs::kProcessGroup && world_size > 1) {
    PSRING_ASSIGN_OR_RETURN(
        group, ConnectGroup(flags, *strategy, *device, *rendezvous, part->address, shaper.get()));
  }
  if (strategy->needs == Needs::kParameterServer) {
    PSRING_ASSIGN_OR_RETURN(
        client, ConnectServer(flags, rendezvous.get(), part != nullptr ? part->address : "", shaper.get()));
  }
  const bool keeps = !flags.training.checkpoint_dir.empty();
  std::atomic<bool> stepping = false;
  if (group != nullptr || client != nullptr || keeps) {
    stop.OnStop(
        [&group, &client](absl::Status why) {
          if (group != nullptr) group->Abort(why);
          if (client != nullptr) client->Abort(why);
        },
        // Rank 0 ends its step and keeps a checkpoint; the others end with it.
        [&stepping, keeps, rank] {
          return !keeps || !stepping ? absl::ZeroDuration() : rank == 0 ? kStopWithCheckpoint : kStopOfOthers;
        });
  }

  Trace trace(rank);
  int64_t samples = 0;
  Traffic moved;
  std::optional<WorkerMetrics> metrics;
  std::unique_ptr<HttpServer> readers;
  if (flags.metrics_port >= 0) {
    metrics.emplace(rank, flags.training.strategy);
    const auto answer = [&metrics](const std::string& path) -> HttpReply {
      if (path != "/metrics") return {.code = 404, .body = "there is /metrics\n"};
      return {.type = kOpenMetricsType, .body = metrics->Text()};
    };
    const int port = flags.metrics_port == 0 ? 0 : flags.metrics_port + rank;
    PSRING_ASSIGN_OR_RETURN(
        readers,
        HttpServer::Start({.host = part != nullptr ? part->address : "127.0.0.1", .port = port}, answer));
    note(absl::StrCat("metrics of rank ", rank, ": ", readers->url(), "/metrics"));
  }
  Worker worker{.rank = rank,
                .world_size = world_size,
                .device = *device,
                .data = data,
                .trace = trace,
                .group = group.get(),
                .registered = &registered,
                .client = client.get(),
                .resume = resume.has_value() ? &*resume : nullptr,
                .parts = parts.get()};
  worker.save = [&](int64_t step, const CheckpointFiles& files) {
    return SaveCheckpoint(flags.training.checkpoint_dir, step, files, flags.training.checkpoint_keep);
  };
  worker.stops = [&stop] { return stop.signal() != 0; };
  if (rendezvous != nullptr) {
    worker.barrier = [&rendezvous] { return rendezvous->Exchange("barrier", "").status(); };
    worker.begin_together = [&rendezvous] { return BeginTogether(*rendezvous); };
  }
  if (rendezvous != nullptr && world_size == 1) {
    worker.objection = [&rendezvous, next = absl::Now()]() mutable {
      if (absl::Now() < next) return absl::OkStatus();
      next = absl::Now() + kSurplusLook;
      return rendezvous->Surplus();
    };
  }
  worker.on_warning = Note;
  worker.on_note = note;
  PSRING_ASSIGN_OR_RETURN(StepProbe probe, StepProbe::Start(flags.count_interface));
  worker.on_step = [&](const StepRecord& record) {
    stepping = true;
    samples += record.samples;
    moved = moved + Traffic{record.payload_tx_bytes, record.payload_rx_bytes};
    if (metrics.has_value()) metrics->Count(record);
    probe.OnStep(record, [&] {
      if (records != nullptr) records->Add(record);
    });
  };
  worker.on_progress = [&](int64_t done, int64_t planned, double loss) {
    progress->Step({.done = done, .planned = planned, .samples = samples, .moved = moved, .loss = loss});
  };
  worker.on_evaluation = [&](const CurvePoint& point) { progress->Evaluated(point); };

  progress->Ready();
  absl::StatusOr<RankResult> result = RunWorker(flags.training, worker);
  stop.OnStop(nullptr);
  PSRING_RETURN_IF_ERROR(result.status());
  probe.Fill(trace, *result);
  if (servers != nullptr) {
    client.reset();  // our leave is what the servers wait for
    PSRING_RETURN_IF_ERROR(servers->WaitUntilDone(join->timeout));
  }
  if (records != nullptr) PSRING_RETURN_IF_ERROR(records->Finish(trace, *result));
  progress->Done(*result);
  return absl::OkStatus();
}

bool IsSet(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != 0;
}

// mpirun's ranks are its children, and nobody else's: should it be killed, they must not stay behind.
void DieWithMpirun() {
  if (IsSet("OMPI_COMM_WORLD_RANK") || IsSet("PMI_RANK")) prctl(PR_SET_PDEATHSIG, SIGKILL);
}

int Main(int argc, char** argv) {
  DieWithMpirun();
  KeepFreedMemory();
  Flags flags = ParseFlags(argc, argv);
  if (flags.describe) {
    std::printf("%s\n", DescribeAsJson().c_str());
    return 0;
  }
  if (absl::Status workload = ApplyWorkload(flags.training); !workload.ok()) {
    return Fail("trainer", std::string(workload.message()), 2);
  }
  StopSignal stop;

  std::string spec = flags.rendezvous;
  if (spec.empty() && IsStartedAsARank(ProcessEnvironment())) spec = "env://";
  Part part;
  RendezvousOptions& join = part.join;
  if (!spec.empty()) {
    absl::StatusOr<RendezvousOptions> parsed = ParseRendezvous(spec, ProcessEnvironment());
    if (!parsed.ok()) return Fail("trainer", std::string(parsed.status().message()), 2);
    join = *std::move(parsed);
    join.timeout = absl::Seconds(flags.training.timeout_s);
    absl::StatusOr<std::string> address = OwnAddress(flags.network, join);
    if (!address.ok()) return Fail("trainer", std::string(address.status().message()), 2);
    part.address = join.bind = *std::move(address);
  }
  absl::Status checked = flags.check_only ? absl::OkStatus() : TakeRole(flags, part);
  if (checked.ok()) checked = CheckFlags(flags, join.world_size);
  if (checked.ok() && !part.becomes.empty()) checked = BecomeServer(part.becomes);
  if (!checked.ok()) return Fail("trainer", std::string(checked.message()), 2);

  if (flags.check_only) {
    const absl::StatusOr<std::string> checked = CheckAsJson(flags.training, join.world_size);
    if (!checked.ok()) return Fail("trainer", std::string(checked.status().message()), 2);
    std::printf("%s\n", checked->c_str());
    return 0;
  }

  const VirtualFlags for_all{.training = flags.training,
                             .workers = std::max(1, flags.workers),
                             .record = flags.record,
                             .progress = flags.progress};
  absl::Status trained;
  if (!flags.replay.empty()) {
    trained = ReplayFile(for_all, flags.replay);
  } else if (flags.training.clock == "virtual") {
    trained = TrainVirtually(for_all);
  } else {
    absl::StatusOr<Kept> kept = Kept();
    if (join.rank == 0) kept = ReadKept(flags.training);
    if (!kept.ok()) return Fail("trainer", std::string(kept.status().message()), 2);
    trained = Train(flags, spec.empty() ? nullptr : &part, *std::move(kept), stop);
  }
  if (absl::IsInvalidArgument(trained) && flags.alone_for_all()) {
    return Fail("trainer", std::string(trained.message()), 2);
  }
  if (trained.ok()) return 0;
  const std::string who = spec.empty() ? "" : absl::StrCat("rank ", join.rank, ": ");
  return Fail("trainer", absl::StrCat(who, std::string(trained.message())),
              stop.signal() != 0 ? 128 + stop.signal() : 1);
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) { return psring::Main(argc, argv); }
