#include "common/base/own_process.h"

#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/text/translate.h"

namespace psring {

absl::StatusOr<std::string> OwnProgram() {
  if (const char* const started = std::getenv("PSRING_PROGRAM"); started != nullptr) return started;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Internal(Tr("cannot read /proc/self/exe: $0", Translation(error.message())));
  return self.string();
}

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  PSRING_ASSIGN_OR_RETURN(const std::string self, OwnProgram());
  const std::string path = (std::filesystem::path(self).parent_path() / name).string();
  if (access(path.c_str(), X_OK) == 0) return path;
  return NotFound(Tr("$0 is missing; build it: ./run build", path));
}

GetEnv ProcessEnvironment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

std::vector<int> AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // The call fails if there are more cores than a cpu_set_t counts.
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  const int most = known ? CPU_SETSIZE : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<int> cores;
  for (int core = 0; core < most; ++core) {
    if (!known || CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

bool IgnoresSignal(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void KeepFreedMemory() {
  constexpr int kLarge = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLarge);
  mallopt(M_TRIM_THRESHOLD, kLarge);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace psring
