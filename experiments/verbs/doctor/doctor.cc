#include "experiments/verbs/doctor/doctor.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/cli/command_line.h"
#include "common/cli/wrap.h"
#include "common/cuda_ops/cuda_ops.h"
#include "common/text/peer_text.h"
#include "common/text/translate.h"
#include "common/text/units.h"
#include "experiments/engine/programs.h"
#include "experiments/launch/launcher.h"
#include "experiments/launch/mpirun.h"
#include "experiments/machine/build_info.h"
#include "experiments/machine/machine.h"
#include "experiments/virtual_cluster/namespaces.h"

namespace psring {
namespace {

struct Examination {
  std::string what;  // "GPUs"
  bool found = false;
  std::string detail;  // what was found, or why nothing was
  std::string fix;     // if not found: the command to type
  bool required = false;
};

Examination ExamineCores(const Machine& machine) {
  const std::string processor = ProcessorText(machine.processor);
  return {
      .what = Tr("cores"),
      .found = machine.cores >= 2,
      .detail = absl::StrCat(machine.cores, processor.empty() ? "" : ", " + processor),
      .fix = Tr("workers share the only core: timings are not meaningful, but bytes and accuracy are valid")};
}

Examination ExamineMemory(const Machine& machine) {
  return {.what = Tr("memory"),
          .found = machine.memory_mb >= 2000,
          .detail = absl::StrFormat("%d MiB", machine.memory_mb),
          .fix = Tr("each worker needs about 300 MiB: use fewer --workers")};
}

Examination ExamineSharedMemory() {
  struct statvfs info {};
  if (statvfs("/dev/shm", &info) != 0) {
    return {.what = "/dev/shm", .detail = Tr("not mounted"), .fix = "mount -t tmpfs tmpfs /dev/shm"};
  }
  const double megabytes =
      static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize) / (1 << 20);
  return {.what = "/dev/shm",
          .found = megabytes >= 512,
          .detail = Tr("$0 MiB free", Fixed(megabytes, 0)),
          .fix = Tr("mount -o remount,size=2G /dev/shm   (a container: docker run --shm-size=2g)")};
}

Examination ExaminePackages(const Interrupt& interrupt) {
  Examination result{.what = Tr("packages")};
  const std::vector<std::string> needed = absl::StrSplit(PSRING_DEBIAN_PACKAGES, ' ');
  std::vector<std::string> command = {"/usr/bin/dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"};
  command.insert(command.end(), needed.begin(), needed.end());
  // If dpkg-query does not know a package, it lists the others and fails, so its exit code is ignored.
  command.insert(command.begin(), {"/bin/sh", "-c", "\"$@\" 2>/dev/null; true", "sh"});
  const std::string installed = RunForOutput(command, absl::Seconds(20), interrupt).value_or("");
  if (installed.empty()) {
    result.found = true;
    result.detail = Tr("not checked: dpkg is not available, and psring is already built");
    return result;
  }
  const std::vector<std::string> lines = absl::StrSplit(installed, '\n');
  std::vector<std::string> missing;
  for (const std::string& package : needed) {
    if (std::ranges::find(lines, absl::StrCat(package, " installed")) == lines.end())
      missing.push_back(package);
  }
  result.found = missing.empty();
  result.detail = missing.empty() ? Tr("all $0", needed.size()) : absl::StrJoin(missing, " ");
  result.fix = absl::StrCat("sudo apt-get install -y --no-install-recommends ", absl::StrJoin(missing, " "));
  return result;
}

Examination ExamineData(const absl::StatusOr<Binaries>& binaries, const Interrupt& interrupt) {
  Examination result{.what = "Fashion-MNIST",
                     .fix = Tr("sudo apt-get install -y dataset-fashion-mnist   (or --data synthetic)")};
  if (!binaries.ok()) {
    result.detail = Tr("not checked: the trainer is missing");
    return result;
  }
  const absl::StatusOr<Probe> probe = CheckWithTrainer(*binaries, TrainingOptions(), interrupt);
  result.found = probe.ok();
  result.detail = probe.ok()
                      ? Tr("$0 training images and $1 test images", probe->samples, probe->test_samples)
                      : std::string(probe.status().message());
  return result;
}

Examination ExamineGpus() {
  const absl::StatusOr<std::vector<std::string>> gpus = FindGpus();
  return {.what = Tr("GPUs"),
          .found = gpus.ok(),
          .detail = gpus.ok()
                        ? absl::StrCat(absl::StrJoin(*gpus, "; "),
                                       gpus->size() > 1
                                           ? Tr("; one process per GPU, or one for all: --ranks_per_process")
                                           : "")
                        : std::string(gpus.status().message()),
          .fix = Tr(kBuiltWithCuda
                        ? TrNoop("install the NVIDIA driver and check it with nvidia-smi")
                        : TrNoop("for an NVIDIA GPU: install the CUDA toolkit (Debian: component non-free, "
                                 "package nvidia-cuda-toolkit), remove the build folder, ./run build"))};
}

Examination ExamineConvolutions() {
  const absl::StatusOr<std::string> library = ConvolutionLibrary();
  return {
      .what = "cuDNN",
      .found = library.ok(),
      .detail = library.ok() ? Tr("convolutions on GPUs: $0", *library)
                             : Tr("$0; convolutions on GPUs use matrix products of cuBLASLt",
                                  std::string(library.status().message())),
      .fix = Tr(
          kBuiltWithCudnn
              ? TrNoop(
                    "install nvidia-cudnn (pip) or libcudnn9 (NVIDIA) and add its folder to LD_LIBRARY_PATH")
              : TrNoop("install the CUDA and cuDNN headers, then ./run build"))};
}

// Libraries with collectives. The next `./run` rebuilds with the libraries that are installed then.
Examination BuiltWith(const std::string& what, const std::string& backend, bool found, const char* fix) {
  return {.what = what,
          .found = found,
          .detail = found ? Tr("in this build: --strategy $0", backend)
                          : Tr("not in this build: no --strategy $0", backend),
          .fix = Tr(fix)};
}

Examination ExamineMpi() {
  Examination result =
      BuiltWith("MPI", "mpi", kBuiltWithMpi,
                TrNoop("sudo apt-get install -y libopenmpi-dev openmpi-bin, then ./run build"));
  if (*kMpiFamily != 0) absl::StrAppend(&result.detail, ", ", Tr("built with $0", kMpiFamily));
  if (!result.found) return result;
  const absl::StatusOr<std::string> mpirun = DescribeMpirun();
  result.found = mpirun.ok();
  absl::StrAppend(&result.detail, "; ", mpirun.ok() ? *mpirun : std::string(mpirun.status().message()));
  return result;
}

// Network namespaces, which the virtual cluster needs.
Examination ExamineNamespaces(const Interrupt& interrupt) {
  const std::string why = WhyNoNamespaces(interrupt);
  return {.what = Tr("namespaces"),
          .found = why.empty(),
          .detail = why.empty() ? Tr("each machine of a virtual cluster has its own network (--link 1gbit)")
                                : Tr("psring's own transports limit the rate of --link instead: $0", why),
          .fix = Tr("run as root, or: sudo sysctl -w kernel.unprivileged_userns_clone=1 "
                    "kernel.apparmor_restrict_unprivileged_userns=0   (a container: --privileged)")};
}

Examination ExamineTc() {
  const std::string path = FindTool("tc");
  return {.what = "tc",
          .found = !path.empty(),
          .detail = path.empty() ? Tr("not installed") : path,
          .fix = "sudo apt-get install -y iproute2"};
}

std::vector<Examination> Examine(const Interrupt& interrupt) {
  const Machine machine = DescribeMachine();
  const absl::StatusOr<Binaries> binaries = FindBinaries();
  return {{.what = Tr("system"),
           .found = true,
           .detail = absl::StrCat(machine.system, ", Linux ", machine.kernel)},
          ExamineCores(machine),
          ExamineMemory(machine),
          ExamineSharedMemory(),
          {.what = Tr("binaries"),
           .found = binaries.ok(),
           .detail = binaries.ok() ? binaries->trainer : std::string(binaries.status().message()),
           .fix = "./run build",
           .required = true},
          ExaminePackages(interrupt),
          ExamineData(binaries, interrupt),
          ExamineGpus(),
          ExamineConvolutions(),
          BuiltWith(
              "NCCL", "nccl", kBuiltWithNccl,
              TrNoop("install the CUDA toolkit and libnccl-dev (NVIDIA's apt repository), then ./run build")),
          BuiltWith("Gloo", "gloo", kBuiltWithGloo,
                    TrNoop("sudo apt-get install -y libgloo-dev, then ./run build")),
          ExamineMpi(),
          ExamineNamespaces(interrupt),
          ExamineTc()};
}

}  // namespace

int RunDoctor(const Interrupt& interrupt) {
  const std::vector<Examination> examinations = Examine(interrupt);
  if (const absl::Status ended = interrupt.Check(); !ended.ok()) {
    return Fail("psring doctor", std::string(ended.message()));
  }
  const Examination* missing = nullptr;  // the first required one
  for (const Examination& examination : examinations) {
    const char* const verdict = examination.found      ? TrNoop("yes")
                                : examination.required ? TrNoop("NO")
                                                       : TrNoop("no");
    std::printf("%s %s  %s\n", PadRight(examination.what, 14).c_str(), PadRight(Tr(verdict), 3).c_str(),
                OneLine(examination.detail).c_str());
    if (examination.found) continue;
    std::printf("%20s%s\n", "", Tr("fix: $0", examination.fix).c_str());
    if (examination.required && missing == nullptr) missing = &examination;
  }
  if (missing != nullptr) {
    std::printf("\n%s\n", Tr("Missing requirement: $0.", missing->what).c_str());
    return 1;
  }
  std::printf("\n%s\n", Tr("All requirements are met.").c_str());
  return 0;
}

}  // namespace psring
