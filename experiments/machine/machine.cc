#include "experiments/machine/machine.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/own_process.h"
#include "common/cuda/cuda_device.h"
#include "common/cuda_ops/cuda_ops.h"
#include "common/device/control_groups.h"
#include "common/io/files.h"
#include "common/measure/trace.h"

namespace psring {
namespace {

// The value of `key` in lines such as `PRETTY_NAME="Debian"`.
std::string Field(const std::string& text, const std::string& key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, key)) continue;
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (parts.size() != 2) continue;
    absl::string_view value = absl::StripAsciiWhitespace(parts[1]);
    absl::ConsumePrefix(&value, "\"");
    absl::ConsumeSuffix(&value, "\"");
    return std::string(value);
  }
  return "";
}

double CpuSeconds(int who) {
  rusage usage{};
  getrusage(who, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// The kernel's names. All that begin with amx_ are listed, too.
constexpr std::array kInstructionSets = {"avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni"};

bool Matters(absl::string_view flag) {
  return absl::StartsWith(flag, "amx_") ||
         std::ranges::find(kInstructionSets, flag) != kInstructionSets.end();
}

// The listed sets in the order of kInstructionSets, then those of AMX.
std::string InstructionSets(absl::string_view flags) {
  std::vector<absl::string_view> found;
  for (absl::string_view flag : absl::StrSplit(flags, ' ', absl::SkipEmpty())) {
    if (Matters(flag)) found.push_back(flag);
  }
  std::ranges::stable_sort(found, {}, [](absl::string_view flag) {
    return std::ranges::find(kInstructionSets, flag) - kInstructionSets.begin();
  });
  return absl::StrJoin(found, " ");
}

constexpr char kPrefix[] = "psring-measures-";
constexpr int kMaxNamesakes = 16;  // processes of several containers with the same ID
constexpr size_t kMaxBytes = 16 << 20;

// Whether the socket got the abstract name `name`.
bool TakeName(int socket, const std::string& name) {
  sockaddr_un address{.sun_family = AF_UNIX};
  if (name.size() + 1 > sizeof(address.sun_path)) return false;
  memcpy(address.sun_path + 1, name.data(), name.size());
  const size_t size = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  return bind(socket, reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(size)) == 0;
}

std::string ReadAgain(int file) {
  std::string text;
  if (lseek(file, 0, SEEK_SET) != 0) return text;
  char part[1 << 14];
  ssize_t count = 0;
  while (text.size() < kMaxBytes && (count = read(file, part, sizeof(part))) > 0)
    text.append(part, static_cast<size_t>(count));
  return text;
}

}  // namespace

Machine DescribeMachine() {
  Machine machine;
  machine.cores = UsableCores();
  machine.processor = ParseProcessor(ReadFile("/proc/cpuinfo").value_or(""));
  struct sysinfo info {};
  if (sysinfo(&info) == 0) {
    machine.memory_mb = static_cast<int64_t>(info.totalram) * info.mem_unit / (1 << 20);
  }
  machine.system = Field(ReadFile("/etc/os-release").value_or(""), "PRETTY_NAME");
  if (machine.system.empty()) machine.system = "unknown distribution";
  utsname name{};
  if (uname(&name) == 0) {
    machine.kernel = name.release;
    machine.host = name.nodename;
  }
  if (CudaDeviceCount() > 0) machine.gpu_convolutions = ConvolutionLibrary().value_or("cublaslt");
  return machine;
}

double BusySeconds(const std::string& proc_stat, const std::vector<int>& cpus, double ticks_per_second) {
  double ticks = 0;
  for (absl::string_view line : absl::StrSplit(proc_stat, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int cpu = 0;
    if (fields.size() < 9 || !absl::StartsWith(fields[0], "cpu") ||
        !absl::SimpleAtoi(fields[0].substr(3), &cpu) || std::ranges::find(cpus, cpu) == cpus.end()) {
      continue;
    }
    for (int i : {1, 2, 3, 8}) {  // user, nice, system, steal (proc(5))
      double value = 0;
      if (absl::SimpleAtod(fields[i], &value)) ticks += value;
    }
  }
  return ticks / ticks_per_second;
}

ForeignCpu::ForeignCpu() : cpus_(AllowedCores()), start_(Take(cpus_)) {}

ForeignCpu::Sample ForeignCpu::Take(const std::vector<int>& cpus) {
  return {.busy_s = BusySeconds(ReadFile("/proc/stat").value_or(""), cpus,
                                static_cast<double>(sysconf(_SC_CLK_TCK))),
          .ours_s = CpuSeconds(RUSAGE_SELF) + CpuSeconds(RUSAGE_CHILDREN),
          .wall_s = 1e-9 * MonotonicNanos()};
}

double ForeignCpu::Percent() const {
  const Sample now = Take(cpus_);
  const double capacity = (now.wall_s - start_.wall_s) * static_cast<double>(cpus_.size());
  if (capacity <= 0) return 0;
  const double foreign = (now.busy_s - start_.busy_s) - (now.ours_s - start_.ours_s);
  return std::clamp(100 * foreign / capacity, 0.0, 100.0);
}

Processor ParseProcessor(const std::string& cpuinfo) {
  Processor processor;
  for (absl::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    if (absl::StripAsciiWhitespace(line).empty()) break;  // the next processor follows
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (parts.size() != 2) continue;
    const absl::string_view key = absl::StripAsciiWhitespace(parts[0]);
    const absl::string_view value = absl::StripAsciiWhitespace(parts[1]);
    const auto read = [&value](int& number) {
      if (int read = 0; absl::SimpleAtoi(value, &read)) number = read;
    };
    if (key == "model name") processor.name = std::string(value);
    if (key == "cpu family") read(processor.family);
    if (key == "model") read(processor.model);
    if (key == "stepping") read(processor.stepping);
    if (key == "flags") processor.instruction_sets = InstructionSets(value);
  }
  return processor;
}

std::string ProcessorText(const Processor& processor) {
  std::vector<std::string> numbers;
  for (const auto& [name, value] : {std::pair{"family", processor.family},
                                    {"model", processor.model},
                                    {"stepping", processor.stepping}}) {
    if (value >= 0) numbers.push_back(absl::StrCat(name, " ", value));
  }
  std::vector<std::string> details;
  if (!numbers.empty()) details.push_back(absl::StrJoin(numbers, ", "));
  if (!processor.instruction_sets.empty()) details.push_back(processor.instruction_sets);
  if (details.empty()) return processor.name;
  return absl::StrCat(processor.name, processor.name.empty() ? "(" : " (", absl::StrJoin(details, "; "), ")");
}

MeasuringNow::MeasuringNow()
    : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)),
      names_(open("/proc/self/net/unix", O_RDONLY | O_CLOEXEC)) {
  for (int namesake = 0; socket_.valid() && namesake < kMaxNamesakes; ++namesake) {
    own_ = absl::StrCat(kPrefix, getpid(), ".", namesake);
    if (TakeName(socket_.get(), own_) || errno != EADDRINUSE) return;
  }
}

std::vector<int> MeasuringNow::Others() const {
  return names_.valid() ? MeasuringProcesses(ReadAgain(names_.get()), own_) : std::vector<int>();
}

std::vector<int> MeasuringProcesses(const std::string& proc_net_unix, const std::string& own) {
  std::set<int> processes;
  for (const absl::string_view line : absl::StrSplit(proc_net_unix, '\n')) {
    const size_t at = line.rfind(" @");  // marks abstract names
    absl::string_view name = at == absl::string_view::npos ? "" : line.substr(at + 2);
    if (name == own || !absl::ConsumePrefix(&name, kPrefix)) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
    int process = 0;
    if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &process) && process > 0) processes.insert(process);
  }
  return {processes.begin(), processes.end()};
}

}  // namespace psring
