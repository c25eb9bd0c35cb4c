#include "experiments/doctor/doctor.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/cuda_ops/cuda_ops.h"
#include "common/text/peer_text.h"
#include "experiments/engine/programs.h"
#include "experiments/host/build_info.h"
#include "experiments/host/gpu_probe.h"
#include "experiments/host/machine.h"
#include "experiments/processes/launcher.h"
#include "experiments/processes/mpirun.h"
#include "experiments/texts/doctor.h"
#include "experiments/texts/errors.h"
#include "experiments/texts/wrap.h"
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

Examination ExamineCores(const Machine& machine, Language language) {
  const std::string processor = ProcessorText(machine.processor);
  return {.what = In(language, kCores),
          .found = machine.cores >= 2,
          .detail = absl::StrCat(machine.cores, processor.empty() ? "" : ", " + processor),
          .fix = In(language, kCoresFix)};
}

Examination ExamineMemory(const Machine& machine, Language language) {
  return {.what = In(language, kMemory),
          .found = machine.memory_mb >= 2000,
          .detail = absl::StrFormat("%d MiB", machine.memory_mb),
          .fix = In(language, kMemoryFix)};
}

Examination ExamineSharedMemory(Language language) {
  struct statvfs info {};
  if (statvfs("/dev/shm", &info) != 0) {
    return {.what = "/dev/shm", .detail = In(language, kNotMounted), .fix = "mount -t tmpfs tmpfs /dev/shm"};
  }
  const double megabytes =
      static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize) / (1 << 20);
  return {.what = "/dev/shm",
          .found = megabytes >= 512,
          .detail = Say(language, kFree, absl::StrFormat("%.0f", megabytes)),
          .fix = In(language, kSharedMemoryFix)};
}

Examination ExaminePackages(const Interrupt& interrupt, Language language) {
  Examination result{.what = In(language, kPackages)};
  const std::vector<std::string> needed = absl::StrSplit(PSRING_DEBIAN_PACKAGES, ' ');
  std::vector<std::string> command = {"/usr/bin/dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"};
  command.insert(command.end(), needed.begin(), needed.end());
  // If dpkg-query does not know a package, it lists the others and fails, so its exit code is ignored.
  command.insert(command.begin(), {"/bin/sh", "-c", "\"$@\" 2>/dev/null; true", "sh"});
  const std::string installed = RunForOutput(command, absl::Seconds(20), interrupt).value_or("");
  if (installed.empty()) {
    result.found = true;
    result.detail = In(language, kPackagesNotAsked);
    return result;
  }
  const std::vector<std::string> lines = absl::StrSplit(installed, '\n');
  std::vector<std::string> missing;
  for (const std::string& package : needed) {
    if (std::ranges::find(lines, absl::StrCat(package, " installed")) == lines.end())
      missing.push_back(package);
  }
  result.found = missing.empty();
  result.detail =
      missing.empty() ? Say(language, kPackagesThere, needed.size()) : absl::StrJoin(missing, " ");
  result.fix = absl::StrCat("sudo apt-get install -y --no-install-recommends ", absl::StrJoin(missing, " "));
  return result;
}

Examination ExamineData(const absl::StatusOr<Binaries>& binaries, const Interrupt& interrupt,
                        Language language) {
  Examination result{.what = "Fashion-MNIST", .fix = In(language, kDataFix)};
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
          .fix = In(language, kBuiltWithCuda ? kGpusFix : kCudaFix)};
}

Examination ExamineConvolutions(Language language) {
  const absl::StatusOr<std::string> library = ConvolutionLibrary();
  return {.what = "cuDNN",
          .found = library.ok(),
          .detail = library.ok() ? Say(language, kConvolutions, *library)
                                 : Say(language, kNoConvolutions, std::string(library.status().message())),
          .fix = In(language, kBuiltWithCudnn ? kCudnnFix : kCudnnBuildFix)};
}

// Libraries with collectives. The next `./run` rebuilds with the libraries that are installed then.
Examination BuiltWith(const std::string& what, const std::string& backend, bool found, const Phrase& fix,
                      Language language) {
  return {.what = what,
          .found = found,
          .detail = found ? Say(language, kInBuild, backend) : Say(language, kNotInBuild, backend),
          .fix = In(language, fix)};
}

Examination ExamineMpi(Language language) {
  Examination result = BuiltWith("MPI", "mpi", kBuiltWithMpi, kMpiFix, language);
  if (*kMpiFamily != 0) absl::StrAppend(&result.detail, ", ", Say(language, kMadeWith, kMpiFamily));
  if (!result.found) return result;
  const absl::StatusOr<std::string> mpirun = DescribeMpirun();
  result.found = mpirun.ok();
  absl::StrAppend(&result.detail, "; ", mpirun.ok() ? *mpirun : std::string(mpirun.status().message()));
  return result;
}

// Network namespaces, which the virtual cluster needs.
Examination ExamineNamespaces(const Interrupt& interrupt, Language language) {
  const std::string why = WhyNoNamespaces(interrupt);
  return {.what = In(language, kNamespaces),
          .found = why.empty(),
          .detail = why.empty() ? In(language, kNamespacesThere) : Say(language, kNamespacesMissing, why),
          .fix = In(language, kNamespacesFix)};
}

Examination ExamineTc(Language language) {
  const std::string path = FindTool("tc");
  return {.what = "tc",
          .found = !path.empty(),
          .detail = path.empty() ? In(language, kNotInstalled) : path,
          .fix = "sudo apt-get install -y iproute2"};
}

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
           .fix = "./run build",
           .required = true},
          ExaminePackages(interrupt, language),
          ExamineData(binaries, interrupt, language),
          ExamineGpus(language),
          ExamineConvolutions(language),
          BuiltWith("NCCL", "nccl", kBuiltWithNccl, kNcclFix, language),
          BuiltWith("Gloo", "gloo", kBuiltWithGloo, kGlooFix, language),
          ExamineMpi(language),
          ExamineNamespaces(interrupt, language),
          ExamineTc(language)};
}

std::string Padded(const std::string& text, size_t columns) {
  return text + std::string(columns - std::min(columns, TextColumns(text)), ' ');
}

}  // namespace

int RunDoctor(const Interrupt& interrupt, Language language) {
  const std::vector<Examination> examinations = Examine(interrupt, language);
  if (const absl::Status ended = interrupt.Check(); !ended.ok()) {
    return Fail(language, "psring doctor", std::string(ended.message()));
  }
  const Examination* missing = nullptr;  // the first required one
  for (const Examination& examination : examinations) {
    const Phrase& verdict = examination.found ? kYes : examination.required ? kNoAndRequired : kNo;
    std::printf("%s %s  %s\n", Padded(examination.what, 14).c_str(), Padded(In(language, verdict), 3).c_str(),
                OneLine(examination.detail).c_str());
    if (examination.found) continue;
    std::printf("%20s%s\n", "", Say(language, kFix, examination.fix).c_str());
    if (examination.required && missing == nullptr) missing = &examination;
  }
  if (missing != nullptr) {
    std::printf("\n%s\n", Say(language, kMissing, missing->what).c_str());
    return 1;
  }
  std::printf("\n%s\n", In(language, kAllThere));
  return 0;
}

}  // namespace psring
