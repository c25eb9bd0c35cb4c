// One parameter server process: serves one job, writes a record of it and ends.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/base/own_process.h"
#include "common/cli/command_line.h"
#include "common/device/device.h"
#include "common/device/memory_limit.h"
#include "common/device/task_limit.h"
#include "common/device_factory/make_device.h"
#include "common/io/files.h"
#include "common/measure/record_names.h"
#include "common/measure/records.h"
#include "common/net/address.h"
#include "common/net/descriptor_limit.h"
#include "common/net/link_shaper.h"
#include "common/net/tls.h"
#include "common/rendezvous/rendezvous.h"
#include "ps_server/bench/round_limits.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/server/checkpoint.h"
#include "ps_server/server/parameter_server.h"
#include "ps_server/wire/checkpoint_file.h"
#include "ps_server/wire/service.h"

namespace psring {
namespace {

volatile std::sig_atomic_t ending_signal = 0;

// A signal often goes to all processes of the job; workers then still need the weights for their checkpoints.
constexpr absl::Duration kPatienceWithWorkers = absl::Seconds(5);

struct Flags {
  std::string rendezvous = "env://";
  int workers = 0;
  int server = 0, servers = 1, position = 0;
  std::vector<int> ranks;
  std::string bind = "127.0.0.1";
  int port = 0;
  int threads = 0;
  std::string device = "cpu";
  std::string record;
  double timeout_s = 60;
  std::string on_worker_loss;
  double worker_timeout_s = 1;
  bool reject_nonfinite = true;
  int staging_mb = 256;
  std::string checkpoint_dir;
  int64_t checkpoint_every = 0;
  std::string tls;
  LinkShape link;
  bool limits = false;

  int number() const { return position * servers + server; }  // in the job
};

OnWorkerLoss ParseOnWorkerLoss(const std::string& word) {
  if (word.empty()) return OnWorkerLoss::kByMode;
  return word == "stop" ? OnWorkerLoss::kStop : OnWorkerLoss::kContinue;
}

absl::Status WriteResult(const Flags& flags, const ServerStats& stats) {
  return WriteFile(absl::StrCat(flags.record, "/result-server", flags.number(), ".json"),
                   ToJson(ResultOf(flags.number(), stats)));
}

// The order of arrivals is written only if it is complete: no worker was lost or answered twice, no server
// was restarted, and there were not too many updates.
absl::Status WriteRecords(const Flags& flags, const ServerStats& stats, const Arrivals& arrivals) {
  const bool undisturbed = stats.restarts == 0 && stats.lost_workers.empty() && stats.answered_again == 0;
  bool complete = !arrivals.updates.empty();
  for (size_t bucket = 0; bucket < arrivals.updates.size(); ++bucket) complete &= !arrivals.IsFull(bucket);
  if (undisturbed && complete) {
    PSRING_RETURN_IF_ERROR(
        WriteFile(absl::StrCat(flags.record, "/arrivals-server", flags.number(), ".bin"), ToBytes(arrivals)));
  }
  return WriteResult(flags, stats);
}

void PrintNote(const std::string& text) { Note("ps_server", text); }

// A server has no rank: the number of workers is a flag.
absl::StatusOr<RendezvousOptions> RendezvousOf(const Flags& flags) {
  const GetEnv environment = InPlaceOf(ProcessEnvironment(), "0", absl::StrCat(flags.workers));
  PSRING_ASSIGN_OR_RETURN(RendezvousOptions meeting,
                          ReadRendezvous(flags.rendezvous, environment, flags.tls));
  meeting.timeout = absl::Seconds(flags.timeout_s);
  return meeting;
}

// What one process keeps from one incarnation of the server to the next.
struct Process {
  std::unique_ptr<Device> device;
  std::unique_ptr<CheckpointStore> checkpoints;  // null: none
  std::unique_ptr<LinkShaper> shaper;
  std::unique_ptr<Rendezvous> rendezvous;
};

// How one incarnation begins, and what follows it.
struct Incarnation {
  std::optional<Checkpoint> checkpoint;              // from which it continues
  std::optional<int64_t> epoch = {};                 // from a Rewind; nothing: the first of this process
  std::optional<message::Rewind> goes_back_to = {};  // at which step and epoch the next one begins
  int64_t restarts = 0;
};

// Serves until the job is over, or goes back to an earlier step.
absl::Status Serve(const Flags& flags, const RendezvousOptions& meeting, Process& process,
                   Incarnation& incarnation) {
  Arrivals arrivals;
  // Once all workers have left, nothing of the job depends on this process any more.
  const auto on_leave = [&flags](const ServerStats& stats) {
    if (!flags.record.empty()) (void)WriteResult(flags, stats);  // an error is reported at the end
  };
  ParameterServer server(*process.device, {.workers = flags.workers,
                                           .server = flags.server,
                                           .servers = flags.servers,
                                           .ranks = flags.ranks,
                                           .timeout = meeting.timeout,
                                           .on_worker_loss = ParseOnWorkerLoss(flags.on_worker_loss),
                                           .worker_timeout = absl::Seconds(flags.worker_timeout_s),
                                           .reject_nonfinite = flags.reject_nonfinite,
                                           .staging_bytes = static_cast<size_t>(flags.staging_mb) << 20,
                                           .checkpoints = process.checkpoints.get(),
                                           .checkpoint_every = flags.checkpoint_every,
                                           .on_note = PrintNote,
                                           .on_leave = on_leave,
                                           .arrivals = &arrivals});
  if (incarnation.checkpoint.has_value()) {
    PSRING_RETURN_IF_ERROR(server.Restore(*incarnation.checkpoint, incarnation.epoch));
    PrintNote(absl::StrCat(!incarnation.epoch.has_value() ? "continues" : "goes back and continues",
                           " from step ", incarnation.checkpoint->step, " in ", flags.checkpoint_dir));
  }
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<Service> service,
                          Service::Start(server, {.host = flags.bind,
                                                  .port = flags.port,
                                                  .secret = meeting.secret,
                                                  .threads = flags.threads,
                                                  .shaper = process.shaper.get()}));
  if (process.rendezvous == nullptr) {
    PSRING_ASSIGN_OR_RETURN(process.rendezvous, Rendezvous::Connect(meeting));
  }
  const std::string key = absl::StrCat("ps/", flags.number()), over_key = absl::StrCat(key, "/over");
  // An error: no such key, and a process has died, perhaps this server's predecessor.
  const auto over = process.rendezvous->TryGet(over_key, "the end of this job");
  if (over.ok() && over->has_value()) {
    PrintNote("this job is over: the server was restarted after its end");
    return absl::OkStatus();
  }
  std::unique_ptr<RoundLimitServer> limits;
  if (flags.limits) {
    PSRING_ASSIGN_OR_RETURN(
        limits, RoundLimitServer::Start(flags.bind, meeting.secret, flags.workers, meeting.timeout));
    PSRING_RETURN_IF_ERROR(process.rendezvous->Set("ps/0/limits", limits->address()));
  }
  PSRING_RETURN_IF_ERROR(process.rendezvous->Set(key, service->address()));
  if (!incarnation.epoch.has_value()) {
    std::printf("ps_server: serving %d workers on %s\n", flags.workers,
                WithoutToken(service->address()).c_str());
    std::fflush(stdout);
  }

  // From here on, a signal ends the job, after a checkpoint if possible; before, it ends the process at once.
  if (!IgnoresSignal(SIGINT)) std::signal(SIGINT, [](int signal) { ending_signal = signal; });
  std::signal(SIGTERM, [](int signal) { ending_signal = signal; });
  std::optional<absl::Status> outcome;
  MonotonicTime patience = MonotonicTime::InfiniteFuture();
  while (!(outcome = server.WaitUntilOver(MonotonicNow() + absl::Milliseconds(100))).has_value()) {
    if (server.AwaitsWorkers()) {
      const absl::Status joining = process.rendezvous->CheckRanks("to join the parameter server");
      if (!joining.ok()) server.AbortJoining(joining);
    }
    if (ending_signal == 0) continue;
    if (patience == MonotonicTime::InfiniteFuture()) {
      const bool trains = server.stats().pushes > 0;
      patience = MonotonicNow() + (trains ? kPatienceWithWorkers : absl::ZeroDuration());
    }
    if (MonotonicNow() < patience) continue;
    server.CheckpointNow(MonotonicNow() + absl::Milliseconds(1500));
    server.Abort(Cancelled("the parameter server received a signal to end"));
  }
  if (ending_signal == 0) {
    incarnation.goes_back_to = server.goes_back_to();
    if (!incarnation.goes_back_to.has_value()) outcome = WithReportedFailure(*process.rendezvous, *outcome);
  }
  incarnation.restarts = server.stats().restarts;
  if (outcome->ok()) {
    if (const std::vector<int> lost = server.lost_workers(); !lost.empty()) {
      std::printf("%s%s\n", kEndedWithout, absl::StrJoin(lost, ",").c_str());
      std::fflush(stdout);
    }
    (void)process.rendezvous->Set(over_key, "");  // by now the store may have ended
    if (!flags.record.empty()) outcome = WriteRecords(flags, server.stats(), arrivals);
  }
  if (outcome->ok() && process.checkpoints != nullptr) process.checkpoints->Clear();
  if (!service->Stop(MonotonicNow() + absl::Seconds(2))) {
    // Everything is written; a connection that does not end must not keep the process alive.
    if (!outcome->ok()) Fail("ps_server", std::string(outcome->message()));
    std::_Exit(outcome->ok() ? 0 : ending_signal != 0 ? 128 + static_cast<int>(ending_signal) : 1);
  }
  return *outcome;
}

absl::Status Run(const Flags& flags, const RendezvousOptions& meeting) {
  Process process;
  PSRING_ASSIGN_OR_RETURN(process.device, MakeDevice(flags.device));
  Incarnation incarnation;
  if (!flags.checkpoint_dir.empty()) {
    PSRING_ASSIGN_OR_RETURN(process.checkpoints,
                            OpenCheckpointFolder(flags.checkpoint_dir, flags.server, flags.servers));
    PSRING_ASSIGN_OR_RETURN(incarnation.checkpoint, process.checkpoints->Load());
  }
  process.shaper = MakeLinkShaper(flags.link);
  while (true) {
    const absl::Status outcome = Serve(flags, meeting, process, incarnation);
    if (!incarnation.goes_back_to.has_value()) return outcome;
    // Another server was restarted: this one begins again from its own files.
    const int64_t back = incarnation.goes_back_to->step;
    Incarnation next{.epoch = incarnation.goes_back_to->epoch};
    PSRING_ASSIGN_OR_RETURN(next.checkpoint, process.checkpoints->Load(back));
    if (!next.checkpoint.has_value()) {
      return DataLoss("the job goes back to step ", back, ", and server ", flags.server,
                      " has no checkpoint that old in ", flags.checkpoint_dir);
    }
    next.checkpoint->finished = false;
    next.checkpoint->stats.restarts = incarnation.restarts;
    incarnation = std::move(next);
  }
}

void AddFlags(CLI::App& app, Flags& flags) {
  app.option_defaults()->always_capture_default();
  const auto number = [&](const char* name, int& to, const char* text, int least, int most) {
    return app.add_option(name, to, text)->check(WholeNumber(least, static_cast<uint64_t>(most)));
  };
  app.add_option("--rendezvous", flags.rendezvous,
                 "Rendezvous of the job: env://, tcp://host:port or file://path");
  number("--workers", flags.workers, "Number of workers", 1, 65536)->required()->default_str("");
  number("--server", flags.server, "Index of this server, from 0", 0, 63);
  number("--servers", flags.servers, "Number of servers that share the parameters", 1, 64);
  number(
      "--position", flags.position,
      "With trainer --pp or --tp: which part of the model they have, from 0. Workers are its replicas, and "
      "server I is number position * servers + I of the job",
      0, 65535);
  app.add_option("--ranks", flags.ranks,
                 "With trainer --pp or --tp: the workers' ranks in the job, comma-separated, which messages "
                 "about them "
                 "name, too")
      ->delimiter(',')
      ->default_str("");
  app.add_option("--bind", flags.bind, "Address to listen on; the workers connect to it");
  number("--port", flags.port, "Port to listen on; 0: the system chooses", 0, 65535);
  number("--threads", flags.threads,
         "Threads that read, add and update, each for some of the workers; 0: half the number of "
         "cores, at most 8",
         0, 256);
  app.add_option("--device", flags.device,
                 "Memory for parameters, sums and optimizer state: cpu, cuda (GPU 0), cuda:I or auto");
  app.add_option("--record", flags.record, "Folder for result-server<I>.json; empty: none");
  app.add_option("--on_worker_loss", flags.on_worker_loss,
                 "stop, or continue with the workers that remain; by default synchronous jobs stop, "
                 "asynchronous ones continue (several servers with backup workers always stop)")
      ->check(OneOf({"stop", "continue"}));
  app.add_option("--worker_timeout", flags.worker_timeout_s,
                 "Seconds in which a worker whose connection broke may reconnect before it is lost")
      ->check(RealNumber({.low = 0, .low_allowed = true}));
  app.add_option("--debug.reject_nonfinite", flags.reject_nonfinite,
                 "Reject gradients that contain NaN or infinity")
      ->group(kDebugGroup);
  app.add_option("--debug.staging_mb", flags.staging_mb,
                 "Asynchronous modes: MiB for gradients and answers in transit over gRPC, for all workers "
                 "together (at least one bucket); workers wait while there is no memory")
      ->group(kDebugGroup)
      ->check(WholeNumber(1, 1 << 20));
  app.add_option("--checkpoint_dir", flags.checkpoint_dir,
                 "Folder for checkpoints, from which a restarted server continues; empty: none");
  app.add_option("--checkpoint_every", flags.checkpoint_every,
                 "Steps between checkpoints; 0: only at the start, at the end and at SIGTERM")
      ->check(WholeNumber(0, kMaxWireCount));
  app.add_option("--timeout", flags.timeout_s, "Seconds that workers may wait for one that sends nothing")
      ->check(RealNumber({.low = 0}));
  AddTlsFlag(app, flags.tls);
  app.option_defaults()->always_capture_default(false);
  AddLinkFlags(app, flags.link);
  app.add_flag("--limits", flags.limits, "Also serve the rounds that ps_worker --limits measures");
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("The parameter server: adds gradients, updates the weights and returns them.", "ps_server");
  AddFlags(app, flags);
  ParseOrExit(app, argc, argv);
  flags.bind = WithoutBrackets(flags.bind);

  if (flags.server >= flags.servers) {
    return Fail("ps_server",
                absl::StrCat("--server ", flags.server, " of --servers ", flags.servers,
                             ": servers are numbered from 0"),
                2);
  }
  if (!flags.ranks.empty() && flags.ranks.size() != static_cast<size_t>(flags.workers)) {
    return Fail("ps_server",
                absl::StrCat("--ranks names ", flags.ranks.size(), " ranks for --workers ", flags.workers),
                2);
  }
  if (flags.position > 0 && !flags.checkpoint_dir.empty()) {
    return Fail("ps_server", "--checkpoint_dir is for servers of a whole model; omit it, or --position", 2);
  }
  KeepFreedMemory();
  absl::Status allowed = CheckAddressSpace();
  if (allowed.ok()) {
    allowed =
        AllowDescriptors(ServerDescriptors(flags.workers, !flags.tls.empty()), RanksText(flags.workers));
  }
  if (allowed.ok()) allowed = AllowTasks(ServerTasks(), "the server");
  if (!allowed.ok()) return Fail("ps_server", std::string(allowed.message()), 2);
  const absl::StatusOr<RendezvousOptions> meeting = RendezvousOf(flags);
  if (!meeting.ok()) return Fail("ps_server", std::string(meeting.status().message()), 2);
  const absl::Status status = Run(flags, *meeting);
  if (status.ok()) return 0;
  return Fail("ps_server", std::string(status.message()),
              ending_signal != 0 ? 128 + static_cast<int>(ending_signal) : 1);
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) { return psring::FinishOutput("ps_server", psring::Main(argc, argv)); }
