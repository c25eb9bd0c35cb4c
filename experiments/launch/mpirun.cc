#include "experiments/launch/mpirun.h"

#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/text/translate.h"
#include "experiments/launch/temporary_folder.h"

namespace psring {
namespace {

constexpr char kOpenMpi[] = "Open MPI", kMpich[] = "MPICH";
// A rank's file (Open MPI's btl_vader_segment_size), and a reserve.
constexpr uint64_t kVaderBytes = (4 << 20) + (1 << 18);
constexpr absl::Duration kVersionDeadline = absl::Seconds(10);

const char* InstallOf(const std::string& family) {
  return family == kMpich ? "install mpich" : "install libopenmpi-dev and openmpi-bin, then ./run build";
}

absl::StatusOr<std::string> FindInPath(const std::string& program) {
  const char* path = getenv("PATH");
  for (absl::string_view folder : absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
    const std::string candidate = absl::StrCat(folder.empty() ? "." : folder, "/", program);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::NotFoundError(Tr("there is no $0 on this machine's PATH", program));
}

// The output of `mpirun --version`, which may hang if MPI needs a network; empty: it failed.
absl::StatusOr<std::string> VersionText(const std::string& mpirun) {
  absl::StatusOr<std::string> text = RunForOutput({mpirun, "--version"}, kVersionDeadline, nullptr);
  if (absl::IsAborted(text.status()) || absl::IsInvalidArgument(text.status())) return std::string();
  return text;
}

std::string FamilyOf(const std::string& version) {
  if (absl::StrContains(version, "Open MPI") || absl::StrContains(version, "OpenRTE")) return kOpenMpi;
  return absl::StrContains(version, "HYDRA") ? kMpich : "";
}

struct FoundMpirun {
  std::string path, version, family;
};

// The first mpirun of the family; the error names those of other families.
absl::StatusOr<FoundMpirun> FindOf(const std::string& family) {
  std::vector<std::string> names = {"mpirun"};
  if (family == kOpenMpi) names.push_back("mpirun.openmpi");
  if (family == kMpich) names.insert(names.end(), {"mpiexec.mpich", "mpiexec.hydra"});
  std::string others;
  for (const std::string& name : names) {
    const absl::StatusOr<std::string> path = FindInPath(name);
    if (!path.ok()) continue;
    PSRING_ASSIGN_OR_RETURN(const std::string version, VersionText(*path));
    FoundMpirun found = {.path = *path, .version = version, .family = FamilyOf(version)};
    if (!found.family.empty() && (family.empty() || found.family == family)) return found;
    absl::StrAppend(
        &others, others.empty() ? "" : ", ", *path, " is ",
        found.family.empty() ? "neither Open MPI's nor MPICH's" : absl::StrCat(found.family, "'s"));
  }
  const std::string whose =
      family.empty() ? "" : absl::StrCat(" of ", family, ", which this build was made with");
  if (others.empty()) {
    return absl::NotFoundError(
        absl::StrCat("there is no mpirun", whose, " on this machine's PATH; ", InstallOf(family)));
  }
  return absl::UnimplementedError(
      absl::StrCat(others, family.empty() ? "" : absl::StrCat(", and there is no mpirun", whose), "; ",
                   InstallOf(family)));
}

// Open MPI's own error does not state the reason. Its other users of the file system are counted by the
// kernel.
absl::Status CheckSharedMemory(int ranks) {
  struct statvfs info = {};
  if (statvfs("/dev/shm", &info) != 0) {
    return absl::FailedPreconditionError(
        "Open MPI needs /dev/shm, which is not mounted; run: mount -t tmpfs tmpfs /dev/shm");
  }
  const uint64_t needed = kVaderBytes * static_cast<uint64_t>(ranks), free = info.f_bavail * info.f_frsize;
  if (free >= needed) return absl::OkStatus();
  return FailedPrecondition("Open MPI needs ", needed >> 20, " MiB of /dev/shm, 4 MiB for each rank, and ",
                            free >> 20,
                            " MiB are free; use --transport tcp, or run: mount -o remount,size=2G /dev/shm");
}

// `--mca` settings take precedence over the machine's configuration, and ranks inherit them.
absl::StatusOr<MpirunCommand> OpenMpiCommand(const std::string& mpirun, const MpirunOptions& options) {
  MpirunCommand command{
      .prefix = {mpirun, "-n", absl::StrCat(options.ranks), "--oversubscribe", "--bind-to", "none"}};
  const auto set = [&](const char* name, const char* value) {
    command.prefix.insert(command.prefix.end(), {"--mca", name, value});
  };
  set("btl_base_warn_component_unused", "0");
  if (options.transport != "auto") {
    set("pml", "ob1");
    set("btl", options.transport == "shm" ? "self,vader" : "self,tcp");
    if (options.transport == "tcp") set("btl_tcp_if_include", "lo");
  }
  if (options.transport != "tcp") {
    PSRING_RETURN_IF_ERROR(CheckSharedMemory(options.ranks));
    PSRING_ASSIGN_OR_RETURN(TemporaryFolder made,
                            TemporaryFolder::Create("/dev/shm", "Open MPI needs it; use --transport tcp"));
    const auto folder = std::make_shared<TemporaryFolder>(std::move(made));
    set("btl_vader_backing_directory", folder->path().c_str());
    command.folder = folder;
  }
  // Must be set before MPI_Init so that a process can choose a communicator's algorithm.
  command.environment.push_back("OMPI_MCA_coll_tuned_use_dynamic_rules=1");
  if (geteuid() == 0) {
    command.environment.push_back("OMPI_ALLOW_RUN_AS_ROOT=1");
    command.environment.push_back("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1");
  }
  return command;
}

// MPICH's network is selected when MPICH is built. Ranks of one host use shared memory unless
// MPIR_CVAR_NOLOCAL is set; the network's own settings then select TCP over the loopback.
absl::StatusOr<MpirunCommand> MpichCommand(const std::string& mpirun, const std::string& version,
                                           const MpirunOptions& options) {
  MpirunCommand command{.prefix = {mpirun, "-n", absl::StrCat(options.ranks)}};
  if (options.transport == "auto") return command;
  const auto built_for = [&](const char* device) {
    return absl::StrContains(version, absl::StrCat("--with-device=", device));
  };
  const bool shm = options.transport == "shm";
  if (built_for("ch4:ucx")) {
    command.environment =
        shm ? std::vector<std::string>{"UCX_TLS=shm,self"}
            : std::vector<std::string>{"MPIR_CVAR_NOLOCAL=1", "UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo"};
  } else if (built_for("ch4:ofi")) {
    command.environment =
        shm ? std::vector<std::string>{"FI_PROVIDER=shm"}
            : std::vector<std::string>{"MPIR_CVAR_NOLOCAL=1", "FI_PROVIDER=tcp", "FI_TCP_IFACE=lo"};
  } else if (built_for("ch3") && !shm) {
    command.environment = {"MPIR_CVAR_NOLOCAL=1", "MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE=lo"};
  } else if (!built_for("ch3")) {
    return absl::UnimplementedError(
        absl::StrCat(mpirun, " is an MPICH that does not name its network, so psring cannot select ",
                     options.transport, "; use --transport auto, or Open MPI"));
  }
  return command;
}

}  // namespace

absl::StatusOr<MpirunCommand> FindMpirun(const MpirunOptions& options) {
  if (options.ranks < 1) return InvalidArgument("mpirun: ", options.ranks, " ranks: at least 1");
  const std::vector<std::string> transports = {"auto", "shm", "tcp"};
  if (std::ranges::find(transports, options.transport) == transports.end()) {
    return InvalidArgument("mpi has no transport '", options.transport, "': one of ",
                           absl::StrJoin(transports, ", "));
  }
  PSRING_ASSIGN_OR_RETURN(const FoundMpirun found, FindOf(options.family));
  absl::StatusOr<MpirunCommand> command = found.family == kMpich
                                              ? MpichCommand(found.path, found.version, options)
                                              : OpenMpiCommand(found.path, options);
  // Ranks report this name, because MPIs name their transports differently.
  if (command.ok()) command->environment.push_back("PSRING_MPI_TRANSPORT=" + options.transport);
  return command;
}

absl::StatusOr<ChildSpec> MpirunProcess(const MpirunOptions& options, const std::vector<std::string>& command,
                                        const std::vector<std::string>& environment) {
  PSRING_ASSIGN_OR_RETURN(const MpirunCommand mpirun, FindMpirun(options));
  ChildSpec child{.name = "mpirun",
                  .command = mpirun.prefix,
                  .environment = environment,
                  .log_path = "",
                  .keeps = mpirun.folder};
  child.command.insert(child.command.end(), command.begin(), command.end());
  child.environment.insert(child.environment.end(), mpirun.environment.begin(), mpirun.environment.end());
  child.environment.insert(child.environment.end(), {"RANK=", "WORLD_SIZE=", "LOCAL_RANK="});
  return child;
}

absl::StatusOr<std::string> DescribeMpirun(const std::string& family) {
  PSRING_ASSIGN_OR_RETURN(const FoundMpirun found, FindOf(family));
  const std::string& mpirun = found.path;
  const bool hydra = found.family == kMpich;
  for (absl::string_view line : absl::StrSplit(found.version, '\n')) {
    const size_t bracket = line.find("(Open MPI) ");
    if (bracket != line.npos) return absl::StrCat("Open MPI ", line.substr(bracket + 11), ", ", mpirun);
    const size_t number = line.find("Version:");
    if (hydra && number != line.npos) {
      return absl::StrCat("MPICH ", absl::StripAsciiWhitespace(line.substr(number + 8)), ", ", mpirun);
    }
  }
  return mpirun;
}

bool IsMpirunBoilerplate(const std::string& line) {
  static const char* const kBegins[] = {"-----",
                                        "Primary job  terminated",
                                        "a non-zero exit code. Per user-direction",
                                        "mpirun detected that one or more processes exited",
                                        "the job to be terminated. The first process",
                                        "  Process name:",
                                        "  Exit code:",
                                        "MPI_ABORT was invoked",
                                        "with errorcode",
                                        "NOTE: invoking MPI_ABORT",
                                        "You may or may not see output",
                                        "exactly when Open MPI kills them"};
  if (line.empty()) return true;
  return std::any_of(std::begin(kBegins), std::end(kBegins),
                     [&](const char* begin) { return absl::StartsWith(line, begin); });
}

}  // namespace psring
