#include "tests/faults/job.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/measure/records.h"
#include "tests/eventually.h"
#include "tests/experiments/slurp.h"
#include "tests/experiments/training_processes.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// Quotes nothing: no argument of these jobs has spaces.
std::vector<std::string> Limited(const JobSetup& setup, const std::string& program,
                                 const std::string& arguments) {
  std::vector<std::string> command = Command(program, arguments);
  if (setup.before.empty()) return command;
  std::vector<std::string> limited = setup.shell;
  limited.insert(limited.end(), {"-c", absl::StrCat(setup.before, " && exec \"$0\" \"$@\"")});
  limited.insert(limited.end(), command.begin(), command.end());
  return limited;
}

std::set<std::string> LinksOf(pid_t pid) {
  std::set<std::string> links;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    links.insert(fs::read_symlink(entry.path(), error).string());
  }
  return links;
}

}  // namespace

const std::vector<JobKind>& JobKinds() {
  static const auto* const kinds = new std::vector<JobKind>{
      {.name = "ring-tcp",
       .flags = "--strategy ring --transport tcp",
       .has_server = false,
       .same_bits = true},
      {.name = "ring-shm",
       .flags = "--strategy ring --transport shm",
       .has_server = false,
       .same_bits = true},
      {.name = "ps-sync", .flags = "--strategy ps-sync --deterministic", .same_bits = true},
      {.name = "ps-backup", .flags = "--strategy ps-backup:1"},
      {.name = "ps-ssp", .flags = "--strategy ps-ssp:2", .asynchronous = true},
      {.name = "ps-async", .flags = "--strategy ps-async", .asynchronous = true},
      {.name = "hybrid", .flags = "--strategy hybrid", .tables = true},
      {.name = "ps-sync-stream",
       .flags = "--strategy ps-sync --deterministic --server_wire stream --transport tcp",
       .same_bits = true}};
  return *kinds;
}

std::set<std::string> FaultJob::AbandonedMemory() {
  std::set<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev/shm", error)) {
    const std::vector<std::string> parts = absl::StrSplit(entry.path().filename().string(), '-');
    pid_t pid = 0;
    if (parts.size() != 3 || parts[0] != "psring" || !absl::SimpleAtoi(parts[1], &pid)) continue;
    if (kill(pid, 0) != 0) paths.insert(entry.path());
  }
  return paths;
}

FaultJob::FaultJob(const JobSetup& asked, const std::string& folder, int port)
    : setup_(asked), folder_(folder), abandoned_before_(AbandonedMemory()) {
  JobSetup setup = asked;
  absl::StrReplaceAll({{kCheckpoints, checkpoints()}}, &setup.before);
  fs::create_directories(temporary());
  fs::create_directories(checkpoints());
  const std::string flags =
      absl::StrCat(setup.kind.flags,
                   setup.kind.tables ? " --model dlrm-small --width 8 --data zipf:300:1 --transport tcp"
                                     : " --model mlp-small --data synthetic",
                   " --batch 16 --no_eval --jitter_ms 3 --steps ", kFaultSteps, " --timeout ",
                   setup.timeout_s, " --checkpoint_every 5 --checkpoint_dir ", checkpoints());
  const std::string place = absl::StrCat("TMPDIR=", temporary());
  const std::string train =
      absl::StrCat("train ", setup.restarts ? " --max_restarts 3 " : "",
                   setup.dedicated ? "--server_placement dedicated --servers 1 " : "", flags);
  const std::string out = absl::StrCat(" --out ", run());
  for (int node = 0; node < setup.nodes && setup.nodes > 1; ++node) {
    started_.push_back(std::make_unique<Started>(
        Limited(setup, PSRING_BINARY,
                absl::StrCat(train, " --nproc_per_node ", setup.per_node, " --nnodes ", setup.nodes,
                             " --node_rank ", node, " --master_addr 127.0.0.1 --bind 127.0.0.1",
                             " --master_port ", port, node == 0 ? out : "")),
        std::vector<std::string>{place}));
  }
  if (setup.nodes > 1) return;
  if (!setup.by_hand) {
    started_.push_back(
        std::make_unique<Started>(Limited(setup, PSRING_BINARY,
                                          absl::StrCat(train, " --workers ", kFaultWorkers, " --link ",
                                                       setup.on_links ? "50mbit" : "none", out)),
                                  std::vector<std::string>{place}));
    return;
  }
  for (int rank = 0; rank < kFaultWorkers; ++rank) {
    started_.push_back(std::make_unique<Started>(
        Limited(setup, PSRING_TRAINER,
                absl::StrCat("--progress none --rendezvous file://", folder_, "/meet --record=", run(),
                             "/records ", flags)),
        std::vector<std::string>{absl::StrCat("RANK=", rank), absl::StrCat("WORLD_SIZE=", kFaultWorkers),
                                 absl::StrCat("LOCAL_RANK=", rank),
                                 absl::StrCat("LOCAL_WORLD_SIZE=", kFaultWorkers), place}));
  }
}

bool FaultJob::AwaitEnd(absl::Duration timeout) {
  const auto end = [&](bool all) {
    return Eventually(
        [&] {
          bool running = false;
          for (const auto& one : started_) {
            running |= one->Look() && (all || !ignored_.contains(one->pid()));
          }
          return !running;
        },
        timeout);
  };
  const bool ended = end(/*all=*/false);
  // A rank that was stopped ends only now.
  for (const auto& one : started_) {
    if (ignored_.contains(one->pid()) && one->Look()) one->Signal(SIGKILL);
  }
  return end(/*all=*/true) && ended;
}

std::vector<std::pair<std::string, pid_t>> FaultJob::Processes() const {
  std::vector<std::pair<std::string, pid_t>> processes = TrainingProcesses(run());
  // Those of other nodes have their records in a temporary folder; so has the step that is measured first, on
  // one node.
  if (setup_.nodes == 1) return processes;
  for (auto& process : TrainingProcesses(temporary())) processes.push_back(std::move(process));
  return processes;
}

std::optional<pid_t> FaultJob::Find(const std::string& role) const {
  for (const auto& [name, pid] : Processes()) {
    if (name == role) return pid;
  }
  return std::nullopt;
}

std::vector<std::string> FaultJob::LastLines() const {
  std::vector<std::string> lines;
  for (const auto& one : started_) {
    if (one->Succeeded() || ignored_.contains(one->pid())) continue;
    const absl::string_view errors = absl::StripAsciiWhitespace(one->errors());
    // psring's error quotes the last lines of the process that it names.
    const size_t last = errors.rfind(setup_.by_hand ? "\n" : "\npsring ");
    lines.emplace_back(last == absl::string_view::npos ? errors : errors.substr(last + 1));
  }
  return lines;
}

bool FaultJob::Succeeded() const {
  return std::all_of(started_.begin(), started_.end(),
                     [this](const auto& one) { return one->Succeeded() || ignored_.contains(one->pid()); });
}

std::string FaultJob::Story() const {
  std::string story;
  for (const auto& one : started_) absl::StrAppend(&story, one->Story(), "\n");
  return story;
}

std::string FaultJob::Weights() const {
  std::set<std::string> hashes;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(run(), error)) {
    if (!entry.path().filename().string().starts_with("result-rank")) continue;
    const auto result = RankResultFromJson(Slurp(entry.path()));
    hashes.insert(result.ok() ? result->weights_hash : std::string(result.status().message()));
  }
  return hashes.size() == 1 ? *hashes.begin() : absl::StrCat(hashes.size(), " different hashes");
}

std::string FaultJob::Remains(bool launcher_died) const {
  std::vector<std::string> left;
  for (const std::string& records : {run(), temporary()}) {
    for (const auto& [role, pid] : TrainingProcesses(records))
      left.push_back(absl::StrCat(role, " (", pid, ")"));
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(temporary(), error)) {
    if (!launcher_died) left.push_back(entry.path());
  }
  for (const std::string& path : AbandonedMemory()) {
    if (!abandoned_before_.contains(path)) left.push_back(path);
  }
  std::string text;
  for (const std::string& one : left) absl::StrAppend(&text, " ", one);
  return text;
}

int SocketsOf(pid_t pid) {
  const std::set<std::string> links = LinksOf(pid);
  return static_cast<int>(std::count_if(
      links.begin(), links.end(), [](const std::string& link) { return absl::StartsWith(link, "socket:"); }));
}

std::vector<int> PortsOf(pid_t pid) {
  const std::set<std::string> links = LinksOf(pid);
  std::istringstream table(Slurp(absl::StrCat("/proc/", pid, "/net/tcp")));
  std::vector<int> ports;
  for (std::string line; std::getline(table, line);) {
    // sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    constexpr char kListening[] = "0A";
    if (fields.size() < 10 || fields[3] != kListening) continue;
    if (!links.contains(absl::StrCat("socket:[", fields[9], "]"))) continue;
    int port = 0;
    if (absl::SimpleHexAtoi(fields[1].substr(fields[1].find(':') + 1), &port)) ports.push_back(port);
  }
  return ports;
}

}  // namespace psring
