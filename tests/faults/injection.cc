#include "tests/faults/injection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "tests/experiments/training_processes.h"

namespace psring {
namespace {

bool Is(const Fault& fault, std::initializer_list<FaultKind> kinds) {
  return std::find(kinds.begin(), kinds.end(), fault.kind) != kinds.end();
}

bool AtServer(const Fault& fault) {
  return Is(fault, {FaultKind::kKillServer, FaultKind::kEndServer, FaultKind::kStopServer,
                    FaultKind::kKillServerAtEnd});
}

int64_t NewestStep(const std::string& folder) {
  const std::vector<CheckpointPath> there = ListCheckpoints(folder);
  return there.empty() ? -1 : there.front().step;
}

// A command in the network namespace of the process.
bool InNetworkOf(pid_t pid, const std::string& command) {
  return std::system(
             absl::StrCat("nsenter --net=/proc/", pid, "/ns/net ", command, " 2>/dev/null").c_str()) == 0;
}

}  // namespace

std::string NameOf(FaultKind kind) {
  static const char* const names[kFaultKinds] = {
      "kill worker", "kill server",        "kill launcher",     "stop worker",    "end worker",
      "few files",   "silent connections", "full disk",         "end server",     "end launcher",
      "small shm",   "little memory",      "link down",         "loss and delay", "kill node",
      "stop server", "kill server at end", "kill worker at end"};
  return names[static_cast<int>(kind)];
}

std::string Fault::Text() const {
  return absl::StrCat(
      NameOf(kind), " of ", setup.kind.name, setup.by_hand ? ", by hand" : "",
      setup.restarts ? ", with restarts" : "", setup.dedicated ? ", dedicated server" : "",
      setup.nodes > 1 ? absl::StrCat(", ", setup.nodes, " nodes of ", setup.per_node) : "", ", rank ", victim,
      sockets >= 0 ? absl::StrCat(" with ", sockets, " sockets") : absl::StrCat(" at step ", step),
      delay_ms > 0 ? absl::StrCat(" and ", delay_ms, " ms") : "",
      setup.before.empty() ? "" : absl::StrCat(", after `", setup.before, "`"));
}

Fault Draw(FaultKind kind, std::mt19937& random) {
  const auto below = [&random](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  Fault fault{.kind = kind};
  const bool needs_server = AtServer(fault);
  do {
    fault.setup.kind = JobKinds()[static_cast<size_t>(below(static_cast<int64_t>(JobKinds().size())))];
  } while (needs_server && !fault.setup.kind.has_server);
  const bool needs_launcher = Is(fault, {FaultKind::kKillLauncher, FaultKind::kEndLauncher,
                                         FaultKind::kLinkDown, FaultKind::kLoss, FaultKind::kFullDisk});
  const bool may_have_nodes =
      Is(fault, {FaultKind::kKillWorker, FaultKind::kKillServer, FaultKind::kStopWorker,
                 FaultKind::kEndWorker, FaultKind::kEndServer, FaultKind::kSilentConnections,
                 FaultKind::kStopServer, FaultKind::kKillServerAtEnd, FaultKind::kKillWorkerAtEnd});
  if (fault.kind == FaultKind::kKillNode || (may_have_nodes && below(4) == 0)) fault.setup.nodes = 2;
  fault.setup.per_node = 1 + static_cast<int>(below(2));
  const bool starts_psring = needs_launcher || needs_server || fault.setup.nodes > 1;
  fault.setup.by_hand = below(3) == 0 && !starts_psring;
  fault.setup.restarts = below(2) == 0 && !fault.setup.by_hand;
  fault.setup.dedicated =
      below(3) == 0 && fault.setup.kind.has_server && !fault.setup.by_hand && fault.setup.nodes == 1;
  fault.victim = static_cast<int>(below(fault.setup.workers()));
  fault.step = 5 + 5 * below(6);
  if (below(2) == 0) fault.sockets = static_cast<int>(below(6));
  switch (kind) {
    case FaultKind::kStopServer:
    case FaultKind::kStopWorker:
      // While the ranks connect, a busy machine may exceed a short timeout.
      fault.setup.timeout_s = 10;
      fault.sockets = -1;
      break;
    case FaultKind::kKillServerAtEnd:
    case FaultKind::kKillWorkerAtEnd:
      fault.sockets = -1;
      fault.step = below(2) == 0 ? kFaultSteps - 5 : kFaultSteps;
      fault.delay_ms = static_cast<int>(below(40));
      break;
    case FaultKind::kFewFiles:
      fault.setup.before = absl::StrCat("ulimit -n ", 16 + below(48));
      break;
    case FaultKind::kLittleMemory:
      fault.setup.before = absl::StrCat("ulimit -v ", 1000 * (60 + below(2500)));
      break;
    case FaultKind::kSmallShm:
    case FaultKind::kFullDisk:
      fault.setup.shell = {"/usr/bin/unshare", "--user", "--map-root-user", "--mount", "/bin/sh"};
      fault.setup.before =
          kind == FaultKind::kSmallShm
              ? "mount -t tmpfs -o size=1m none /dev/shm"
              : absl::StrCat("mount -t tmpfs -o size=", 100 + below(200), "k none ", kCheckpoints);
      break;
    case FaultKind::kLinkDown:
    case FaultKind::kLoss:
      fault.setup.on_links = true;
      fault.setup.kind =
          JobKinds()[static_cast<size_t>(below(2) == 0 ? 0 : 2 + below(4))];  // not shared memory
      fault.setup.dedicated &= fault.setup.kind.has_server;
      fault.sockets = -1;
      break;
    default:
      break;
  }
  return fault;
}

bool Injection::AwaitTrigger(FaultJob& job, pid_t& victim) const {
  const bool is_server = AtServer(fault_);
  const std::string role = is_server ? "server" : absl::StrCat("rank ", fault_.victim);
  victim = -1;
  return job.Await([&] {
    victim = job.Find(role).value_or(-1);
    if (victim < 0) return false;
    // A process may need fewer sockets; then its first checkpoint is the trigger.
    if (fault_.sockets < 0) return HasCheckpoint(job.checkpoints(), fault_.step);
    return SocketsOf(victim) >= fault_.sockets || HasCheckpoint(job.checkpoints(), 5);
  });
}

bool Injection::Signal(FaultJob& job, int signal) const {
  pid_t victim = -1;
  if (!AwaitTrigger(job, victim)) return false;
  absl::SleepFor(absl::Milliseconds(fault_.delay_ms));  // a random moment
  if (Is(fault_, {FaultKind::kKillLauncher, FaultKind::kEndLauncher})) victim = job.launcher();
  if (fault_.kind == FaultKind::kKillNode) {
    victim = job.launcher(fault_.node());
    job.Ignore(victim);
  }
  if (fault_.setup.by_hand) job.Ignore(victim);
  return kill(victim, signal) == 0;
}

// The link returns when the job no longer advances.
bool Injection::CutLink(FaultJob& job) const {
  pid_t victim = -1;
  if (!AwaitTrigger(job, victim) || !InNetworkOf(victim, "ip link set eth0 down")) return false;
  int64_t seen = NewestStep(job.checkpoints());
  MonotonicTime since = MonotonicNow();
  (void)job.Await([&] {
    const int64_t step = NewestStep(job.checkpoints());
    if (step != seen) seen = step, since = MonotonicNow();
    return MonotonicNow() - since > absl::Seconds(1);
  });
  (void)InNetworkOf(victim, "ip link set eth0 up");
  return true;
}

bool Injection::Disturb(FaultJob& job) const {
  pid_t victim = -1;
  if (!AwaitTrigger(job, victim)) return false;
  if (InNetworkOf(victim, "tc qdisc replace dev eth0 root netem loss 1% delay 2ms")) return true;
  // A kernel without netem: a slow link with a short queue, which delays packets and drops many.
  return InNetworkOf(victim, "tc qdisc del dev eth0 root") &&
         InNetworkOf(victim, "tc qdisc add dev eth0 root tbf rate 20mbit burst 4k limit 12k");
}

// 200 to each port of each process.
bool Injection::Connect(FaultJob& job) {
  pid_t victim = -1;
  if (!AwaitTrigger(job, victim)) return false;
  std::vector<pid_t> pids;
  for (const auto& one : job.started()) pids.push_back(one->pid());
  for (const auto& [role, pid] : job.Processes()) pids.push_back(pid);
  for (const pid_t pid : pids) {
    for (const int port : PortsOf(pid)) {
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      for (int i = 0; i < 200; ++i) {
        FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!fd.valid()) return true;
        (void)connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
        silent_.push_back(std::move(fd));
      }
    }
  }
  return true;
}

bool Injection::Apply(FaultJob& job) {
  switch (fault_.kind) {
    case FaultKind::kKillWorker:
    case FaultKind::kKillServer:
    case FaultKind::kKillLauncher:
    case FaultKind::kKillNode:
    case FaultKind::kKillServerAtEnd:
    case FaultKind::kKillWorkerAtEnd:
      return Signal(job, SIGKILL);
    case FaultKind::kStopServer:
    case FaultKind::kStopWorker:
      return Signal(job, SIGSTOP);
    case FaultKind::kEndWorker:
    case FaultKind::kEndServer:
    case FaultKind::kEndLauncher:
      return Signal(job, SIGTERM);
    case FaultKind::kSilentConnections:
      return Connect(job);
    case FaultKind::kLinkDown:
      return CutLink(job);
    case FaultKind::kLoss:
      return Disturb(job);
    case FaultKind::kFewFiles:
    case FaultKind::kFullDisk:
    case FaultKind::kSmallShm:
    case FaultKind::kLittleMemory:
      return true;  // the job was started with it
  }
  return false;
}

Promise PromiseOf(const Fault& fault) {
  const std::string rank = absl::StrCat("rank ", fault.victim),
                    worker = absl::StrCat("worker ", fault.victim);
  const bool trains = fault.sockets < 0;
  const JobSetup& setup = fault.setup;
  switch (fault.kind) {
    case FaultKind::kKillWorker:
    case FaultKind::kKillWorkerAtEnd:
    case FaultKind::kEndWorker:
      // Rank 0 started by hand has the server and the store.
      return {.may_recover = true,
              .must_recover = setup.restarts || (setup.kind.asynchronous && trains && !setup.by_hand),
              .names = {rank, worker, fault.victim == 0 && setup.by_hand ? "server" : rank}};
    case FaultKind::kKillServer:
    case FaultKind::kKillServerAtEnd:
    case FaultKind::kEndServer:
      return {.may_recover = true, .must_recover = setup.restarts, .names = {"server"}};
    case FaultKind::kStopWorker:
      return {.may_recover = true,
              .must_recover = setup.kind.asynchronous && !setup.by_hand,
              .names = {rank, worker}};
    case FaultKind::kStopServer:
      return {.may_recover = true, .must_recover = setup.restarts, .names = {"server"}};
    case FaultKind::kKillLauncher:
    case FaultKind::kEndLauncher:
      return {.may_recover = true, .names = {""}};
    case FaultKind::kKillNode:
      return {.names = {absl::StrCat("node ", fault.node())}};
    case FaultKind::kSilentConnections:
    case FaultKind::kSmallShm:
      return {.may_recover = true, .must_recover = true};
    case FaultKind::kFewFiles:
      // A rank started by hand says why it cannot join; only rank 0 needs the files of a store.
      return {.may_recover = true,
              .names = {"ulimit -n", "open files", "file descriptors",
                        setup.by_hand ? "rank 0 never joined" : "ulimit -n"}};
    case FaultKind::kLittleMemory:
      return {.may_recover = true,
              .names = {"ulimit -v", "memory", setup.by_hand ? "rank 0 never joined" : "memory"}};
    case FaultKind::kFullDisk:
      return {.may_recover = true, .names = {"No space left on device"}};
    case FaultKind::kLinkDown:
    case FaultKind::kLoss:
      return {.may_recover = true, .names = {rank, worker, "server"}};
  }
  return {};
}

}  // namespace psring
