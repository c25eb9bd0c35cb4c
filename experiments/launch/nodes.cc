#include "experiments/launch/nodes.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cuda/cuda_device.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "common/net/host_identity.h"
#include "common/rendezvous/begin_together.h"
#include "common/text/peer_text.h"
#include "common/text/translate.h"
#include "experiments/launch/temporary_folder.h"

namespace psring {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
// After an exit with an error: for the report of a process killed on another node, the likely cause.
constexpr absl::Duration kCauseTimeout = absl::Milliseconds(1500);
// For node 0 to report the outcome of a failed launch, after it has ended its own processes.
constexpr absl::Duration kVerdictTimeout = absl::Seconds(30);
// For node 0 to collect the records of all nodes after the launch's own deadline.
constexpr absl::Duration kCollectTimeout = absl::Minutes(10);
constexpr size_t kMaxHostNameBytes = 256;
constexpr size_t kMaxReportBytes = 64 << 10;  // of another node's failure
constexpr size_t kPieceBytes = 1 << 20;       // of a file; the last piece is shorter

bool WasKilled(const absl::Status& status) {
  return absl::StrContains(status.message(), "was killed by SIG");
}

absl::Status CheckNames(const std::vector<std::string>& names) {
  for (size_t node = 0; node < names.size(); ++node) {
    if (names[node].empty() || names[node].size() > kMaxHostNameBytes) {
      return InvalidArgument("node ", node, " sent a name or address of ", names[node].size(),
                             " bytes; start it with psring");
    }
  }
  return absl::OkStatus();
}

// The error of a lost node or store.
absl::Status Lost(const absl::Status& status) {
  return absl::Status(absl::StatusCode::kUnavailable, status.message());
}

}  // namespace

absl::StatusOr<std::string> OnClock(const ClockMap& clock, const std::string& name, const std::string& text) {
  if (clock.same()) return text;
  if (absl::StartsWith(name, "steps-")) {
    std::string shifted;
    // A rank that was killed has not finished its last line.
    const absl::string_view lines = absl::string_view(text).substr(0, text.rfind('\n') + 1);
    for (absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
      PSRING_ASSIGN_OR_RETURN(StepRecord step, StepRecordFromJson(std::string(line)));
      step.begin_ns = clock.Theirs(step.begin_ns);
      for (BucketRecord& bucket : step.buckets) {
        for (int64_t* time : {&bucket.ready_ns, &bucket.begin_ns, &bucket.end_ns})
          *time = clock.Theirs(*time);
      }
      absl::StrAppend(&shifted, ToJson(step), "\n");
    }
    return shifted;
  }
  if (!absl::StartsWith(name, "trace-")) return text;
  Json trace = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Json& events = trace.is_object() ? trace["traceEvents"] : trace;
  if (!events.is_array()) return InvalidArgument(name, " is not a trace");
  for (Json& event : events) {
    if (event.is_object() && event.contains("ts") && event["ts"].is_number()) {
      const auto ns = static_cast<int64_t>(std::llround(1e3 * event["ts"].get<double>()));
      event["ts"] = 1e-3 * clock.Theirs(ns);
    }
  }
  return trace.dump();
}

absl::StatusOr<std::unique_ptr<Nodes>> Nodes::Join(const NodesOptions& options,
                                                   const std::vector<std::string>& flags) {
  std::unique_ptr<Nodes> nodes(new Nodes());
  nodes->options_ = options;
  RendezvousOptions join;
  join.rank = options.node;
  join.world_size = options.nodes;
  join.local_world_size = 1;
  join.host = options.master_addr;
  join.port = options.master_port;
  join.timeout = options.timeout;
  join.noun = "node";
  join.secret = options.secret;
  PSRING_ASSIGN_OR_RETURN(const std::string address, OwnAddress(options.network, join));
  join.bind = address;
  PSRING_ASSIGN_OR_RETURN(nodes->rendezvous_, Rendezvous::Join(join));
  PSRING_RETURN_IF_ERROR(RequireEqualFlags(*nodes->rendezvous_, flags));
  PSRING_ASSIGN_OR_RETURN(nodes->addresses_, nodes->rendezvous_->Exchange("addresses", address));
  PSRING_ASSIGN_OR_RETURN(nodes->hosts_, nodes->rendezvous_->Exchange("hosts", HostName()));
  PSRING_RETURN_IF_ERROR(CheckNames(nodes->addresses_));
  PSRING_RETURN_IF_ERROR(CheckNames(nodes->hosts_));
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> clocks,
                          nodes->rendezvous_->Exchange("clocks", ThisClock()));
  nodes->own_clock_ = clocks[options.node] != clocks[0];
  return nodes;
}

Nodes::~Nodes() {
  if (rendezvous_ != nullptr && leads()) End(absl::OkStatus());
}

std::string Nodes::Key(const char* what, int node) const {
  return node < 0 ? absl::StrCat(what, "/", launch_) : absl::StrCat(what, "/", launch_, "/", node);
}

void Nodes::End(const absl::Status& status) {
  if (ended_) return;
  ended_ = true;
  const NodeOrder order{.over = true, .failure = std::string(status.message())};
  for (int node = 1; node < options_.nodes; ++node) (void)rendezvous_->Set(Key("order", node), ToJson(order));
}

absl::Status Nodes::WaitFor(const ValueRequest& request, const Interrupt& interrupt, Display& display) {
  MonotonicTime deadline = request.deadline;
  std::string rejected;
  absl::Status why;
  while (true) {
    if (leads()) PSRING_RETURN_IF_ERROR(ReportedFailure());
    const absl::StatusOr<std::optional<std::string>> value = rendezvous_->TryGet(request.key, request.whom);
    if (!value.ok()) return Lost(value.status());
    if (value->has_value() && (why.ok() || **value != rejected)) {
      absl::Status accepted = request.accept(**value);
      if (accepted.ok()) return accepted;
      if (why.ok()) {
        deadline = std::min(deadline, MonotonicNow() + request.patience);
        display.Note(Tr("ignored $0: $1", request.what, accepted.message()));
      }
      why = accepted;
      rejected = **value;
    }
    PSRING_RETURN_IF_ERROR(interrupt.Check());
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited too long for ", request.whom,
                       why.ok() ? "" : absl::StrCat("; ignored ", request.what, ": ", why.message())));
    }
    absl::SleepFor(kPollInterval);
  }
}

absl::Status Nodes::AwaitFailure(absl::Duration timeout, const Interrupt& interrupt,
                                 absl::string_view known) {
  for (const MonotonicTime deadline = MonotonicNow() + timeout;; absl::SleepFor(kPollInterval)) {
    absl::Status failure = ReportedFailure();
    if (!failure.ok() && failure.message() != known) return failure;
    PSRING_RETURN_IF_ERROR(interrupt.Check());
    if (MonotonicNow() >= deadline) return absl::OkStatus();
  }
}

absl::Status Nodes::ReportedFailure() {
  const absl::StatusOr<std::optional<std::string>> reported =
      rendezvous_->TryGet(Key(leads() ? "failed" : "verdict"), "the other nodes");
  if (!reported.ok()) return Lost(reported.status());
  if (!reported->has_value() || (*reported)->empty()) return absl::OkStatus();
  const std::pair<std::string, std::string> code_and_why =
      absl::StrSplit(**reported, absl::MaxSplits(' ', 1));
  int code = 0;
  const bool known = absl::SimpleAtoi(code_and_why.first, &code) && code > 0 &&
                     code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  if (!known) return absl::OkStatus();  // not written by a node
  return absl::Status(static_cast<absl::StatusCode>(code), PeerText(code_and_why.second, kMaxReportBytes));
}

void Nodes::Report(const char* key, const absl::Status& status) {
  const std::string text =
      status.ok() ? "" : absl::StrCat(static_cast<int>(status.code()), " ", status.message());
  (void)rendezvous_->Set(Key(key), text);
}

bool Nodes::AllNodesFollow() {
  for (int node = 1; node < options_.nodes; ++node) {
    const auto ended = rendezvous_->TryGet(absl::StrCat("ended/", node), "the other nodes");
    if (!ended.ok() || ended->has_value()) return false;
  }
  return true;
}

std::vector<std::string> Nodes::Machines() const {
  std::vector<std::string> machines;
  for (int node = 0; node < options_.nodes; ++node) {
    machines.push_back(absl::StrCat(PeerText(host(node)), " at ", PeerText(address(node))));
  }
  return machines;
}

absl::Status Nodes::RunLaunch(const NodeLaunch& launch, LaunchSpec& spec, const std::string& folder,
                              const Interrupt& interrupt, Display& display) {
  NodeOrder order = launch.order;
  order.what = spec.what;
  order.deadline_s = absl::ToDoubleSeconds(spec.deadline);
  job_ = launch.job;
  dead_.clear();
  for (int node = 1; node < options_.nodes; ++node) {
    PSRING_RETURN_IF_ERROR(rendezvous_->Set(Key("order", node), ToJson(order)));
  }
  spec.several_nodes = true;
  spec.others_elsewhere = order.outlives_workers;
  spec.check = [this, &launch] {
    if (launch.order.outlives_workers) ReportDeaths(launch);
    return ReportedFailure();
  };
  const MonotonicTime deadline = MonotonicNow() + spec.deadline;
  const absl::Status own = RunChildren(spec, interrupt);
  return Gather(own, folder, deadline, launch.may_restart(), interrupt, display);
}

absl::Status Nodes::TakeRecords(int node, const std::string& folder, MonotonicTime deadline,
                                const Interrupt& interrupt, Display& display) {
  const std::string whom = absl::StrCat("node ", node, " (", host(node), ") to end");
  const std::vector<std::string> expected =
      job_ ? RecordNames(*job_, PartOf(*job_, node)) : std::vector<std::string>();
  std::vector<std::string> names;
  const auto accept = [&](const std::string& text) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(names, NamedRecords(text, expected));
    return absl::OkStatus();
  };
  PSRING_RETURN_IF_ERROR(WaitFor({.key = Key("done", node),
                                  .whom = whom,
                                  .what = absl::StrCat("a list of files of node ", node),
                                  .deadline = deadline,
                                  .patience = absl::InfiniteDuration(),
                                  .accept = accept},
                                 interrupt, display));
  const absl::StatusOr<std::string> within = rendezvous_->Get(Key("within", node), whom);
  if (int64_t ns = 0; within.ok() && absl::SimpleAtoi(*within, &ns)) {
    clocks_within_ = std::max(clocks_within_, absl::Nanoseconds(ns));
  }
  for (const std::string& name : names) {
    std::string text;
    bool is_last = false;
    for (int piece = 0; !is_last && text.size() <= kMaxRecordBytes; ++piece) {
      const std::string key = absl::StrCat(Key("file", node), "/", name, "/", piece);
      PSRING_ASSIGN_OR_RETURN(const std::string part,
                              rendezvous_->Get(key, absl::StrCat("node ", node, "'s ", name)));
      text += part;
      is_last = part.size() < kPieceBytes;
      // The store keeps all values until the end, and there may be many launches.
      PSRING_RETURN_IF_ERROR(rendezvous_->Set(key, ""));
    }
    PSRING_RETURN_IF_ERROR(WriteFile(absl::StrCat(folder, "/", name), text));
  }
  return absl::OkStatus();
}

absl::Status Nodes::Gather(const absl::Status& own, const std::string& folder, MonotonicTime deadline,
                           bool may_restart, const Interrupt& interrupt, Display& display) {
  absl::Status verdict = own;
  clocks_within_ = absl::ZeroDuration();
  if (absl::IsAborted(own) && !WasKilled(own)) {
    if (const absl::Status cause = AwaitFailure(kCauseTimeout, interrupt, own.message()); !cause.ok()) {
      verdict = cause;
    }
  }
  for (int node = 1; node < options_.nodes && verdict.ok(); ++node) {
    verdict = TakeRecords(node, folder, deadline, interrupt, display);
  }
  if (absl::IsAborted(verdict)) {
    if (!AllNodesFollow()) verdict = Lost(verdict);
    if (absl::IsAborted(verdict) && may_restart) (void)rendezvous_->Set(Key("again"), "");
  }
  // The other nodes wait for a failure or for "well".
  Report("verdict", verdict);
  if (verdict.ok()) (void)rendezvous_->Set(Key("well"), "");
  ++launch_;
  return verdict;
}

absl::StatusOr<NodeTask> Nodes::TrainingTask(const NodeOrder& order, const NodeSetup& own,
                                             const std::string& folder) const {
  PSRING_ASSIGN_OR_RETURN(TrainingJob job, JobOf(order, own, address(0), folder));
  job.store.secret = options_.secret;
  const JobHost machine{.binaries = own.binaries,
                        .records = folder,
                        .address = address(options_.node),
                        .gpus = CudaDeviceCount()};
  const NodePart part = PartOf(job, options_.node);
  NodeTask task{.processes = part.processes,
                .ranks_per_process = job.training.ranks_per_process,
                .records = RecordNames(job, part)};
  for (const int process : part.processes) task.children.push_back(TrainerProcess(job, machine, process));
  for (const int server : part.servers) task.children.push_back(ServerProcess(job, machine, server));
  return task;
}

absl::Status Nodes::Follow(const TaskOfOrder& task_of, const Interrupt& interrupt, Display& display) {
  absl::Status status = FollowAll(task_of, interrupt, display);
  // The store does not detect a node that exits normally.
  if (!status.ok()) {
    (void)rendezvous_->Set(absl::StrCat("ended/", options_.node), "");
    Report("failed", absl::AbortedError(absl::StrCat("node ", options_.node, " (", host(options_.node),
                                                     "): ", status.message())));
  }
  return status;
}

absl::Status Nodes::FollowAll(const TaskOfOrder& task_of, const Interrupt& interrupt, Display& display) {
  std::optional<TemporaryFolder> folder;  // kept if the launch is started again
  for (;; ++launch_) {
    if (!folder.has_value()) {
      PSRING_ASSIGN_OR_RETURN(TemporaryFolder created, TemporaryFolder::Create());
      folder.emplace(std::move(created));
    }
    NodeOrder order;
    NodeTask task;
    const auto accept = [&](const std::string& text) -> absl::Status {
      PSRING_ASSIGN_OR_RETURN(order, NodeOrderFromJson(text));
      if (order.over || order.probes) return absl::OkStatus();
      PSRING_ASSIGN_OR_RETURN(task, task_of(order, folder->path()));
      return absl::OkStatus();
    };
    PSRING_RETURN_IF_ERROR(WaitFor({.key = Key("order", options_.node),
                                    .whom = "node 0's next launch",
                                    .what = "an order for this node",
                                    .deadline = MonotonicTime::InfiniteFuture(),
                                    .patience = options_.timeout,
                                    .accept = accept},
                                   interrupt, display));
    if (order.over) {
      if (order.failure.empty()) return absl::OkStatus();
      return absl::AbortedError(absl::StrCat("node 0 has ended: ", order.failure));
    }
    if (order.probes) {
      display.Say(absl::StrCat("node ", options_.node, ":    measuring the network"));
      PSRING_RETURN_IF_ERROR(Probe(interrupt).status());
      continue;
    }
    absl::Status status = FollowOne(order, std::move(task), folder->path(), interrupt, display);
    if (status.ok()) {
      folder.reset();
      continue;
    }
    const auto again = rendezvous_->TryGet(Key("again"), "node 0");
    if (!again.ok() || !again->has_value()) return status;
    display.Note(Tr("$0; node 0 restarts the launch", status.message()));
    KeepEarlierSteps(folder->path());
  }
}

absl::Status Nodes::FollowOne(const NodeOrder& order, NodeTask task, const std::string& folder,
                              const Interrupt& interrupt, Display& display) {
  const MonotonicTime collected_by = MonotonicNow() + absl::Seconds(order.deadline_s) + kCollectTimeout;
  LaunchSpec spec{.what = order.what,
                  .children = std::move(task.children),
                  .deadline = absl::Seconds(order.deadline_s),
                  .others_elsewhere = order.outlives_workers,
                  .several_nodes = true};
  display.Say(absl::StrCat("node ", options_.node, ":    ", order.what, ": ", spec.children.size(),
                           spec.children.size() == 1 ? " process" : " processes", " on this node"));
  spec.on_line = [this](int, const std::string& line) {
    for (const int worker : EndedWithout(line)) ReportLost(worker);
    return ParseProgress(line).has_value();
  };
  spec.check = [this] { return ReportedFailure(); };
  spec.is_lost = [&](int child) {
    const int each = task.ranks_per_process, first = task.processes[child] * each;
    return order.outlives_workers && AnyLost(first, each);
  };
  spec.on_lost = [&](int child) {
    display.Note(
        Tr("$0 no longer responded: the others ended the job without it", spec.children[child].name));
  };
  // Only node 0 can tell the job's store that a process has ended, which may not have joined.
  spec.on_death = [&](int child, const std::string& what, bool) {
    display.Note(Tr("$0; the others continue", what));
    if (static_cast<size_t>(child) >= task.processes.size()) return;  // a server
    (void)rendezvous_->Set(Key("died", task.processes[child]),
                           absl::StrCat(what, " on node ", options_.node, " (", host(options_.node), ")"));
  };
  ClockOffset before, after;
  if (own_clock_) {
    PSRING_ASSIGN_OR_RETURN(before, MeasureClock());
  }
  absl::Status ended = RunChildren(spec, interrupt);
  const bool exited = absl::IsAborted(ended) && !WasKilled(ended);
  absl::Status cause = exited ? AwaitFailure(kCauseTimeout, interrupt) : ReportedFailure();
  if (!cause.ok()) return cause;
  if (!ended.ok()) {
    ended = absl::Status(ended.code(), absl::StrCat("on node ", options_.node, " (", host(options_.node),
                                                    "): ", ended.message()));
    if (absl::IsCancelled(ended)) return ended;
    Report("failed", ended);
    // All nodes print node 0's verdict.
    const absl::Status verdict = AwaitFailure(kVerdictTimeout, interrupt);
    return verdict.ok() ? ended : verdict;
  }
  if (own_clock_) {
    PSRING_ASSIGN_OR_RETURN(after, MeasureClock());
  }
  PSRING_RETURN_IF_ERROR(SendRecords(task, ClockMap(before, after), folder));
  while (true) {
    PSRING_RETURN_IF_ERROR(ReportedFailure());
    PSRING_ASSIGN_OR_RETURN(const std::optional<std::string> well,
                            rendezvous_->TryGet(Key("well"), "node 0"));
    if (well.has_value()) return absl::OkStatus();
    PSRING_RETURN_IF_ERROR(interrupt.Check());
    if (MonotonicNow() >= collected_by) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited too long for node 0 (", host(0), ") to collect the records of ", order.what));
    }
    absl::SleepFor(kPollInterval);
  }
}

absl::Status Nodes::SendRecords(const NodeTask& task, const ClockMap& clock, const std::string& folder) {
  PSRING_RETURN_IF_ERROR(rendezvous_->Set(Key("within", options_.node), absl::StrCat(clock.within())));
  std::string names;
  for (const std::string& name : task.records) {
    const absl::StatusOr<std::string> written = ReadFile(absl::StrCat(folder, "/", name), kMaxRecordBytes);
    if (absl::IsNotFound(written.status())) continue;
    PSRING_RETURN_IF_ERROR(written.status());
    PSRING_ASSIGN_OR_RETURN(const std::string text, OnClock(clock, name, *written));
    for (size_t piece = 0; piece * kPieceBytes <= text.size(); ++piece) {
      PSRING_RETURN_IF_ERROR(rendezvous_->Set(absl::StrCat(Key("file", options_.node), "/", name, "/", piece),
                                              text.substr(piece * kPieceBytes, kPieceBytes)));
    }
    absl::StrAppend(&names, name, "\n");
  }
  return rendezvous_->Set(Key("done", options_.node), names);
}

}  // namespace psring
