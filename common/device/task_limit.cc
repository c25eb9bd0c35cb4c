#include "common/device/task_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/errors.h"
#include "common/device/control_groups.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr char kUserLimit[] = "ulimit -u";
constexpr int64_t kPlenty = 1 << 14;  // more than a job has

// The words after "KEY:" in a /proc/PID/status.
std::vector<std::string> StatusField(const std::string& path, const std::string& key) {
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) {
    if (!absl::StartsWith(line, absl::StrCat(key, ":"))) continue;
    return absl::StrSplit(line.substr(key.size() + 1), absl::ByAnyChar(" \t"), absl::SkipEmpty());
  }
  return {};
}

// The limit of a user does not hold for the first user namespace's root, nor with CAP_SYS_ADMIN or
// CAP_SYS_RESOURCE in it.
bool IsExempt(const std::string& root) {
  constexpr uint64_t kEitherCapability = uint64_t{1} << 21 | uint64_t{1} << 24;
  std::string map;
  std::getline(std::ifstream(absl::StrCat(root, "/proc/self/uid_map")), map);
  const std::vector<std::string> first = absl::StrSplit(map, ' ', absl::SkipEmpty());
  if (first != std::vector<std::string>{"0", "0", "4294967295"}) return false;
  const std::string status = absl::StrCat(root, "/proc/self/status");
  const std::vector<std::string> user = StatusField(status, "Uid"), granted = StatusField(status, "CapEff");
  uint64_t bits = 0;
  if (!granted.empty() && absl::SimpleHexAtoi(granted[0], &bits) && (bits & kEitherCapability) != 0)
    return true;
  return !user.empty() && user[0] == "0";
}

// The tasks of `user` that are visible in /proc.
int64_t TasksOfUser(const std::string& user, const std::string& root) {
  int64_t tasks = 0;
  std::error_code error;
  for (fs::directory_iterator entry(absl::StrCat(root, "/proc"), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!std::all_of(name.begin(), name.end(), absl::ascii_isdigit)) continue;
    const std::string status = absl::StrCat(entry->path().string(), "/status");
    const std::vector<std::string> of = StatusField(status, "Uid"), threads = StatusField(status, "Threads");
    int64_t count = 0;
    if (!of.empty() && of[0] == user && !threads.empty() && absl::SimpleAtoi(threads[0], &count))
      tasks += count;
  }
  return tasks;
}

// From "LOAD LOAD LOAD RUNNING/ALL LAST" (proc(5)).
std::optional<int64_t> TasksOfAll(const std::string& root) {
  std::string text;
  std::getline(std::ifstream(absl::StrCat(root, "/proc/loadavg")), text);
  const std::vector<std::string> words = absl::StrSplit(text, absl::ByAnyChar(" /"));
  int64_t all = 0;
  if (words.size() < 5 || !absl::SimpleAtoi(words[4], &all)) return std::nullopt;
  return all;
}

std::optional<TaskLimit> LimitOfUser(const std::string& root) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NPROC, &limit) != 0) return std::nullopt;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NPROC, &limit);
  if (limit.rlim_cur == RLIM_INFINITY || IsExempt(root)) return std::nullopt;
  const auto most = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
  // Reading the status of thousands of processes takes long, and is only needed near the limit.
  const std::optional<int64_t> all = TasksOfAll(root);
  const bool far = all.has_value() && most - *all >= kPlenty;
  const int64_t used = far ? *all : TasksOfUser(absl::StrCat(getuid()), root);
  return TaskLimit{.most = most, .left = most - std::min(most, used), .name = kUserLimit};
}

// Measured on 2 cores, for which gRPC starts 8; it starts more threads on more cores.
int64_t GrpcTasks() { return std::clamp<int64_t>(sysconf(_SC_NPROCESSORS_CONF), 2, 32) + 6; }

std::string Remedy(const TaskLimit& limit, int64_t needed) {
  if (limit.name == kUserLimit) return absl::StrCat("run: ulimit -u ", needed);
  return absl::StrCat("raise it to ", needed,
                      " (docker run --pids-limit, TasksMax of systemd, podPidsLimit of Kubernetes)");
}

}  // namespace

std::optional<TaskLimit> LowestTaskLimit(const std::string& root) {
  std::optional<TaskLimit> lowest = LimitOfUser(root);
  for (const ControlGroup& group : ControlGroups("pids", root)) {
    const std::string file = absl::StrCat(group.folder, "/pids.max");
    const std::optional<uint64_t> limit = NumberIn(file), used = NumberIn(group.folder + "/pids.current");
    if (!limit.has_value() || !used.has_value()) continue;
    const auto most = static_cast<int64_t>(*limit),
               left = most - static_cast<int64_t>(std::min(*limit, *used));
    if (!lowest.has_value() || left < lowest->left) lowest = {.most = most, .left = left, .name = file};
  }
  return lowest;
}

absl::Status AllowTasks(int64_t needed, const std::string& whose, const std::string& root) {
  ExitIfAThreadCannotStart();
  const std::optional<TaskLimit> limit = LowestTaskLimit(root);
  if (!limit.has_value() || limit->left >= needed) return absl::OkStatus();
  return FailedPrecondition(limit->left, " more processes and threads may start (", limit->name, " is ",
                            limit->most, "), and about ", needed, " are needed for ", whose, "; ",
                            Remedy(*limit, limit->most - limit->left + needed));
}

std::string TaskLimitText(int error) {
  if (error != EAGAIN) return "";
  const std::optional<TaskLimit> limit = LowestTaskLimit();
  if (!limit.has_value()) return "; the system has no more, or no memory for its stack (ulimit -v)";
  return absl::StrCat("; ", limit->name, " is ", limit->most, ": ", Remedy(*limit, 2 * limit->most));
}

int64_t RankTasks(int ranks, int servers) {
  constexpr int64_t kOfARank = 3;  // it computes, connects and accepts
  return 1 + GrpcTasks() + ranks * (kOfARank + std::max(0, servers - 1));
}

int64_t ServerTasks() { return 6 + GrpcTasks(); }

int64_t LauncherTasks() { return 6 + GrpcTasks(); }

}  // namespace psring
