#include "experiments/processes/nodes.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/begin_together.h"
#include "common/check.h"
#include "common/records.h"
#include "common/trace.h"
#include "experiments/processes/temporary_folder.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr absl::Duration kLook = absl::Milliseconds(100);
// A process that fails in order may do so because another one, elsewhere, was killed: that one comes first.
constexpr absl::Duration kForTheCause = absl::Milliseconds(1500);
// Until node 0 says what becomes of a launch that has failed here: it ends its own processes first.
constexpr absl::Duration kForTheVerdict = absl::Seconds(30);
constexpr int kClockReadings = 20;

bool WasKilled(const absl::Status& status) {
  return absl::StrContains(status.message(), "was killed by SIG");
}

std::string HostName() {
  char host[256] = "unknown-host";
  (void)gethostname(host, sizeof host - 1);
  return host;
}

// A node's psring prints it behind its own name.
absl::Status Lost(const absl::Status& status) {
  return absl::Status(absl::StatusCode::kUnavailable, status.message());
}

}  // namespace

int ServerNodes(const TrainingOptions& training) {
  return training.server_placement == "dedicated" ? ServersOf(training, 1) : 0;
}

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

int NodeLayout::NodeOfServer(const std::string& placement, int server, int servers) const {
  if (placement == "dedicated") return nodes - servers + server;
  return placement == "colocated" ? NodeOfRank(server) : 0;
}

std::string ToJson(const NodeOrder& order) {
  Json processes = Json::array();
  for (const NodeOrder::Process& process : order.processes) {
    processes.push_back({{"name", process.name},
                         {"program", process.program},
                         {"arguments", process.arguments},
                         {"environment", process.environment},
                         {"serves", process.serves},
                         {"may_die", process.may_die}});
  }
  return Json{{"what", order.what},
              {"deadline_s", order.deadline_s},
              {"over", order.over},
              {"failure", order.failure},
              {"processes", processes}}
      .dump();
}

absl::StatusOr<NodeOrder> NodeOrderFromJson(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const absl::Status strange =
      absl::InvalidArgumentError("node 0 sent an order that this psring does not know");
  const auto texts = [](const Json& list) {
    std::vector<std::string> strings;
    for (const Json& one : list) {
      if (one.is_string()) strings.push_back(one.get<std::string>());
    }
    return strings;
  };
  if (!json.is_object() || !json.contains("processes") || !json["processes"].is_array()) return strange;
  NodeOrder order{.what = json.value("what", ""),
                  .deadline_s = json.value("deadline_s", 0.0),
                  .over = json.value("over", false),
                  .failure = json.value("failure", "")};
  for (const Json& process : json["processes"]) {
    if (!process.is_object() || !process.contains("arguments") || !process.contains("environment")) {
      return strange;
    }
    order.processes.push_back({.name = process.value("name", ""),
                               .program = process.value("program", ""),
                               .arguments = texts(process["arguments"]),
                               .environment = texts(process["environment"]),
                               .serves = process.value("serves", false),
                               .may_die = process.value("may_die", false)});
    const std::string& program = order.processes.back().program;
    if (program != "trainer" && program != "ps_server") return strange;
  }
  return order;
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

absl::StatusOr<std::string> Nodes::WaitFor(const std::string& key, absl::Time deadline,
                                           const std::string& whom, const Interrupt& interrupt) {
  while (true) {
    PSRING_ASSIGN_OR_RETURN(const std::optional<std::string> value, meeting_->TryGet(key, whom));
    if (value.has_value()) return *value;
    PSRING_RETURN_IF_ERROR(interrupt.Check());
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("waited too long for ", whom));
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
  (void)absl::SimpleAtoi(code_and_why.first, &code);
  return absl::Status(static_cast<absl::StatusCode>(code), code_and_why.second);
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

absl::Status Nodes::HandOut(const std::vector<int>& place, LaunchSpec& spec) {
  std::vector<NodeOrder> orders(static_cast<size_t>(options_.nodes));
  std::vector<ChildSpec> own;
  for (size_t i = 0; i < spec.children.size(); ++i) {
    ChildSpec& child = spec.children[i];
    if (place[i] == 0) {
      own.push_back(std::move(child));
      continue;
    }
    NodeOrder::Process process{.name = child.name,
                               .program = fs::path(child.command.front()).filename().string(),
                               .environment = child.environment,
                               .serves = child.serves,
                               .may_die = child.may_die};
    for (size_t k = 1; k < child.command.size(); ++k) {
      // Records stay in a folder of that machine's until they are sent.
      if (!absl::StartsWith(child.command[k], "--record=")) process.arguments.push_back(child.command[k]);
    }
    orders[static_cast<size_t>(place[i])].processes.push_back(std::move(process));
  }
  spec.children = std::move(own);
  for (int node = 1; node < options_.nodes; ++node) {
    NodeOrder& order = orders[static_cast<size_t>(node)];
    order.what = spec.what;
    order.deadline_s = absl::ToDoubleSeconds(spec.deadline);
    PSRING_RETURN_IF_ERROR(meeting_->Set(Key("order", node), ToJson(order)));
  }
  spec.check = [this] { return Trouble(); };
  return absl::OkStatus();
}

absl::Status Nodes::Gather(const absl::Status& own, const std::string& folder, absl::Time deadline,
                           bool may_restart, const Interrupt& interrupt) {
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
    const std::string whom = absl::StrCat("node ", node, " (", host(node), ") to end");
    absl::StatusOr<std::optional<std::string>> names = std::optional<std::string>();
    while (verdict.ok() && !names->has_value()) {
      verdict = Trouble();
      if (verdict.ok()) names = meeting_->TryGet(Key("done", node), whom);
      if (!names.ok()) verdict = Lost(names.status());
      if (verdict.ok()) verdict = interrupt.Check();
      if (!verdict.ok() || names->has_value()) break;
      if (absl::Now() >= deadline)
        verdict = absl::DeadlineExceededError(absl::StrCat("waited too long for ", whom));
      absl::SleepFor(kLook);
    }
    if (!verdict.ok()) break;
    const absl::StatusOr<std::string> within = meeting_->Get(Key("within", node), whom);
    if (int64_t ns = 0; within.ok() && absl::SimpleAtoi(*within, &ns)) {
      clocks_within_ = std::max(clocks_within_, absl::Nanoseconds(ns));
    }
    for (absl::string_view name : absl::StrSplit(**names, '\n', absl::SkipEmpty())) {
      absl::StatusOr<std::string> text =
          meeting_->Get(absl::StrCat(Key("file", node), "/", name), absl::StrCat("node ", node, "'s ", name));
      verdict = text.ok() ? WriteFile(absl::StrCat(folder, "/", name), *text) : text.status();
      if (!verdict.ok()) break;
    }
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

absl::Status Nodes::Follow(const std::string& programs, const Interrupt& interrupt, Display& display) {
  const absl::Status status = FollowAll(programs, interrupt, display);
  // A node that leaves in order is not lost, so the others must be told.
  if (!status.ok()) {
    (void)meeting_->Set(absl::StrCat("ended/", options_.node), "");
    Report("failed", absl::AbortedError(absl::StrCat("node ", options_.node, " (", host(options_.node),
                                                     "): ", status.message())));
  }
  return status;
}

absl::Status Nodes::FollowAll(const std::string& programs, const Interrupt& interrupt, Display& display) {
  for (;; ++launch_) {
    PSRING_ASSIGN_OR_RETURN(
        const std::string text,
        WaitFor(Key("order", options_.node), absl::InfiniteFuture(), "node 0's next launch", interrupt));
    PSRING_ASSIGN_OR_RETURN(const NodeOrder order, NodeOrderFromJson(text));
    if (order.over) {
      if (order.failure.empty()) return absl::OkStatus();
      return absl::AbortedError(absl::StrCat("node 0 has ended: ", order.failure));
    }
    const absl::Status status = FollowOne(order, programs, interrupt, display);
    if (status.ok()) continue;
    const auto again = meeting_->TryGet(Key("again"), "node 0");
    if (!again.ok() || !again->has_value()) return status;
    display.Say(absl::StrCat("note:      ", status.message(), "; node 0 starts all of it again"));
  }
}

absl::Status Nodes::FollowOne(const NodeOrder& order, const std::string& programs, const Interrupt& interrupt,
                              Display& display) {
  PSRING_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Create());
  LaunchSpec spec{.what = order.what, .deadline = absl::Seconds(order.deadline_s)};
  for (const NodeOrder::Process& process : order.processes) {
    ChildSpec child{.name = process.name,
                    .command = {absl::StrCat(programs, "/", process.program)},
                    .environment = process.environment,
                    .serves = process.serves,
                    .may_die = process.may_die};
    child.command.insert(child.command.end(), process.arguments.begin(), process.arguments.end());
    child.command.push_back(absl::StrCat("--record=", folder.path()));
    spec.children.push_back(std::move(child));
  }
  display.Say(absl::StrCat("node ", options_.node, ":    ", order.what, ": ", order.processes.size(),
                           order.processes.size() == 1 ? " process" : " processes", " of it here"));
  spec.on_line = [](int, const std::string& line) { return ParseProgress(line).has_value(); };
  spec.check = [this] { return Trouble(); };
  ClockOffset before, after;
  if (own_clock_) {
    PSRING_ASSIGN_OR_RETURN(before, MeasureClock());
  }
  absl::Status own = RunChildren(spec, interrupt);
  if (absl::IsAborted(own) && !WasKilled(own)) {
    for (const absl::Time until = absl::Now() + kForTheCause; absl::Now() < until && Trouble().ok();) {
      absl::SleepFor(kLook);
    }
  }
  const absl::Status known = Trouble();  // node 0 has spoken, or a node is lost
  if (!known.ok()) return known;
  if (!own.ok()) {
    own = absl::Status(
        own.code(), absl::StrCat("on node ", options_.node, " (", host(options_.node), "): ", own.message()));
    if (absl::IsCancelled(own)) return own;  // this node ends, and nothing is launched again
    Report("failed", own);
    // Node 0 takes it from here, and all print one line.
    for (const absl::Time until = absl::Now() + kForTheVerdict; absl::Now() < until;) {
      if (const absl::Status verdict = Trouble(); !verdict.ok()) return verdict;
      PSRING_RETURN_IF_ERROR(interrupt.Check());
      absl::SleepFor(kLook);
    }
    return own;
  }
  if (own_clock_) {
    PSRING_ASSIGN_OR_RETURN(after, MeasureClock());
  }
  const ClockMap clock(before, after);
  PSRING_RETURN_IF_ERROR(meeting_->Set(Key("within", options_.node), absl::StrCat(clock.within())));
  std::string names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.path(), error)) {
    const std::string name = entry.path().filename().string();
    PSRING_ASSIGN_OR_RETURN(const std::string written, ReadFile(entry.path().string()));
    PSRING_ASSIGN_OR_RETURN(const std::string text, OnClock(clock, name, written));
    PSRING_RETURN_IF_ERROR(meeting_->Set(absl::StrCat(Key("file", options_.node), "/", name), text));
    absl::StrAppend(&names, name, "\n");
  }
  PSRING_RETURN_IF_ERROR(meeting_->Set(Key("done", options_.node), names));
  while (true) {
    PSRING_RETURN_IF_ERROR(Trouble());
    PSRING_ASSIGN_OR_RETURN(const std::optional<std::string> well, meeting_->TryGet(Key("well"), "node 0"));
    if (well.has_value()) return absl::OkStatus();
    PSRING_RETURN_IF_ERROR(interrupt.Check());
    absl::SleepFor(kLook);
  }
}

}  // namespace psring
