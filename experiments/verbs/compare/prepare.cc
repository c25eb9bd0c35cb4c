#include "experiments/verbs/compare/prepare.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/wall_time.h"
#include "common/cli/delays.h"
#include "common/io/files.h"
#include "common/measure/trace.h"
#include "common/options/server_arguments.h"
#include "common/rendezvous/own_address.h"
#include "common/text/translate.h"
#include "experiments/launch/mpirun.h"
#include "experiments/launch/temporary_folder.h"

namespace psring {
namespace {

// On a virtual cluster all payload must use the shaped links.
absl::Status CheckShaped(const Configuration& configuration, const LinkOptions& link, Shaping shaping) {
  const std::string backend = configuration.backend();
  if (shaping != Shaping::kNone && configuration.training.ranks_per_process > 1 &&
      (shaping != Shaping::kNetns || link.latency_s > 0)) {
    return InvalidArgument("--ranks_per_process ", configuration.training.ranks_per_process,
                           " puts several ranks on a machine of the virtual cluster: ",
                           link.latency_s > 0
                               ? "--latency would also delay messages within a machine; omit it"
                               : "this needs network namespaces, which are unavailable here; omit "
                                 "--ranks_per_process, or use --link none");
  }
  if (shaping != Shaping::kNone && configuration.training.local_aggregation &&
      configuration.per_machine == 1) {
    return absl::InvalidArgumentError(
        "--local_aggregation adds up the gradients of a machine's workers, and every worker of the virtual "
        "cluster has its own machine; add --ranks_per_process K, or use --link none");
  }
  if (shaping == Shaping::kNone || !configuration.strategy.uses_group || backend == "native") {
    return absl::OkStatus();
  }
  std::string why;
  if (backend == "mpi") why = Tr("mpirun starts all its ranks on one host");
  if (backend == "nccl") why = Tr("NCCL chooses its links itself");
  if (backend == "gloo" && link.latency_s > 0) why = "only psring's own transports apply --latency";
  if (backend == "gloo" && shaping != Shaping::kNetns)
    why = "without namespaces only psring's own transports limit the rate";
  if (why.empty()) return absl::OkStatus();
  return InvalidTr("$0 cannot run on a virtual cluster: $1; omit it, or use --link none",
                   configuration.strategy.name, why);
}

absl::StatusOr<std::vector<Configuration>> AllConfigurations(const ExperimentFlags& flags,
                                                             const Prepared& prepared) {
  const CompareOptions& options = flags.options;
  if (!options.layouts.empty()) {
    return LayoutConfigurations(options, options.training, prepared.probe, prepared.cores);
  }
  std::vector<Configuration> all;
  const bool has_tables = HasTables(options.training);
  for (const std::string& name : ComparedStrategies(options, has_tables)) {
    for (const int workers : options.workers) {
      for (const int servers : options.servers) {
        TrainingOptions training = options.training;
        if (servers > 0) training.servers = servers;
        PSRING_ASSIGN_OR_RETURN(all.emplace_back(),
                                MakeConfiguration(name, workers, training, prepared.probe, prepared.cores));
      }
    }
  }
  return all;
}

// Sets the most workers on a machine, and how processes communicate. Those in one network namespace share
// memory, as on one machine; links that psring shapes need TCP.
void DescribeMachines(const ExperimentFlags& flags, Shaping shaping, Probe& probe) {
  const int each = flags.options.training.ranks_per_process;
  probe.per_machine = shaping != Shaping::kNone ? each : 0;
  if (shaping == Shaping::kUserspace) probe.transport = "tcp";
  if (shaping == Shaping::kNetns && !flags.transport_given) probe.transport = "auto";
  if (shaping == Shaping::kNone) probe.transport.clear();
  probe.placement = shaping == Shaping::kNone ? "rank0" : "dedicated";
  if (!flags.nodes.several()) return;
  const NodeLayout layout = flags.nodes.layout();
  probe.on_machines = true;
  probe.per_machine = layout.per_node * each;
  if (layout.spread) probe.spread_over = layout.nodes - layout.server_nodes;
}

// The collectives must be available: MPI needs an mpirun, NCCL a GPU. Machines must suit --local_aggregation.
absl::Status CheckCollectives(const std::vector<Configuration>& configurations, const Prepared& prepared) {
  for (const Configuration& configuration : configurations) {
    if (configuration.simulated()) continue;
    if (!configuration.update.refused.empty()) {
      return absl::InvalidArgumentError(configuration.update.refused);
    }
    PSRING_RETURN_IF_ERROR(CheckShaped(configuration, prepared.link, prepared.shaping));
    PSRING_RETURN_IF_ERROR(
        PushersOf(configuration.training, configuration.ranks(), configuration.per_machine).status());
    if (configuration.backend() == "mpi") {
      PSRING_RETURN_IF_ERROR(
          FindMpirun({.ranks = configuration.workers, .transport = configuration.training.transport})
              .status());
    }
    if (configuration.backend() == "nccl") {
      if (const absl::Status gpus = FindGpus().status(); !gpus.ok()) {
        return absl::FailedPreconditionError(
            Tr("strategy $0: NCCL needs a GPU: $1; check it with nvidia-smi, or use ring, which also runs on "
               "CPUs",
               configuration.strategy.name, gpus.message()));
      }
    }
  }
  return absl::OkStatus();
}

void SetLink(double bits_per_s, double latency_s, Prepared& prepared) {
  prepared.link.bits_per_s = bits_per_s;
  prepared.link.latency_s = latency_s;
  prepared.probe.link = Wires{.latency_s = latency_s, .bytes_per_s = bits_per_s / 8};
}

absl::Status BuildVirtualCluster(const ExperimentFlags& flags,
                                 const std::vector<Configuration>& configurations,
                                 const std::string& why_userspace, const Interrupt& interrupt,
                                 Display& display, Prepared& prepared) {
  if (prepared.shaping == Shaping::kNone) return absl::OkStatus();
  if (flags.dry_run) {  // measuring the links of many machines takes minutes
    const LinkOptions& asked = flags.link;
    SetLink(asked.bits_per_s / asked.scale, asked.latency_s * asked.scale, prepared);
    const LinkReport links = {.shaping = prepared.shaping,
                              .bits_per_s = prepared.link.bits_per_s,
                              .latency_s = prepared.link.latency_s};
    display.Say(Tr("network:   $0", DescribeLink(Nominal(links, asked.scale))));
    display.Note(Tr("--dry_run does not measure whether this machine carries these links; the run does"));
    return absl::OkStatus();
  }
  int nodes = 1;
  for (const Configuration& configuration : configurations) nodes = std::max(nodes, NodesOf(configuration));
  display.Redraw("building the virtual cluster and measuring its links");
  PSRING_ASSIGN_OR_RETURN(prepared.virtual_cluster,
                          BuildCarriedCluster(prepared.link, /*may_lower=*/flags.link_is_default,
                                              prepared.shaping, nodes, interrupt));
  const LinkReport& report = prepared.virtual_cluster.cluster->report();
  // As built, not as scaled by --scale: plans contain real durations.
  SetLink(report.bits_per_s, report.latency_s, prepared);
  display.Say(Tr("network:   $0", DescribeLink(Nominal(report, flags.link.scale))));
  const std::string& why_lower = prepared.virtual_cluster.why_lower;
  if (!why_lower.empty()) display.Note(why_lower);
  if (!why_userspace.empty()) {
    display.Note(Tr("no network namespaces, so psring's own transports limit the rate: $0", why_userspace));
  }
  return absl::OkStatus();
}

absl::Status OpenMeasured(const TrainingOptions& training, Prepared& prepared) {
  for (const auto& [flag, time] :
       {std::pair{"--compute_ms", training.compute_ms}, {"--network_ms", training.network_ms}}) {
    if (!absl::StartsWith(time, kTracePrefix) || MeasuredIn(prepared, time) != nullptr) continue;
    absl::StatusOr<MeasuredRun> run = MeasuredRun::Open(time.substr(std::string(kTracePrefix).size()));
    if (!run.ok()) {
      return absl::Status(run.status().code(), absl::StrCat(flag, " ", time, ": ", run.status().message()));
    }
    prepared.measured.push_back(*std::move(run));
  }
  return absl::OkStatus();
}

constexpr int kAnswerMs = 120'000;

// A process in the background would be stopped when it reads.
bool CanAsk() {
  return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1 && tcgetpgrp(STDIN_FILENO) == getpgrp();
}

// The line that the user types; empty: none.
std::string Answer(const Interrupt& interrupt) {
  pollfd events[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = interrupt.fd(), .events = POLLIN}};
  if (poll(events, 2, kAnswerMs) <= 0 || events[1].revents != 0) return "";
  char line[64];
  const ssize_t count = read(STDIN_FILENO, line, sizeof(line));
  return count > 0 ? std::string(absl::StripAsciiWhitespace({line, static_cast<size_t>(count)})) : "";
}

bool IsYes(const std::string& answer) {
  const std::vector<std::string> words =
      absl::StrSplit(InLanguage(Language::kChinese, [] { return Tr("y,yes"); }), ',');
  return std::ranges::find(words, absl::AsciiStrToLower(answer)) != words.end();
}

// The checkpoint that --resume selects; empty: none, or not known yet.
std::string ResumedFrom(const TrainingOptions& training) {
  if (training.resume.empty()) return "";
  TrainingOptions place = training;
  if (training.resume != "latest") place.checkpoint_dir = training.resume;
  const std::string newest = NewestCheckpoint(place);
  return newest.empty() && training.resume != "latest" ? training.resume : newest;
}

std::string AbsolutePath(const std::string& path) {
  return path.empty() ? path : std::filesystem::absolute(path).string();
}

}  // namespace

const MeasuredRun* MeasuredIn(const Prepared& prepared, const std::string& time) {
  if (!absl::StartsWith(time, kTracePrefix)) return nullptr;
  for (const MeasuredRun& run : prepared.measured) {
    if (absl::StrCat(kTracePrefix, run.path()) == time) return &run;
  }
  return nullptr;
}

absl::StatusOr<StepTimes> MeasuredTimes(const Prepared& prepared, const std::string& time, bool computing,
                                        const Configuration& configuration, std::string& which) {
  const MeasuredRun* run = MeasuredIn(prepared, time);
  PSRING_CHECK(run != nullptr);
  const bool alone = !configuration.strategy.communicates();
  return run->TimesFor(configuration, computing || alone, which);
}

absl::Status NameStrategies(ExperimentFlags& flags) {
  CompareOptions& options = flags.options;
  std::vector<std::string>& names = options.strategies;
  if (names.empty() && !flags.nodes.several()) return absl::OkStatus();
  std::string& trained = options.training.strategy;
  const bool is_first = !names.empty() && trained == names.front();
  PSRING_RETURN_IF_ERROR(UseCanonicalStrategies(names));
  if (is_first) trained = names.front();
  if (!flags.nodes.several()) return absl::OkStatus();
  for (const std::string& name : ComparedStrategies(options, HasTables(options.training))) {
    PSRING_ASSIGN_OR_RETURN(const StrategyRow strategy, FindStrategy(name));
    if (!strategy.uses_servers) continue;
    return PlaceServers(/*several_machines=*/true, options.servers != std::vector<int>{0}, "",
                        options.training);
  }
  return absl::OkStatus();
}

absl::StatusOr<Prepared> Prepare(const ExperimentFlags& flags, const std::string& verb,
                                 const Interrupt& interrupt, Display& display) {
  Prepared prepared{.begin_ns = MonotonicNanos()};
  // Fails now rather than after measuring the links.
  if (!flags.dry_run) PSRING_RETURN_IF_ERROR(TemporaryFolder::Create().status());
  PSRING_ASSIGN_OR_RETURN(prepared.binaries, FindBinaries());
  PSRING_RETURN_IF_ERROR(CheckCompareOptions(flags.options));
  PSRING_RETURN_IF_ERROR(OpenMeasured(flags.options.training, prepared));
  PSRING_ASSIGN_OR_RETURN(prepared.site.address, OwnAddress(flags.nodes.network, {}));
  if (!flags.dry_run) {
    PSRING_ASSIGN_OR_RETURN(prepared.claim, flags.resume.empty() ? RunClaim::Make(flags.out, verb, WallNow())
                                                                 : RunClaim::Reopen(flags.resume));
    if (flags.options.training.clock != "virtual") prepared.measuring = std::make_unique<MeasuringNow>();
  }
  prepared.machine = DescribeMachine();
  prepared.cores = prepared.machine.cores * flags.nodes.nodes;
  TrainingOptions checked = flags.options.training;
  checked.strategy = "single";
  checked.steps = 0;  // --steps is for the cost part, so it does not contradict --samples
  checked.reference_workers = 1;
  checked.staleness_lr = "none";  // applies to some strategies; CheckCompareOptions has checked it
  checked.wire = "float32";
  checked.score = "test";
  checked.straggler = "none";  // there is one worker here
  PSRING_RETURN_IF_ERROR(ValidateTrainingOptions(checked));
  LeaveServersOut(checked);
  LeavePipelineOut(checked);
  checked.reshard = TrainingOptions().reshard;
  checked.dp_shard = 0;
  checked.memory = "none";  // CheckMemoryOf
  PSRING_ASSIGN_OR_RETURN(prepared.probe, CheckWithTrainer(prepared.binaries, checked, interrupt));
  prepared.link = flags.link;
  if (flags.options.training.clock == "virtual") {
    if (!flags.link_is_default && prepared.link.wanted()) {
      return InvalidTr(
          "--link is for real processes; with --clock virtual, set --network_ms, the time of one gradient");
    }
    prepared.link = {};
  }
  std::string why_userspace;
  PSRING_ASSIGN_OR_RETURN(prepared.shaping, VirtualCluster::Choose(prepared.link, interrupt, why_userspace));
  DescribeMachines(flags, prepared.shaping, prepared.probe);
  PSRING_ASSIGN_OR_RETURN(std::vector<Configuration> configurations, AllConfigurations(flags, prepared));
  absl::Status collectives = CheckCollectives(configurations, prepared);
  if (!collectives.ok() && flags.link_is_default && prepared.shaping != Shaping::kNone) {
    // The link is only a default: try without it.
    const std::string why_no_link(collectives.message());
    prepared.link = {};
    prepared.shaping = Shaping::kNone;
    DescribeMachines(flags, prepared.shaping, prepared.probe);
    PSRING_ASSIGN_OR_RETURN(configurations, AllConfigurations(flags, prepared));
    collectives = CheckCollectives(configurations, prepared);
    if (collectives.ok()) display.Note(Tr("no virtual cluster: $0", why_no_link));
  }
  PSRING_RETURN_IF_ERROR(collectives);
  PSRING_RETURN_IF_ERROR(CheckOnNodes(configurations, flags));
  PSRING_RETURN_IF_ERROR(CheckBatches(flags.options, prepared.probe.samples / prepared.probe.predictions));
  PSRING_RETURN_IF_ERROR(CheckMemoryOf(configurations, flags, prepared.binaries, interrupt, prepared.probe));
  PSRING_RETURN_IF_ERROR(
      BuildVirtualCluster(flags, configurations, why_userspace, interrupt, display, prepared));
  PSRING_RETURN_IF_ERROR(TimeTrainer(prepared.binaries, flags.options.training, flags.dry_run, interrupt,
                                     display, prepared.probe));
  return prepared;
}

absl::StatusOr<Provenance> ProvenanceOf(const ExperimentFlags& flags, const Prepared& prepared,
                                        const Plan& plan) {
  const TrainingOptions& training = flags.options.training;
  const std::string resumed = ResumedFrom(training);
  std::vector<std::string> inputs = {training.workload, resumed};
  for (const MeasuredRun& run : prepared.measured) inputs.push_back(run.path());
  PSRING_ASSIGN_OR_RETURN(Provenance provenance, DescribeProvenance(prepared.binaries.all(), inputs));
  if (training.workload.empty()) {
    TrainingOptions data;
    data.model = training.model;  // the kind of samples and, of a text, their length
    data.context = training.context;
    data.batch = 1;
    data.data = training.data;
    data.data_dir = AbsolutePath(training.data_dir);
    data.text = AbsolutePath(training.text);
    data.seed = training.seed;
    data.validation = training.validation;
    provenance.data_flags = TrainingArguments(data);
    provenance.data_hash = prepared.probe.data_hash;
  }
  provenance.settled = flags.settled;
  if (flags.link_is_default) {
    provenance.settled.push_back(prepared.shaping == Shaping::kNone
                                     ? "--link=none"
                                     : absl::StrFormat("--link=%.0fbit", prepared.link.bits_per_s));
  }
  if (training.device != "auto") provenance.settled.push_back(absl::StrCat("--device=", training.device));
  for (const Configuration& configuration : plan.cost) {
    const std::string& placement = configuration.training.server_placement;
    if (placement.empty()) continue;
    provenance.settled.push_back(absl::StrCat("--server_placement=", placement));
    break;
  }
  if (!resumed.empty()) provenance.settled.push_back(absl::StrCat("--resume=", resumed));
  return provenance;
}

void AddMachinesNote(const Site& site, Plan& plan) {
  if (site.nodes == nullptr) return;
  const std::vector<std::string> machines = site.nodes->Machines();
  plan.notes.push_back(Tr("on $0 machines: $1", machines.size(), absl::StrJoin(machines, Tr(", "))));
}

absl::Status TakePlanOf(const ExperimentFlags& flags, Plan& plan) {
  if (flags.plan_of.empty()) return absl::OkStatus();
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.plan_of + "/manifest.json"));
  const absl::StatusOr<RecordedPlan> recorded = RecordedPlanFromJson(text);
  if (!recorded.ok()) return InvalidArgument("--plan_of ", flags.plan_of, ": ", recorded.status().message());
  PSRING_RETURN_IF_ERROR(TakeRecordedPlan(*recorded, flags.options, plan));
  plan.notes.push_back(Tr("rounds, steps and samples are those of $0", flags.plan_of));
  return absl::OkStatus();
}

absl::Status CheckMeasured(const Prepared& prepared, Plan& plan) {
  for (const Configuration& configuration : plan.cost) {
    for (const bool computing : {true, false}) {
      const TrainingOptions& training = configuration.training;
      const std::string& time = computing ? training.compute_ms : training.network_ms;
      if (MeasuredIn(prepared, time) == nullptr) continue;
      std::string which;
      PSRING_RETURN_IF_ERROR(MeasuredTimes(prepared, time, computing, configuration, which).status());
      if (which == configuration.name()) continue;
      plan.notes.push_back(Tr(computing ? TrNoop("$0: computing times as measured for $1")
                                        : TrNoop("$0: exchange times as measured for $1"),
                              configuration.name(), which));
    }
  }
  return absl::OkStatus();
}

absl::Status ConfirmLongPlan(const ExperimentFlags& flags, const Prepared& prepared, double spent_s,
                             const Plan& plan, const Interrupt& interrupt, Display& display) {
  const bool allowed = flags.options.time_budget_given || !flags.plan_of.empty() || !flags.resume.empty();
  if (plan.expected_s <= kMaxUnaskedSeconds || allowed) return absl::OkStatus();
  const std::string advice = LongPlanAdvice(flags.options, prepared.probe, prepared.cores, spent_s, plan);
  if (flags.dry_run) {
    display.Note(advice);
    return absl::OkStatus();
  }
  if (prepared.site.nodes != nullptr || !CanAsk()) return absl::InvalidArgumentError(advice);
  display.Clear();
  display.Note(advice);
  display.Ask(Tr("start it, about $0? [y/N] ", HumanSeconds(plan.expected_s)));
  const std::string answer = Answer(interrupt);
  if (answer.empty()) display.Say("");  // the cursor is still on the question's line
  PSRING_RETURN_IF_ERROR(interrupt.Check());
  return IsYes(answer) ? absl::OkStatus() : absl::CancelledError(Tr("not started"));
}

}  // namespace psring
