#include "common/device/usable_memory.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

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
  const char* mount;
  const char* limit;
  const char* used;
  const char* droppable;  // in memory.stat
};
constexpr Files kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                             "total_inactive_file"};
constexpr Files kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

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
  std::ifstream groups(absl::StrCat(root, "/proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {
    // "ID:CONTROLLERS:PATH"; version 2 has ID 0 and no controllers.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    const bool version_1 = std::ranges::count(controllers, "memory") > 0;
    if (!version_1 && !absl::StartsWith(line, "0::")) continue;
    const Files& files = version_1 ? kVersion1 : kVersion2;
    // Every ancestor group limits as well. In a container the path may not exist; its own group is then at
    // the top.
    for (std::string path = fields[2] == "/" ? "" : fields[2];; path.erase(path.rfind('/'))) {
      const auto memory = MemoryOfGroup(absl::StrCat(root, files.mount, path), files);
      if (memory.has_value() && (!tightest.has_value() || memory->free < tightest->free)) tightest = memory;
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  return tightest;
}

size_t UsableMemory(const Device& device) {
  const std::optional<Device::Memory> memory = device.memory();
  return memory.has_value() ? memory->free - memory->free / 8 : 0;
}

}  // namespace psring
