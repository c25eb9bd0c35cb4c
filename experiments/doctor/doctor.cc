#include "experiments/doctor/doctor.h"

#include <sched.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/cuda/cuda_device.h"
#include "experiments/compare/runner.h"
#include "experiments/host/build_info.h"
#include "experiments/host/gpu_probe.h"
#include "experiments/host/machine.h"
#include "experiments/processes/launcher.h"
#include "experiments/processes/mpirun.h"
#include "experiments/texts/doctor.h"
#include "experiments/texts/wrap.h"
#include "experiments/virtual_cluster/namespaces.h"

namespace psring {
namespace {

// What `./run` installs.
const char* const kNeeded[] = {"g++",
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

Examination ExamineCores(const Machine& machine, Language language) {
  return {.what = In(language, kCores),
          .found = machine.cores >= 2,
          .detail = absl::StrCat(machine.cores, machine.cpu_model.empty() ? "" : ", " + machine.cpu_model),
          .mend = In(language, kCoresMend)};
}

Examination ExamineMemory(const Machine& machine, Language language) {
  return {.what = In(language, kMemory),
          .found = machine.memory_mb >= 2000,
          .detail = absl::StrFormat("%d MiB", machine.memory_mb),
          .mend = In(language, kMemoryMend)};
}

Examination ExamineSharedMemory(Language language) {
  struct statvfs info {};
  if (statvfs("/dev/shm", &info) != 0) {
    return {.what = "/dev/shm", .detail = In(language, kNotMounted), .mend = "mount -t tmpfs tmpfs /dev/shm"};
  }
  const double megabytes =
      static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize) / (1 << 20);
  return {.what = "/dev/shm",
          .found = megabytes >= 512,
          .detail = Say(language, kFree, absl::StrFormat("%.0f", megabytes)),
          .mend = In(language, kSharedMemoryMend)};
}

Examination ExaminePackages(const Interrupt& interrupt, Language language) {
  Examination result{.what = In(language, kPackages)};
  std::vector<std::string> command = {"/usr/bin/dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"};
  command.insert(command.end(), std::begin(kNeeded), std::end(kNeeded));
  std::string installed;
  // dpkg-query fails when it does not know one of the names, and lists the others; so its output counts, not
  // its end.
  command.insert(command.begin(), {"/bin/sh", "-c", "\"$@\" 2>/dev/null; true", "sh"});
  const absl::StatusOr<std::string> output = RunForOutput(command, absl::Seconds(20), interrupt);
  if (output.ok()) installed = *output;
  if (installed.empty()) {
    result.found = true;
    result.detail = In(language, kPackagesNotAsked);
    return result;
  }
  std::vector<std::string> missing;
  for (const char* package : kNeeded) {
    bool there = false;
    for (absl::string_view line : absl::StrSplit(installed, '\n')) {
      there = there || line == absl::StrCat(package, " installed");
    }
    if (!there) missing.push_back(package);
  }
  result.found = missing.empty();
  result.detail =
      missing.empty() ? Say(language, kPackagesThere, std::size(kNeeded)) : absl::StrJoin(missing, " ");
  result.mend = absl::StrCat("sudo apt-get install -y --no-install-recommends ", absl::StrJoin(missing, " "));
  return result;
}

Examination ExamineData(const absl::StatusOr<Binaries>& binaries, const Interrupt& interrupt,
                        Language language) {
  Examination result{.what = "Fashion-MNIST", .mend = In(language, kDataMend), .required = true};
  if (!binaries.ok()) {
    result.detail = In(language, kDataNotAsked);
    return result;
  }
  const absl::StatusOr<Probe> probe = CheckWithTrainer(*binaries, TrainingOptions(), interrupt);
  result.found = probe.ok();
  result.detail = probe.ok() ? Say(language, kDataThere, probe->samples, probe->test_samples)
                             : std::string(probe.status().message());
  return result;
}

Examination ExamineGpus(Language language) {
  const absl::StatusOr<std::vector<std::string>> gpus = FindGpus();
  return {.what = In(language, kGpus),
          .found = gpus.ok(),
          .detail = gpus.ok() ? absl::StrCat(absl::StrJoin(*gpus, "; "),
                                             gpus->size() > 1 ? In(language, kSeveralGpus) : "")
                              : std::string(gpus.status().message()),
          .mend = In(language, kBuiltWithCuda ? kGpusMend : kCudaMend)};
}

Examination ExamineConvolutions(Language language) {
  const absl::StatusOr<std::string> library = ConvolutionLibrary();
  return {.what = "cuDNN",
          .found = library.ok(),
          .detail = library.ok() ? Say(language, kConvolutions, *library)
                                 : Say(language, kNoConvolutions, std::string(library.status().message())),
          .mend = In(language, kBuiltWithCudnn ? kCudnnMend : kCudnnBuildMend)};
}

// Other people's collectives. The next `./run` builds with what has been installed since.
Examination BuiltWith(const std::string& what, const std::string& backend, bool found, const Phrase& mend,
                      Language language) {
  return {.what = what,
          .found = found,
          .detail = found ? Say(language, kInBuild, backend) : Say(language, kNotInBuild, backend),
          .mend = In(language, mend)};
}

Examination ExamineMpi(Language language) {
  Examination result = BuiltWith("MPI", "mpi", kBuiltWithMpi, kMpiMend, language);
  if (*kMpiFamily != 0) absl::StrAppend(&result.detail, ", ", Say(language, kMadeWith, kMpiFamily));
  if (!result.found) return result;
  const absl::StatusOr<std::string> mpirun = DescribeMpirun();
  result.found = mpirun.ok();
  absl::StrAppend(&result.detail, "; ", mpirun.ok() ? *mpirun : std::string(mpirun.status().message()));
  return result;
}

// What the virtual cluster stands on.
Examination ExamineNamespaces(const Interrupt& interrupt, Language language) {
  const std::string why = WhyNoNamespaces(interrupt);
  return {.what = In(language, kNamespaces),
          .found = why.empty(),
          .detail = why.empty() ? In(language, kNamespacesThere) : Say(language, kNamespacesMissing, why),
          .mend = In(language, kNamespacesMend)};
}

Examination ExamineTc(Language language) {
  Examination result{
      .what = "tc", .detail = In(language, kNotInstalled), .mend = "sudo apt-get install -y iproute2"};
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

std::vector<Examination> Examine(const Interrupt& interrupt, Language language) {
  const Machine machine = DescribeMachine();
  const absl::StatusOr<Binaries> binaries = FindBinaries();
  return {{.what = In(language, kSystem),
           .found = true,
           .detail = absl::StrCat(machine.system, ", Linux ", machine.kernel)},
          ExamineCores(machine, language),
          ExamineMemory(machine, language),
          ExamineSharedMemory(language),
          {.what = In(language, kBinaries),
           .found = binaries.ok(),
           .detail = binaries.ok() ? binaries->trainer : std::string(binaries.status().message()),
           .mend = "./run build",
           .required = true},
          ExaminePackages(interrupt, language),
          ExamineData(binaries, interrupt, language),
          ExamineGpus(language),
          ExamineConvolutions(language),
          BuiltWith("NCCL", "nccl", kBuiltWithNccl, kNcclMend, language),
          BuiltWith("Gloo", "gloo", kBuiltWithGloo, kGlooMend, language),
          ExamineMpi(language),
          ExamineNamespaces(interrupt, language),
          ExamineTc(language)};
}

std::string DescribeExaminations(const std::vector<Examination>& examinations, Language language) {
  const auto padded = [](const std::string& text, size_t columns) {
    return text + std::string(columns - std::min(columns, TextColumns(text)), ' ');
  };
  std::string text;
  for (const Examination& examination : examinations) {
    const Phrase& verdict = examination.found ? kYes : examination.required ? kNoAndRequired : kNo;
    absl::StrAppend(&text, padded(examination.what, 14), " ", padded(In(language, verdict), 3), "  ",
                    examination.detail, "\n");
    if (!examination.found) {
      absl::StrAppend(&text, std::string(20, ' '), Say(language, kMend, examination.mend), "\n");
    }
  }
  return text;
}

int RunDoctor(const Interrupt& interrupt, Language language) {
  const std::vector<Examination> examinations = Examine(interrupt, language);
  if (const absl::Status ended = interrupt.Check(); !ended.ok()) {
    return Fail("psring doctor", std::string(ended.message()));
  }
  std::fputs(DescribeExaminations(examinations, language).c_str(), stdout);
  for (const Examination& examination : examinations) {
    if (examination.required && !examination.found) {
      std::printf("\n%s\n", Say(language, kMissing, examination.what).c_str());
      return 1;
    }
  }
  std::printf("\n%s\n", In(language, kAllThere));
  return 0;
}

}  // namespace psring
