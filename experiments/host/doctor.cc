#include "experiments/host/doctor.h"

#include <sched.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/cuda_device.h"
#include "experiments/build_info.h"
#include "experiments/compare/runner.h"
#include "experiments/host/gpu_probe.h"
#include "experiments/host/machine.h"
#include "experiments/processes/launcher.h"
#include "experiments/processes/mpirun.h"
#include "experiments/virtual_cluster/namespaces.h"

namespace psring {
namespace {

// What `./run` installs.
const char* const kPackages[] = {"g++",
                                 "cmake",
                                 "ninja-build",
                                 "ccache",
                                 "protobuf-compiler",
                                 "protobuf-compiler-grpc",
                                 "libprotobuf-dev",
                                 "libgrpc++-dev",
                                 "libabsl-dev",
                                 "libgtest-dev",
                                 "libgmock-dev",
                                 "libdnnl-dev",
                                 "libcli11-dev",
                                 "nlohmann-json3-dev",
                                 "zlib1g-dev",
                                 "libgloo-dev",
                                 "libopenmpi-dev",
                                 "openmpi-bin",
                                 "iproute2",
                                 "xz-utils",
                                 "libjs-d3",
                                 "dataset-fashion-mnist"};

Examination ExamineCores(const Machine& machine) {
  return {.what = "cores",
          .found = machine.cores >= 2,
          .detail = absl::StrCat(machine.cores, machine.cpu_model.empty() ? "" : ", " + machine.cpu_model),
          .mend = "with one core, workers only take turns: speeds mean little, bytes and accuracy still do"};
}

Examination ExamineMemory(const Machine& machine) {
  return {.what = "memory",
          .found = machine.memory_mb >= 2000,
          .detail = absl::StrFormat("%d MiB", machine.memory_mb),
          .mend = "each worker needs about 300 MiB: use fewer --workers"};
}

Examination ExamineSharedMemory() {
  struct statvfs info {};
  if (statvfs("/dev/shm", &info) != 0) {
    return {.what = "/dev/shm", .detail = "not mounted", .mend = "mount -t tmpfs tmpfs /dev/shm"};
  }
  const double megabytes =
      static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize) / (1 << 20);
  return {.what = "/dev/shm",
          .found = megabytes >= 512,
          .detail = absl::StrFormat("%.0f MiB free", megabytes),
          .mend = "mount -o remount,size=2G /dev/shm   (a container: docker run --shm-size=2g)"};
}

Examination ExaminePackages(const Interrupt& interrupt) {
  Examination result{.what = "packages"};
  std::vector<std::string> command = {"/usr/bin/dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"};
  command.insert(command.end(), std::begin(kPackages), std::end(kPackages));
  std::string installed;
  // dpkg-query fails when it does not know one of the names, and lists the others; so its output counts, not
  // its end.
  command.insert(command.begin(), {"/bin/sh", "-c", "\"$@\" 2>/dev/null; true", "sh"});
  const absl::StatusOr<std::string> output = RunForOutput(command, absl::Seconds(20), interrupt);
  if (output.ok()) installed = *output;
  if (installed.empty()) {
    result.found = true;
    result.detail = "not asked: no dpkg here, and psring is built already";
    return result;
  }
  std::vector<std::string> missing;
  for (const char* package : kPackages) {
    bool there = false;
    for (absl::string_view line : absl::StrSplit(installed, '\n')) {
      there = there || line == absl::StrCat(package, " installed");
    }
    if (!there) missing.push_back(package);
  }
  result.found = missing.empty();
  result.detail =
      missing.empty() ? absl::StrFormat("all %d", std::size(kPackages)) : absl::StrJoin(missing, " ");
  result.mend = absl::StrCat("sudo apt-get install -y --no-install-recommends ", absl::StrJoin(missing, " "));
  return result;
}

Examination ExamineData(const absl::StatusOr<Binaries>& binaries, const Interrupt& interrupt) {
  Examination result{.what = "Fashion-MNIST",
                     .mend = "sudo apt-get install -y dataset-fashion-mnist   (or --data synthetic)",
                     .required = true};
  if (!binaries.ok()) {
    result.detail = "not asked: the trainer is missing";
    return result;
  }
  const absl::StatusOr<Probe> probe = CheckWithTrainer(*binaries, TrainingOptions(), interrupt);
  result.found = probe.ok();
  result.detail =
      probe.ok() ? absl::StrFormat("%d training and %d test pictures", probe->samples, probe->test_samples)
                 : std::string(probe.status().message());
  return result;
}

Examination ExamineGpus() {
  const absl::StatusOr<std::vector<std::string>> gpus = FindGpus();
  return {.what = "GPUs",
          .found = gpus.ok(),
          .detail = gpus.ok() ? absl::StrCat(absl::StrJoin(*gpus, "; "),
                                             gpus->size() > 1 ? "; a process each, or one process for all: "
                                                                "--ranks_per_process"
                                                              : "")
                              : std::string(gpus.status().message()),
          .mend = kBuiltWithCuda ? "install NVIDIA's driver, and check it with nvidia-smi"
                                 : "for an NVIDIA GPU: install the CUDA toolkit (Debian: component non-free, "
                                   "package nvidia-cuda-toolkit), remove the build folder, ./run build"};
}

Examination ExamineConvolutions() {
  const absl::StatusOr<std::string> library = ConvolutionLibrary();
  return {.what = "cuDNN",
          .found = library.ok(),
          .detail = library.ok() ? absl::StrCat("convolutions on GPUs: ", *library)
                                 : absl::StrCat(library.status().message(),
                                                "; convolutions on GPUs are matrix products of cuBLASLt"),
          .mend = kBuiltWithCudnn ? "pip's nvidia-cudnn or NVIDIA's libcudnn9, its folder in LD_LIBRARY_PATH"
                                  : "install CUDA and cuDNN's headers, then ./run build"};
}

// Other people's collectives. The next `./run` builds with what has been installed since.
Examination BuiltWith(const std::string& what, const std::string& backend, bool found,
                      const std::string& mend) {
  return {.what = what,
          .found = found,
          .detail = found ? absl::StrCat("in this build: --strategy ", backend)
                          : absl::StrCat("not in this build: no --strategy ", backend),
          .mend = mend};
}

Examination ExamineMpi() {
  Examination result = BuiltWith("MPI", "mpi", kBuiltWithMpi,
                                 "sudo apt-get install -y libopenmpi-dev openmpi-bin, then ./run build");
  if (*kMpiFamily != 0) absl::StrAppend(&result.detail, ", made with ", kMpiFamily);
  if (!result.found) return result;
  const absl::StatusOr<std::string> mpirun = DescribeMpirun();
  result.found = mpirun.ok();
  absl::StrAppend(&result.detail, "; ", mpirun.ok() ? *mpirun : std::string(mpirun.status().message()));
  return result;
}

// What the virtual cluster stands on.
Examination ExamineNamespaces(const Interrupt& interrupt) {
  const std::string why = WhyNoNamespaces(interrupt);
  return {.what = "namespaces",
          .found = why.empty(),
          .detail = why.empty() ? "a machine of a virtual cluster has a network of its own (--link 1gbit)"
                                : absl::StrCat("psring's own transports keep --link instead: ", why),
          .mend =
              "run as root, or: sudo sysctl -w kernel.unprivileged_userns_clone=1 "
              "kernel.apparmor_restrict_unprivileged_userns=0   (a container: --privileged)"};
}

Examination ExamineTc() {
  Examination result{.what = "tc", .detail = "not installed", .mend = "sudo apt-get install -y iproute2"};
  for (const char* path : {"/usr/sbin/tc", "/sbin/tc", "/usr/bin/tc"}) {
    if (access(path, X_OK) == 0) {
      result.found = true;
      result.detail = path;
      break;
    }
  }
  return result;
}

}  // namespace

std::vector<Examination> Examine(const Interrupt& interrupt) {
  const Machine machine = DescribeMachine();
  const absl::StatusOr<Binaries> binaries = FindBinaries();
  return {
      {.what = "system", .found = true, .detail = absl::StrCat(machine.system, ", Linux ", machine.kernel)},
      ExamineCores(machine),
      ExamineMemory(machine),
      ExamineSharedMemory(),
      {.what = "binaries",
       .found = binaries.ok(),
       .detail = binaries.ok() ? binaries->trainer : std::string(binaries.status().message()),
       .mend = "./run build",
       .required = true},
      ExaminePackages(interrupt),
      ExamineData(binaries, interrupt),
      ExamineGpus(),
      ExamineConvolutions(),
      BuiltWith("NCCL", "nccl", kBuiltWithNccl,
                "install the CUDA toolkit and libnccl-dev (NVIDIA's apt repository), then ./run build"),
      BuiltWith("Gloo", "gloo", kBuiltWithGloo, "sudo apt-get install -y libgloo-dev, then ./run build"),
      ExamineMpi(),
      ExamineNamespaces(interrupt),
      ExamineTc()};
}

std::string DescribeExaminations(const std::vector<Examination>& examinations) {
  std::string text;
  for (const Examination& examination : examinations) {
    const char* verdict = examination.found ? "yes" : examination.required ? "NO" : "no";
    absl::StrAppendFormat(&text, "%-14s %-3s  %s\n", examination.what, verdict, examination.detail);
    if (!examination.found) absl::StrAppendFormat(&text, "%-14s      mend: %s\n", "", examination.mend);
  }
  return text;
}

int RunDoctor(const Interrupt& interrupt) {
  const std::vector<Examination> examinations = Examine(interrupt);
  std::fputs(DescribeExaminations(examinations).c_str(), stdout);
  for (const Examination& examination : examinations) {
    if (examination.required && !examination.found) {
      std::printf("\nRequired and missing: %s.\n", examination.what.c_str());
      return 1;
    }
  }
  std::printf("\nEverything that is required is here.\n");
  return 0;
}

}  // namespace psring
