#include "common/device/memory_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "common/base/errors.h"
#include "common/device/control_groups.h"

namespace psring {
namespace {

Device::Memory LimitedMemory(size_t limit, size_t used) {
  return {.free = limit - std::min(limit, used), .total = limit};
}

// The file caches in a memory.stat, which the kernel drops before it fails an allocation.
size_t FileCaches(const std::string& path, const std::string& prefix) {
  std::ifstream file(path);
  size_t value = 0, sum = 0;
  for (std::string word; file >> word >> value;) {
    if (word == prefix + "inactive_file" || word == prefix + "active_file") sum += value;
  }
  return sum;
}

// The file names of a version.
struct Files {
  const char* limit;
  const char* used;
  const char* prefix;  // in memory.stat, of what includes subgroups
};
constexpr Files kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};
constexpr Files kVersion2 = {"memory.max", "memory.current", ""};

// Version 1 expresses "no limit" as a number of about 2^63.
constexpr size_t kNoLimit = size_t{1} << 60;

std::optional<Device::Memory> MemoryOfGroup(const std::string& folder, const Files& files) {
  const std::optional<uint64_t> limit = NumberIn(absl::StrCat(folder, "/", files.limit));
  const std::optional<uint64_t> used = NumberIn(absl::StrCat(folder, "/", files.used));
  if (!limit.has_value() || !used.has_value() || *limit >= kNoLimit) return std::nullopt;
  const size_t droppable = FileCaches(absl::StrCat(folder, "/memory.stat"), files.prefix);
  return LimitedMemory(*limit, *used - std::min<size_t>(*used, droppable));
}

struct LimitedGroup {
  std::string folder;
  Device::Memory memory;
};

std::optional<LimitedGroup> TightestGroup(const std::string& root) {
  std::optional<LimitedGroup> tightest;
  for (const ControlGroup& group : ControlGroups("memory", root)) {
    const auto memory = MemoryOfGroup(group.folder, group.version_1 ? kVersion1 : kVersion2);
    if (!memory.has_value() || (tightest.has_value() && memory->free >= tightest->memory.free)) continue;
    tightest = {group.folder, *memory};
  }
  return tightest;
}

// Libraries, and the stacks and heaps of threads. Measured with 3 ranks of the MLP on 2 cores, by reducing
// the limit until a job failed.
constexpr size_t kBase = size_t{1280} << 20;

}  // namespace

std::optional<Device::Memory> ControlGroupMemory(const std::string& root) {
  const auto tightest = TightestGroup(root);
  return tightest.has_value() ? std::optional(tightest->memory) : std::nullopt;
}

std::optional<Device::Memory> AddressSpace() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return LimitedMemory(limit.rlim_cur, pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

std::string MemoryScope(const std::string& root) {
  if (AddressSpace().has_value()) return absl::StrCat("process ", getpid());
  const auto tightest = TightestGroup(root);
  return tightest.has_value() ? tightest->folder : "";
}

absl::Status CheckAddressSpace() {
  const std::optional<Device::Memory> space = AddressSpace();
  if (!space.has_value() || space->total >= kBase) return absl::OkStatus();
  return FailedPrecondition("this process may use ", space->total >> 20,
                            " MiB of address space, and psring needs about ", kBase >> 20,
                            " MiB and the memory of its job; run: ulimit -v unlimited");
}

size_t UsableMemory(const Device& device) {
  const std::optional<Device::Memory> memory = device.memory();
  return memory.has_value() ? memory->free - memory->free / 8 : 0;
}

}  // namespace psring
