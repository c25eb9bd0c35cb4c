#include "common/device/usable_memory.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/device/control_groups.h"

namespace psring {
namespace {

// nullopt if the file is missing or does not hold a number ("max").
std::optional<size_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  size_t number = 0;
  if (!(file >> word) || !absl::SimpleAtoi(word, &number)) return std::nullopt;
  return number;
}

// The value of `key` in a memory.stat.
size_t ReadStatistic(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  size_t value = 0;
  for (std::string word; file >> word >> value;) {
    if (word == key) return value;
  }
  return 0;
}

// The file names of a version.
struct Files {
  const char* limit;
  const char* used;
  const char* droppable;  // in memory.stat
};
constexpr Files kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Files kVersion2 = {"memory.max", "memory.current", "inactive_file"};

// Version 1 expresses "no limit" as a number of about 2^63.
constexpr size_t kNoLimit = size_t{1} << 60;

std::optional<Device::Memory> MemoryOfGroup(const std::string& folder, const Files& files) {
  const std::optional<size_t> limit = ReadNumber(absl::StrCat(folder, "/", files.limit));
  const std::optional<size_t> used = ReadNumber(absl::StrCat(folder, "/", files.used));
  if (!limit.has_value() || !used.has_value() || *limit >= kNoLimit) return std::nullopt;
  const size_t droppable = ReadStatistic(absl::StrCat(folder, "/memory.stat"), files.droppable);
  const size_t taken = *used - std::min(*used, droppable);
  return Device::Memory{.free = *limit - std::min(*limit, taken), .total = *limit};
}

}  // namespace

std::optional<Device::Memory> ControlGroupMemory(const std::string& root) {
  std::optional<Device::Memory> tightest;
  for (const ControlGroup& group : ControlGroups("memory", root)) {
    const auto memory = MemoryOfGroup(group.folder, group.version_1 ? kVersion1 : kVersion2);
    if (memory.has_value() && (!tightest.has_value() || memory->free < tightest->free)) tightest = memory;
  }
  return tightest;
}

size_t UsableMemory(const Device& device) {
  const std::optional<Device::Memory> memory = device.memory();
  return memory.has_value() ? memory->free - memory->free / 8 : 0;
}

}  // namespace psring
