// trainer: one rank of any strategy, or several with one thread each; started by psring, mpirun, srun,
// torchrun or a user.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/own_process.h"
#include "common/cli/command_line.h"
#include "common/cuda/cuda_device.h"
#include "common/device/memory_limit.h"
#include "common/device/task_limit.h"
#include "common/net/descriptor_limit.h"
#include "common/net/link_shaper.h"
#include "common/net/tls.h"
#include "common/options/server_arguments.h"
#include "common/rendezvous/own_address.h"
#include "common/rendezvous/rendezvous.h"
#include "trainer/main/describe.h"
#include "trainer/main/live_rank.h"
#include "trainer/main/own_servers.h"
#include "trainer/main/rank_threads.h"
#include "trainer/main/stop_signal.h"
#include "trainer/main/trainer_flags.h"
#include "trainer/main/virtual_main.h"
#include "trainer/pipeline/pipeline_links.h"
#include "trainer/programs/mesh.h"
#include "trainer/strategies/strategies.h"

namespace psring {
namespace {

// The job that this process belongs to.
struct Job {
  bool has_others = false;  // ranks meet at a rendezvous, even if there is only one
  Part part;
  std::unique_ptr<RendezvousServer> store;  // if no launcher hosts it
};

// Converts a launcher's numbers, which count processes, to ranks.
void CountRanks(int each, RendezvousOptions& join) {
  for (int* count : {&join.rank, &join.world_size, &join.local_rank, &join.local_world_size}) *count *= each;
}

// The number of clients of the servers. With --local_aggregation, InvalidArgument: machines differ, or their
// ranks are not consecutive.
absl::StatusOr<int> FindPushers(const TrainingOptions& training, const RendezvousOptions& join) {
  PSRING_ASSIGN_OR_RETURN(const int pushers, PushersOf(training, join.world_size, join.local_world_size));
  if (!training.local_aggregation || join.rank % join.local_world_size == join.local_rank) return pushers;
  return InvalidArgument("--local_aggregation needs consecutive ranks on each machine, but rank ", join.rank,
                         " is number ", join.local_rank, " of ", join.local_world_size,
                         " on its machine; with mpirun, use --map-by slot");
}

// If no launcher starts servers, some processes start them or become servers.
absl::Status TakeRole(TrainerFlags& flags, Part& part) {
  PSRING_ASSIGN_OR_RETURN(const StrategyRow strategy, FindStrategy(flags.training.strategy));
  if (!strategy.uses_servers) return absl::OkStatus();
  RendezvousOptions& join = part.join;
  const bool starts_servers = !join.hosted_elsewhere && !flags.servers_elsewhere;
  const bool several_machines = join.local_world_size > 0 && join.local_world_size < join.world_size;
  PSRING_RETURN_IF_ERROR(
      PlaceServers(starts_servers && several_machines, flags.training.servers > 0, "rank0", flags.training));
  if (!starts_servers) return FindPushers(flags.training, join).status();
  const int each = flags.training.ranks_per_process;
  PSRING_ASSIGN_OR_RETURN(const ServerRole role,
                          ServerRoleOf(flags.training, join.rank / each, join.world_size / each));
  if (join.on_one_host()) join.local_world_size = role.workers;
  join.world_size = role.workers;
  PSRING_ASSIGN_OR_RETURN(
      const int pushers, role.becomes >= 0 ? PushersOf(flags.training, join.world_size, join.local_world_size)
                                           : FindPushers(flags.training, join));
  PSRING_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Create(role.workers, flags.training.pp,
                                                        flags.training.rank_order, flags.training.tp));
  const auto arguments = [&](int server, int local_rank) {
    const int of_model = PartOfServer(flags.training, server, role.servers);
    return ServerArguments(
        flags.training,
        {.server = server,
         .servers = role.servers,
         .pushers = pushers,
         .ranks = ReplicaRanks(flags.training) > 1 ? mesh.RanksWithPart(of_model) : std::vector<int>(),
         .rendezvous = SpecOf(join),
         .bind = part.address,
         .record = flags.record,
         .local_rank = local_rank,
         .gpus = CudaDeviceCount()});
  };
  if (role.becomes >= 0) part.becomes = arguments(role.becomes, join.local_rank);
  const bool beside_each = flags.training.server_placement == "colocated";
  for (const int server : role.starts) {
    part.servers.push_back(arguments(server, join.local_rank + (beside_each ? server - join.rank : 0)));
  }
  return absl::OkStatus();
}

// How many ranks each rank connects to: two in a ring; other schedules may connect all.
int MostPeers(const StrategyRow& strategy, int world_size) {
  if (!strategy.uses_group) return 0;
  const bool is_ring = strategy.backend == "native" && strategy.algorithm == "ring";
  return is_ring ? std::min(2, world_size - 1) : world_size - 1;
}

// Checked before the ranks meet: a rank without free descriptors seems silent to the others.
absl::Status AllowConnections(const TrainerFlags& flags, int world_size, bool hosts_store) {
  const TrainingOptions& training = flags.training;
  PSRING_ASSIGN_OR_RETURN(const StrategyRow strategy, FindStrategy(training.strategy));
  DescriptorUse use{.ranks = training.ranks_per_process,
                    .world_size = world_size,
                    .servers = strategy.uses_servers ? ServersOf(training, world_size) : 0,
                    .peers = MostPeers(strategy, world_size),
                    .hosts_store = hosts_store,
                    .tls = !training.tls.empty()};
  int64_t tasks = RankTasks(use.ranks, use.servers);
  const int of_a_group = std::max(MostPeers(strategy, world_size), std::min(2, world_size - 1));
  if (ReplicaRanks(training) > 1) {
    PSRING_ASSIGN_OR_RETURN(const int channels, MostChannels(training));
    // The group of all ranks, its parts along each axis, and pairs. A group needs as much as a peer.
    const int groups = training.pp > 1 && training.tp > 1 ? 4 : 3;
    use.peers = groups * of_a_group + 2 + 2 * (channels + 1);
    // An all-to-all connects all ranks of a sequence.
    if (training.cp > 1) use.peers += std::max(of_a_group, training.cp - 1);
    tasks += int64_t{use.ranks} * (channels + (training.tp > 1 ? 1 : 0));
  }
  if (training.dp_shard > 0) use.peers += 2 * (of_a_group + 1);  // ShardGroups
  PSRING_RETURN_IF_ERROR(AllowDescriptors(TrainerDescriptors(use), RanksText(world_size)));
  return AllowTasks(tasks, RanksText(use.ranks));
}

absl::StatusOr<Job> FindJob(TrainerFlags& flags) {
  Job job;
  RendezvousOptions& join = job.part.join;
  std::string spec = flags.rendezvous;
  if (spec.empty() && IsStartedAsARank(ProcessEnvironment())) spec = "env://";
  const int each = flags.check_only || flags.alone_for_all() ? 1 : flags.training.ranks_per_process;
  job.has_others = !spec.empty() || each > 1;
  if (!job.has_others) return job;
  const std::string& tls = flags.training.tls;
  if (!spec.empty()) {
    PSRING_ASSIGN_OR_RETURN(join, flags.check_only ? ParseRendezvous(spec, ProcessEnvironment())
                                                   : ReadRendezvous(spec, ProcessEnvironment(), tls));
  } else {
    const JobSecret secret = JobSecret::Random();  // servers that this process starts inherit it
    PSRING_ASSIGN_OR_RETURN(join.secret, WithTls(secret, tls));
    setenv(kSecretVariable, join.secret.Hex().c_str(), /*overwrite=*/1);
    join.local_world_size = 1;
    join.host = job.part.address;
    PSRING_ASSIGN_OR_RETURN(job.store, RendezvousServer::Start(join.host, 0, join.secret));
    join.port = job.store->port();
  }
  CountRanks(each, join);
  join.timeout = absl::Seconds(flags.training.timeout_s);
  PSRING_ASSIGN_OR_RETURN(job.part.address, OwnAddress(flags.network, join));
  join.bind = job.part.address;
  if (!flags.check_only) PSRING_RETURN_IF_ERROR(TakeRole(flags, job.part));
  if (job.store != nullptr) join.hosted_elsewhere = true;
  return job;
}

// A launcher that was forgotten, or that did not set the rank, leaves a job of one rank. psring says how many
// there are.
void NoteOnlyRank(const TrainerFlags& flags, int world_size) {
  const absl::StatusOr<StrategyRow> strategy = FindStrategy(flags.training.strategy);
  if (world_size > 1 || flags.progress != "plain" || !strategy.ok() || !strategy->uses_group ||
      strategy->uses_servers) {
    return;
  }
  Note("trainer", absl::StrCat("--strategy ", flags.training.strategy,
                               " has only one rank, which exchanges nothing; start several with psring train "
                               "--workers N, torchrun, mpirun or srun"));
}

// Returns the exit code.
int TrainLive(const TrainerFlags& flags, const Job& job, StopSignal& stop) {
  const RendezvousOptions& join = job.part.join;
  absl::StatusOr<Kept> kept = Kept();
  if (join.rank == 0) kept = ReadKept(flags.training);
  if (!kept.ok()) return Fail("trainer", std::string(kept.status().message()), 2);
  NoteOnlyRank(flags, join.world_size);

  const auto report = [&](const RankFailure& failure) {
    const std::string who = job.has_others ? absl::StrCat("rank ", failure.rank, ": ") : "";
    return Fail("trainer", absl::StrCat(who, failure.status.message()),
                stop.signal() != 0 ? 128 + stop.signal() : 1);
  };
  RankThreads threads(
      {.first_rank = join.rank,
       .count = flags.training.ranks_per_process,
       .abort_others = [&](int rank, const absl::Status& why) { stop.AbortOthers(rank, why); },
       .is_stopping = [&] { return stop.signal() != 0; },
       .give_up = [&](const RankFailure& failure) { _exit(report(failure)); }});
  SharedData data(flags.training);
  const std::unique_ptr<LinkShaper> shaper = MakeLinkShaper(flags.link);
  const LiveProcess process{.flags = flags,
                            .part = job.has_others ? &job.part : nullptr,
                            .stop = stop,
                            .threads = threads,
                            .data = data,
                            .shaper = shaper.get()};
  const std::optional<RankFailure> failure = threads.Run([&](int rank) {
    LiveRank live(process, rank - join.rank);
    const absl::Status status = live.Train(rank == 0 ? *std::move(kept) : Kept());
    if (!status.ok()) threads.Failed(rank, status);
    return status;
  });
  return failure.has_value() ? report(*failure) : 0;
}

bool IsSet(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != 0;
}

// Ranks that mpirun started exit if it is killed.
void DieWithMpirun() {
  if (IsSet("OMPI_COMM_WORLD_RANK") || IsSet("PMI_RANK")) prctl(PR_SET_PDEATHSIG, SIGKILL);
}

// --check_only asks about a job that has not begun, or about the replicas of a process.
int WorldSize(const TrainerFlags& flags, const RendezvousOptions& join) {
  const bool asks = flags.check_only && flags.workers > 0 && flags.training.replicas == 1;
  return asks ? flags.workers : join.world_size;
}

// Everything that is rejected before training. The signals' thread must be the first.
absl::StatusOr<Job> Prepare(TrainerFlags& flags, std::optional<StopSignal>& stop) {
  PSRING_RETURN_IF_ERROR(CheckAddressSpace());
  PSRING_RETURN_IF_ERROR(ApplyModel(flags.training));
  PSRING_RETURN_IF_ERROR(ApplyWorkload(flags.training));
  stop.emplace();
  PSRING_ASSIGN_OR_RETURN(Job job, FindJob(flags));
  const RendezvousOptions& join = job.part.join;
  PSRING_RETURN_IF_ERROR(CheckTrainerFlags(flags, WorldSize(flags, join)));
  if (!job.part.becomes.empty()) return BecomeServer(job.part.becomes);
  if (flags.check_only || flags.alone_for_all() || !job.has_others) return job;
  const bool hosts_store = job.store != nullptr || (join.rank == 0 && !join.hosted_elsewhere);
  PSRING_RETURN_IF_ERROR(AllowConnections(flags, join.world_size, hosts_store));
  return job;
}

int Main(int argc, char** argv) {
  DieWithMpirun();
  KeepFreedMemory();
  TrainerFlags flags = ParseTrainerFlags(argc, argv);
  if (flags.describe) {
    std::printf("%s\n", DescribeAsJson().c_str());
    return 0;
  }
  std::optional<StopSignal> stop;
  const absl::StatusOr<Job> job = Prepare(flags, stop);
  if (!job.ok()) return Fail("trainer", std::string(job.status().message()), 2);
  if (flags.check_only) {
    const absl::StatusOr<std::string> text = CheckAsJson(flags.training, WorldSize(flags, job->part.join));
    if (!text.ok()) return Fail("trainer", std::string(text.status().message()), 2);
    std::printf("%s\n", text->c_str());
    return 0;
  }
  if (!flags.alone_for_all()) return TrainLive(flags, *job, *stop);
  const absl::Status trained = flags.replay.empty() ? TrainVirtually(flags) : ReplayFile(flags);
  if (trained.ok()) return 0;
  const int code = absl::IsInvalidArgument(trained) ? 2 : stop->signal() != 0 ? 128 + stop->signal() : 1;
  return Fail("trainer", std::string(trained.message()), code);
}

}  // namespace
}  // namespace psring

int main(int argc, char** argv) { return psring::FinishOutput("trainer", psring::Main(argc, argv)); }
