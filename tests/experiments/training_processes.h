// Observes a training that psring has started: its processes, by their arguments and environment, and its
// progress, by its checkpoints.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/io/checkpoint_folder.h"
#include "tests/experiments/slurp.h"

namespace psring {

// Processes with records below `out`, by role: "rank 1", "server".
inline std::vector<std::pair<std::string, pid_t>> TrainingProcesses(const std::string& out) {
  const std::string end_of_variable(1, '\0');
  std::vector<std::pair<std::string, pid_t>> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::string command = Slurp(entry.path() / "cmdline");
    if (!absl::StrContains(command, absl::StrCat("--record=", out, "/"))) continue;
    const std::string environment = absl::StrCat(end_of_variable, Slurp(entry.path() / "environ"));
    const size_t rank = environment.find(absl::StrCat(end_of_variable, "RANK="));
    const bool serves = absl::StrContains(command.substr(0, command.find('\0')), "ps_server");
    if (!serves && rank == std::string::npos) continue;  // before exec, or ended
    found.emplace_back(serves ? "server" : absl::StrCat("rank ", environment.substr(rank + 6, 1)), pid);
  }
  return found;
}

// `role`: of TrainingProcesses.
inline void SignalProcess(const std::string& out, const std::string& role, int signal) {
  for (const auto& [other, pid] : TrainingProcesses(out)) {
    if (other == role) kill(pid, signal);
  }
}

// Whether there is a checkpoint of `step` or a later one.
inline bool HasCheckpoint(const std::string& folder, int64_t step) {
  const std::vector<CheckpointPath> there = ListCheckpoints(folder);
  return !there.empty() && there.front().step >= step;
}

}  // namespace psring
