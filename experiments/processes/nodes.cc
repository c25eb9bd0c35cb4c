#include "experiments/processes/nodes.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/host_identity.h"
#include "common/cuda/cuda_device.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "common/measure/trace.h"
#include "common/rendezvous/begin_together.h"
#include "experiments/processes/temporary_folder.h"

namespace psring {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kLook = absl::Milliseconds(100);
// A process that fails in order may do so because another one, elsewhere, was killed: that one comes first.
constexpr absl::Duration kForTheCause = absl::Milliseconds(1500);
// Until node 0 says what becomes of a launch that has failed here: it ends its own processes first.
constexpr absl::Duration kForTheVerdict = absl::Seconds(30);
constexpr int kClockReadings = 20;
constexpr size_t kMostHostNameBytes = 256;     // of a host
constexpr size_t kMostReportBytes = 64 << 10;  // of what another node says went wrong

bool WasKilled(const absl::Status& status) {
  return absl::StrContains(status.message(), "was killed by SIG");
}

absl::Status CheckNames(const std::vector<std::string>& names) {
  for (size_t node = 0; node < names.size(); ++node) {
    if (names[node].empty() || names[node].size() > kMostHostNameBytes) {
      return absl::InvalidArgumentError(absl::StrCat("node ", node, " sent a name or address of ",
                                                     names[node].size(), " bytes; start it with psring"));
    }
  }
  return absl::OkStatus();
}

// A node's psring prints it behind its own name.
absl::Status Lost(const absl::Status& status) {
  return absl::Status(absl::StatusCode::kUnavailable, status.message());
}

}  // namespace

absl::Status CheckNodes(const NodesOptions& options) {
  if (!options.network.bind.empty() && !options.network.interface.empty()) {
    return absl::InvalidArgumentError("--bind and --interface both say which network to use; give one");
  }
  if (options.node < 0 || options.node >= options.nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--node_rank ", options.node, " of --nnodes ", options.nodes, ": nodes count from 0"));
  }
  if (options.several() && options.master_addr.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nnodes ", options.nodes, " needs --master_addr, the address of node 0"));
  }
  if (!options.several() && !options.master_addr.empty()) {
    return absl::InvalidArgumentError(
        "--master_addr is for several machines; give --nnodes, or leave it out");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> OnClock(const ClockMap& clock, const std::string& name, const std::string& text) {
  if (clock.same()) return text;
  if (absl::StartsWith(name, "steps-")) {
    std::string shifted;
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
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
  if (!events.is_array()) return absl::InvalidArgumentError(absl::StrCat(name, " is no trace"));
  for (Json& event : events) {
    if (event.is_object() && event.contains("ts") && event["ts"].is_number()) {
      const auto ns = static_cast<int64_t>(std::llround(1e3 * event["ts"].get<double>()));
      event["ts"] = 1e-3 * static_cast<double>(clock.Theirs(ns));
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
  PSRING_ASSIGN_OR_RETURN(const std::string address, OwnAddress(options.network, join));
  join.bind = address;
  PSRING_ASSIGN_OR_RETURN(nodes->meeting_, Rendezvous::Join(join));
  PSRING_RETURN_IF_ERROR(RequireEqualFlags(*nodes->meeting_, flags));
  PSRING_ASSIGN_OR_RETURN(nodes->addresses_, nodes->meeting_->Exchange("addresses", address));
  PSRING_ASSIGN_OR_RETURN(nodes->hosts_, nodes->meeting_->Exchange("hosts", HostName()));
  PSRING_RETURN_IF_ERROR(CheckNames(nodes->addresses_));
  PSRING_RETURN_IF_ERROR(CheckNames(nodes->hosts_));
  PSRING_RETURN_IF_ERROR(nodes->CompareClocks());
  return nodes;
}

absl::Status Nodes::CompareClocks() {
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> clocks, meeting_->Exchange("clocks", ThisClock()));
  own_clock_ = clocks[static_cast<size_t>(options_.node)] != clocks[0];
  return absl::OkStatus();
}

absl::StatusOr<ClockOffset> Nodes::MeasureClock() {
  std::vector<ClockReading> readings;
  for (int i = 0; i < kClockReadings; ++i) {
    PSRING_ASSIGN_OR_RETURN(readings.emplace_back(), meeting_->ReadClock());
  }
  return OffsetOf(readings);
}

Nodes::~Nodes() {
  if (meeting_ != nullptr && leads()) End(absl::OkStatus());
}

std::string Nodes::Key(const char* what, int node) const {
  return node < 0 ? absl::StrCat(what, "/", launch_) : absl::StrCat(what, "/", launch_, "/", node);
}

void Nodes::End(const absl::Status& status) {
  if (ended_) return;
  ended_ = true;
  const NodeOrder order{.over = true, .failure = std::string(status.message())};
  for (int node = 1; node < options_.nodes; ++node) (void)meeting_->Set(Key("order", node), ToJson(order));
}

absl::Status Nodes::WaitFor(const Wanted& wanted, const Interrupt& interrupt, Display& display) {
  absl::Time deadline = wanted.deadline;
  std::string refused;
  absl::Status why;
  while (true) {
    if (leads()) PSRING_RETURN_IF_ERROR(Trouble());
    const absl::StatusOr<std::optional<std::string>> value = meeting_->TryGet(wanted.key, wanted.whom);
    if (!value.ok()) return Lost(value.status());
    if (value->has_value() && (why.ok() || **value != refused)) {
      const absl::Status taken = wanted.take(**value);
      if (taken.ok()) return taken;
      if (why.ok()) {
        deadline = std::min(deadline, absl::Now() + wanted.patience);
        display.Say(absl::StrCat("note:      ignored ", wanted.what, ": ", taken.message()));
      }
      why = taken;
      refused = **value;
    }
    PSRING_RETURN_IF_ERROR(interrupt.Check());
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited too long for ", wanted.whom,
                       why.ok() ? "" : absl::StrCat("; ignored ", wanted.what, ": ", why.message())));
    }
    absl::SleepFor(kLook);
  }
}

absl::Status Nodes::Trouble() {
  const absl::StatusOr<std::optional<std::string>> reported =
      meeting_->TryGet(Key(leads() ? "failed" : "verdict"), "the other nodes");
  if (!reported.ok()) return Lost(reported.status());
  if (!reported->has_value() || (*reported)->empty()) return absl::OkStatus();
  const std::pair<std::string, std::string> code_and_why =
      absl::StrSplit(**reported, absl::MaxSplits(' ', 1));
  int code = 0;
  const bool known = absl::SimpleAtoi(code_and_why.first, &code) && code > 0 &&
                     code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  if (!known) return absl::OkStatus();  // no node writes that
  return absl::Status(static_cast<absl::StatusCode>(code), code_and_why.second.substr(0, kMostReportBytes));
}

void Nodes::Report(const char* key, const absl::Status& status) {
  const std::string text =
      status.ok() ? "" : absl::StrCat(static_cast<int>(status.code()), " ", status.message());
  (void)meeting_->Set(Key(key), text);
}

bool Nodes::AllFollow() {
  for (int node = 1; node < options_.nodes; ++node) {
    const auto ended = meeting_->TryGet(absl::StrCat("ended/", node), "the other nodes");
    if (!ended.ok() || ended->has_value()) return false;
  }
  return true;
}

NodeLayout Nodes::LayoutOf(const TrainingOptions& training) const {
  return {.nodes = options_.nodes, .per_node = std::max(1, options_.per_node) * training.ranks_per_process};
}

absl::Status Nodes::HandOut(const TrainingJob& job, LaunchSpec& spec) {
  job_ = job;
  TrainingOptions training = job.training;
  training.data_dir.clear();  // each machine has its own
  const NodeOrder order{.what = spec.what,
                        .deadline_s = absl::ToDoubleSeconds(spec.deadline),
                        .training = TrainingArguments(training),
                        .has_servers = job.servers > 0,
                        .outlives_workers = job.outlives_workers,
                        .store_port = job.store_port};
  for (int node = 1; node < options_.nodes; ++node) {
    PSRING_RETURN_IF_ERROR(meeting_->Set(Key("order", node), ToJson(order)));
  }
  spec.check = [this] { return Trouble(); };
  return absl::OkStatus();
}

absl::Status Nodes::TakeRecords(int node, const std::string& folder, absl::Time deadline,
                                const Interrupt& interrupt, Display& display) {
  const std::string whom = absl::StrCat("node ", node, " (", host(node), ") to end");
  const std::vector<std::string> expected = RecordNames(job_, PartOf(job_, LayoutOf(job_.training), node));
  std::vector<std::string> names;
  const auto take = [&](const std::string& text) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(names, NamedRecords(text, expected));
    return absl::OkStatus();
  };
  PSRING_RETURN_IF_ERROR(WaitFor({.key = Key("done", node),
                                  .whom = whom,
                                  .what = absl::StrCat("a list of files of node ", node),
                                  .deadline = deadline,
                                  .patience = absl::InfiniteDuration(),
                                  .take = take},
                                 interrupt, display));
  const absl::StatusOr<std::string> within = meeting_->Get(Key("within", node), whom);
  if (int64_t ns = 0; within.ok() && absl::SimpleAtoi(*within, &ns)) {
    clocks_within_ = std::max(clocks_within_, absl::Nanoseconds(ns));
  }
  // Each at most a message of the store's.
  for (const std::string& name : names) {
    PSRING_ASSIGN_OR_RETURN(const std::string text, meeting_->Get(absl::StrCat(Key("file", node), "/", name),
                                                                  absl::StrCat("node ", node, "'s ", name)));
    PSRING_RETURN_IF_ERROR(WriteFile(absl::StrCat(folder, "/", name), text));
  }
  return absl::OkStatus();
}

absl::Status Nodes::Gather(const absl::Status& own, const std::string& folder, absl::Time deadline,
                           bool may_restart, const Interrupt& interrupt, Display& display) {
  absl::Status verdict = own;
  clocks_within_ = absl::ZeroDuration();
  if (absl::IsAborted(own) && !WasKilled(own)) {
    for (const absl::Time until = absl::Now() + kForTheCause; absl::Now() < until;) {
      const absl::Status trouble = Trouble();
      if (!trouble.ok() && trouble.message() != own.message()) {
        verdict = trouble;
        break;
      }
      absl::SleepFor(kLook);
    }
  }
  for (int node = 1; node < options_.nodes && verdict.ok(); ++node) {
    verdict = TakeRecords(node, folder, deadline, interrupt, display);
  }
  if (absl::IsAborted(verdict)) {
    if (!AllFollow()) verdict = Lost(verdict);
    if (absl::IsAborted(verdict) && may_restart) (void)meeting_->Set(Key("again"), "");
  }
  // The others wait for this, however it ended.
  Report("verdict", verdict);
  if (verdict.ok()) (void)meeting_->Set(Key("well"), "");
  ++launch_;
  return verdict;
}

absl::Status Nodes::Follow(const NodeOwn& own, const Interrupt& interrupt, Display& display) {
  const absl::Status status = FollowAll(own, interrupt, display);
  // A node that leaves in order is not lost, so the others must be told.
  if (!status.ok()) {
    (void)meeting_->Set(absl::StrCat("ended/", options_.node), "");
    Report("failed", absl::AbortedError(absl::StrCat("node ", options_.node, " (", host(options_.node),
                                                     "): ", status.message())));
  }
  return status;
}

absl::Status Nodes::FollowAll(const NodeOwn& own, const Interrupt& interrupt, Display& display) {
  for (;; ++launch_) {
    PSRING_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Create());
    NodeOrder order;
    TrainingJob job;
    const auto take = [&](const std::string& text) -> absl::Status {
      PSRING_ASSIGN_OR_RETURN(order, NodeOrderFromJson(text));
      if (order.over) return absl::OkStatus();
      PSRING_ASSIGN_OR_RETURN(job, JobOf(order, own, address(0), folder.path()));
      return absl::OkStatus();
    };
    PSRING_RETURN_IF_ERROR(WaitFor({.key = Key("order", options_.node),
                                    .whom = "node 0's next launch",
                                    .what = "an order for this node",
                                    .deadline = absl::InfiniteFuture(),
                                    .patience = options_.timeout,
                                    .take = take},
                                   interrupt, display));
    if (order.over) {
      if (order.failure.empty()) return absl::OkStatus();
      return absl::AbortedError(absl::StrCat("node 0 has ended: ", order.failure));
    }
    const absl::Status status = FollowOne(order, job, own, folder.path(), interrupt, display);
    if (status.ok()) continue;
    const auto again = meeting_->TryGet(Key("again"), "node 0");
    if (!again.ok() || !again->has_value()) return status;
    display.Say(absl::StrCat("note:      ", status.message(), "; node 0 starts all of it again"));
  }
}

absl::Status Nodes::FollowOne(const NodeOrder& order, const TrainingJob& job, const NodeOwn& own,
                              const std::string& folder, const Interrupt& interrupt, Display& display) {
  const JobHost machine{.binaries = own.binaries,
                        .records = folder,
                        .address = address(options_.node),
                        .gpus = CudaDeviceCount(),
                        .metrics_port = own.metrics_port};
  const NodePart part = PartOf(job, LayoutOf(job.training), options_.node);
  LaunchSpec spec{.what = order.what, .deadline = absl::Seconds(order.deadline_s)};
  for (const int process : part.processes) {
    spec.children.push_back(TrainerProcess(job, machine, process));
  }
  for (const int server : part.servers) spec.children.push_back(ServerProcess(job, machine, server));
  display.Say(absl::StrCat("node ", options_.node, ":    ", order.what, ": ", spec.children.size(),
                           spec.children.size() == 1 ? " process" : " processes", " of it here"));
  spec.on_line = [](int, const std::string& line) { return ParseProgress(line).has_value(); };
  spec.check = [this] { return Trouble(); };
  ClockOffset before, after;
  if (own_clock_) {
    PSRING_ASSIGN_OR_RETURN(before, MeasureClock());
  }
  absl::Status ended = RunChildren(spec, interrupt);
  if (absl::IsAborted(ended) && !WasKilled(ended)) {
    for (const absl::Time until = absl::Now() + kForTheCause; absl::Now() < until && Trouble().ok();) {
      absl::SleepFor(kLook);
    }
  }
  const absl::Status known = Trouble();  // node 0 has spoken, or a node is lost
  if (!known.ok()) return known;
  if (!ended.ok()) {
    ended = absl::Status(ended.code(), absl::StrCat("on node ", options_.node, " (", host(options_.node),
                                                    "): ", ended.message()));
    if (absl::IsCancelled(ended)) return ended;  // this node ends, and nothing is launched again
    Report("failed", ended);
    // Node 0 takes it from here, and all print one line.
    for (const absl::Time until = absl::Now() + kForTheVerdict; absl::Now() < until;) {
      if (const absl::Status verdict = Trouble(); !verdict.ok()) return verdict;
      PSRING_RETURN_IF_ERROR(interrupt.Check());
      absl::SleepFor(kLook);
    }
    return ended;
  }
  if (own_clock_) {
    PSRING_ASSIGN_OR_RETURN(after, MeasureClock());
  }
  PSRING_RETURN_IF_ERROR(SendRecords(job, ClockMap(before, after), folder));
  while (true) {
    PSRING_RETURN_IF_ERROR(Trouble());
    PSRING_ASSIGN_OR_RETURN(const std::optional<std::string> well, meeting_->TryGet(Key("well"), "node 0"));
    if (well.has_value()) return absl::OkStatus();
    PSRING_RETURN_IF_ERROR(interrupt.Check());
    absl::SleepFor(kLook);
  }
}

absl::Status Nodes::SendRecords(const TrainingJob& job, const ClockMap& clock, const std::string& folder) {
  PSRING_RETURN_IF_ERROR(meeting_->Set(Key("within", options_.node), absl::StrCat(clock.within())));
  std::string names;
  for (const std::string& name : RecordNames(job, PartOf(job, LayoutOf(job.training), options_.node))) {
    const absl::StatusOr<std::string> written = ReadFile(absl::StrCat(folder, "/", name));
    if (absl::IsNotFound(written.status())) continue;
    PSRING_RETURN_IF_ERROR(written.status());
    PSRING_ASSIGN_OR_RETURN(const std::string text, OnClock(clock, name, *written));
    PSRING_RETURN_IF_ERROR(meeting_->Set(absl::StrCat(Key("file", options_.node), "/", name), text));
    absl::StrAppend(&names, name, "\n");
  }
  return meeting_->Set(Key("done", options_.node), names);
}

}  // namespace psring
