#include "common/rendezvous/launched_as.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {
namespace {

constexpr int kMaxInt = std::numeric_limits<int>::max();

// A launcher's variables for rank, world size, local rank and local world size. In order of precedence.
struct Names {
  const char *launcher, *rank, *size, *local_rank, *local_size;
};
constexpr Names kNames[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    // Of a step only: a batch script has a number, too, and is not a rank.
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    // MPICH's Hydra and Intel MPI set all four; other launchers, and Slurm's PMI plugins, the first two.
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

std::string Variable(const GetEnv& get_env, const char* name) {
  return name == nullptr ? "" : get_env(name).value_or("");
}

const Names &kTorchrun = kNames[0], &kSrun = kNames[1];
bool IsTorchrun(const Names& names) { return &names == &kTorchrun; }
bool IsSrun(const Names& names) { return &names == &kSrun; }

bool HasBoth(const Names& names, const GetEnv& get_env) {
  return !Variable(get_env, names.rank).empty() && !Variable(get_env, names.size).empty();
}

// What a set says: "PMI_RANK 1 of PMI_SIZE 2".
std::string VariablesText(const Names& names, const GetEnv& get_env) {
  return absl::StrCat(names.rank, " ", Variable(get_env, names.rank), " of ", names.size, " ",
                      Variable(get_env, names.size));
}

// Whether `step` runs one process on each node, which started `inner`'s larger number of processes: Open
// MPI's and MPICH's daemons, or mpirun in an interactive step.
bool StartsOthers(const Names& inner, const GetEnv& get_env) {
  const std::string step_size = Variable(get_env, "SLURM_STEP_NUM_TASKS");
  int processes = 0, tasks = 0;
  return absl::SimpleAtoi(Variable(get_env, inner.size), &processes) && absl::SimpleAtoi(step_size, &tasks) &&
         tasks < processes && (tasks == 1 || Variable(get_env, "SLURM_STEP_NUM_NODES") == step_size);
}

bool Agree(const Names& a, const Names& b, const GetEnv& get_env) {
  return Variable(get_env, a.rank) == Variable(get_env, b.rank) &&
         Variable(get_env, a.size) == Variable(get_env, b.size);
}

// The set that applies, or null. If others are complete, a set that lacks its rank or size does not, except
// torchrun's, which users write by hand. InvalidArgument: two sets contradict each other.
absl::StatusOr<const Names*> Find(const GetEnv& get_env) {
  const Names *found = nullptr, *incomplete = nullptr;
  for (const Names& names : kNames) {
    if (!HasBoth(names, get_env)) {
      const bool begun = !Variable(get_env, names.size).empty() ||
                         (!IsSrun(names) && !Variable(get_env, names.rank).empty());
      if (begun && IsTorchrun(names)) return &names;
      if (begun && incomplete == nullptr) incomplete = &names;
    } else if (IsTorchrun(names)) {
      return &names;  // torchrun may be a process of another launcher
    } else if (found == nullptr || (IsSrun(*found) && StartsOthers(names, get_env))) {
      found = &names;
    } else if (!Agree(names, *found, get_env) && !Agree(names, kSrun, get_env)) {
      return InvalidArgument("two launchers contradict each other: ", VariablesText(*found, get_env), " (",
                             found->launcher, "), ", VariablesText(names, get_env), " (", names.launcher,
                             "); unset the variables of the one that did not start this process");
    }
  }
  return found != nullptr ? found : incomplete;
}

absl::StatusOr<int> Needed(const std::string& scheme, const Names& names, const char* name, int least,
                           const GetEnv& get_env) {
  const std::string text = Variable(get_env, name);
  if (!text.empty()) return NumberOf(name, text, least, kMaxInt);
  return InvalidArgument(
      scheme, " needs the variable ", name, ", which is not set; ",
      IsTorchrun(names) ? "psring and torchrun set it" : absl::StrCat(names.launcher, " sets it"));
}

// The numbers of concurrent Slurm jobs rarely differ by a multiple of kPorts.
constexpr int kPorts = 20'000, kFirstPort = 12'000;

void ReadSlurm(const GetEnv& get_env, LaunchedAs& as) {
  const std::string job = Variable(get_env, "SLURM_JOB_ID"), step = Variable(get_env, "SLURM_STEP_ID");
  as.job = absl::StrCat("slurm-", job, ".", step);
  as.master_host = FirstHost(Variable(get_env, "SLURM_STEP_NODELIST"));
  int64_t job_number = 0, step_number = 0;
  if (absl::SimpleAtoi(job, &job_number) && absl::SimpleAtoi(step, &step_number) && job_number >= 0) {
    as.master_port = kFirstPort + static_cast<int>((job_number * 7 + step_number % kPorts) % kPorts);
  }
  int node = 0;
  if (absl::SimpleAtoi(Variable(get_env, "SLURM_NODEID"), &node)) {
    as.local_world_size = TasksOnNode(Variable(get_env, "SLURM_STEP_TASKS_PER_NODE"), node);
  }
}

// The nearest ancestor that was started without `variable`: the launcher, also if it starts ranks by a script
// or `timeout`.
pid_t AncestorWithout(const std::string& variable) {
  constexpr int kMaxAncestors = 64;
  pid_t pid = ::getppid();
  for (int i = 0; i < kMaxAncestors; ++i) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/environ"), std::ios::binary);
    const std::string environment((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!absl::StrContains('\0' + environment, '\0' + variable + "=")) break;
    // "PID (NAME) STATE PARENT ...", where the name may contain anything.
    std::string stat;
    std::getline(std::ifstream(absl::StrCat("/proc/", pid, "/stat")), stat, '\0');
    const std::vector<std::string> fields = absl::StrSplit(stat.substr(stat.rfind(')') + 1), ' ');
    int parent = 0;
    if (fields.size() < 3 || !absl::SimpleAtoi(fields[2], &parent) || parent <= 0) break;
    pid = parent;
  }
  return pid;
}

}  // namespace

GetEnv InPlaceOf(GetEnv environment, std::string rank, std::string world_size) {
  return [environment = std::move(environment), rank = std::move(rank),
          world_size = std::move(world_size)](const char* name) -> std::optional<std::string> {
    if (std::string_view(name) == "RANK" && !rank.empty()) return rank;
    if (std::string_view(name) == "WORLD_SIZE" && !world_size.empty()) return world_size;
    return environment(name);
  };
}

absl::StatusOr<int> NumberOf(const std::string& name, const std::string& text, int least, int most) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < least || value > most) {
    return InvalidArgument(
        name, " is '", text, "'; it must be a whole number ",
        most == kMaxInt ? absl::StrCat("of at least ", least) : absl::StrCat("from ", least, " to ", most));
  }
  return value;
}

bool IsStartedAsARank(const GetEnv& get_env) {
  const absl::StatusOr<const Names*> found = Find(get_env);
  return !found.ok() || *found != nullptr;
}

absl::StatusOr<LaunchedAs> ReadLauncher(const std::string& scheme, const GetEnv& get_env) {
  PSRING_ASSIGN_OR_RETURN(const Names* const found, Find(get_env));
  const Names& names = found != nullptr ? *found : kTorchrun;
  LaunchedAs as{.launcher = names.launcher};
  PSRING_ASSIGN_OR_RETURN(as.world_size, Needed(scheme, names, names.size, 1, get_env));
  PSRING_ASSIGN_OR_RETURN(as.rank, Needed(scheme, names, names.rank, 0, get_env));
  if (as.rank >= as.world_size) {
    return InvalidArgument(names.rank, " ", as.rank, " is not below ", names.size, " ", as.world_size,
                           "; ranks count from 0");
  }
  if (const std::string text = Variable(get_env, names.local_rank); !text.empty()) {
    PSRING_ASSIGN_OR_RETURN(as.local_rank, NumberOf(names.local_rank, text, 0, kMaxInt));
  }
  if (const std::string text = Variable(get_env, names.local_size); !text.empty()) {
    PSRING_ASSIGN_OR_RETURN(as.local_world_size, NumberOf(names.local_size, text, 1, kMaxInt));
  }
  if (as.launcher == "mpirun") {
    // Open MPI 4 and 5, or their common PMIx.
    for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
      if (as.job.empty()) as.job = Variable(get_env, name);
    }
    if (!as.job.empty()) as.job = absl::StrCat("mpirun-", as.job);
  }
  // On one host all ranks descend from one process.
  if (as.job.empty() && (as.launcher == "mpirun" || as.launcher == "mpiexec")) {
    as.job = absl::StrCat(as.launcher, "-child-of-", AncestorWithout(names.rank));
  }
  // A launcher that sets no more than this gives no host, so the ranks can only be on one.
  if (as.launcher == "mpiexec" && as.local_world_size == 0 && Variable(get_env, "MASTER_ADDR").empty()) {
    as.local_world_size = as.world_size;
    as.local_rank = as.rank;
  }
  if (as.launcher == "srun") ReadSlurm(get_env, as);
  return as;
}

void ForgetLauncher() {
  for (const Names& names : kNames) {
    for (const char* name : {names.rank, names.size, names.local_rank, names.local_size}) {
      if (name != nullptr) ::unsetenv(name);
    }
  }
}

std::string FirstHost(const std::string& nodelist) {
  std::string host;
  for (size_t i = 0; i < nodelist.size() && nodelist[i] != ','; ++i) {
    if (nodelist[i] != '[') {
      host += nodelist[i];
      continue;
    }
    const size_t end = nodelist.find(']', i);
    if (end == std::string::npos) return "";
    const std::string ranges = nodelist.substr(i + 1, end - i - 1);
    host += ranges.substr(0, ranges.find_first_of(",-"));
    i = end;
  }
  return host;
}

int TasksOnNode(const std::string& tasks_per_node, int index) {
  for (absl::string_view part : absl::StrSplit(tasks_per_node, ',')) {
    const std::vector<std::string> fields = absl::StrSplit(part, absl::ByAnyChar("(x)"), absl::SkipEmpty());
    int tasks = 0, nodes = 1;
    if (fields.empty() || !absl::SimpleAtoi(fields[0], &tasks)) return 0;
    if (fields.size() > 1 && !absl::SimpleAtoi(fields[1], &nodes)) return 0;
    if (index < nodes) return tasks;
    index -= nodes;
  }
  return 0;
}

}  // namespace psring
