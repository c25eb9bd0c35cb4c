#include "common/device/control_groups.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/own_process.h"

namespace psring {
namespace {

bool Lists(absl::string_view words, const std::string& word) {
  const std::vector<absl::string_view> all = absl::StrSplit(words, ',');
  return std::ranges::count(all, word) > 0;
}

// A file system of control groups.
struct Mount {
  std::string at;   // its folder
  std::string top;  // the group at its top
  bool version_1 = false;
};

// mountinfo writes a space as "\040".
std::string Unescaped(const std::string& text) {
  std::string plain;
  return absl::CUnescape(text, &plain) ? plain : text;
}

// From /proc/self/mountinfo: "ID PARENT DEVICE TOP AT OPTIONS [FIELD...] - TYPE SOURCE OPTIONS" (proc(5)).
std::vector<Mount> Mounts(const std::string& controller, const std::string& root) {
  std::vector<Mount> mounts;
  std::ifstream lines(absl::StrCat(root, "/proc/self/mountinfo"));
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    const std::vector<std::string> place = absl::StrSplit(halves[0], ' ');
    const std::vector<std::string> type = absl::StrSplit(halves.back(), ' ');
    if (halves.size() != 2 || place.size() < 6 || type.size() < 3) continue;
    const bool version_1 = type[0] == "cgroup" && Lists(type[2], controller);
    if (!version_1 && type[0] != "cgroup2") continue;
    mounts.push_back(
        {.at = absl::StrCat(root, Unescaped(place[4])), .top = Unescaped(place[3]), .version_1 = version_1});
  }
  if (!mounts.empty()) return mounts;
  return {{.at = absl::StrCat(root, "/sys/fs/cgroup/", controller), .top = "/", .version_1 = true},
          {.at = absl::StrCat(root, "/sys/fs/cgroup"), .top = "/"}};
}

// The path of `group` below `mount`, "" for its top; `inside`: whether the mount contains the group.
std::string Below(const Mount& mount, const std::string& group, bool& inside) {
  const std::string top = mount.top == "/" ? "" : mount.top;
  inside = absl::StartsWith(group, absl::StrCat(top, "/")) || group == top;
  inside = inside && !absl::StrContains(group, "/..");  // not below the top of this namespace
  return inside && group != "/" ? group.substr(top.size()) : "";
}

double Number(const std::string& text) {
  double number = 0;
  return absl::SimpleAtod(text, &number) ? number : 0;
}

// The words of a file; none if it cannot be read.
std::vector<std::string> WordsOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> words;
  for (std::string word; file >> word;) words.push_back(word);
  return words;
}

// 0: none. Version 2 writes "max 100000" or "200000 100000"; version 1 has a file for each, and -1 is no
// quota.
double QuotaOf(const ControlGroup& group) {
  std::vector<std::string> words;
  if (group.version_1) {
    for (const char* file : {"cpu.cfs_quota_us", "cpu.cfs_period_us"}) {
      for (const std::string& word : WordsOf(absl::StrCat(group.folder, "/", file))) words.push_back(word);
    }
  } else {
    words = WordsOf(absl::StrCat(group.folder, "/cpu.max"));
  }
  if (words.size() != 2) return 0;
  const double quota = Number(words[0]), period = Number(words[1]);
  return std::isfinite(quota) && quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

std::optional<uint64_t> NumberIn(const std::string& path) {
  const std::vector<std::string> words = WordsOf(path);
  uint64_t number = 0;
  if (words.empty() || !absl::SimpleAtoi(words[0], &number)) return std::nullopt;
  return number;
}

std::vector<ControlGroup> ControlGroups(const std::string& controller, const std::string& root) {
  const std::vector<Mount> mounts = Mounts(controller, root);
  std::vector<ControlGroup> groups;
  std::ifstream lines(absl::StrCat(root, "/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    // "ID:CONTROLLERS:PATH"; version 2 has ID 0 and no controllers.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const bool version_1 = Lists(fields[1], controller);
    if (!version_1 && !absl::StartsWith(line, "0::")) continue;
    // A mount that does not contain the group is of another container, unless it is the only one.
    bool found = false;
    std::vector<ControlGroup> tops;
    for (const Mount& mount : mounts) {
      if (mount.version_1 != version_1) continue;
      bool inside = false;
      std::string path = Below(mount, fields[2], inside);
      tops.push_back({.folder = mount.at, .version_1 = version_1});
      for (found = found || inside; inside; path.erase(path.rfind('/'))) {
        groups.push_back({.folder = absl::StrCat(mount.at, path), .version_1 = version_1});
        if (path.empty()) break;
      }
    }
    if (!found) groups.insert(groups.end(), tops.begin(), tops.end());
  }
  return groups;
}

double QuotaCores(const std::string& root) {
  double lowest = 0;
  for (const ControlGroup& group : ControlGroups("cpu", root)) {
    const double quota = QuotaOf(group);
    if (quota > 0 && (lowest == 0 || quota < lowest)) lowest = quota;
  }
  return lowest;
}

int UsableCores() {
  const int allowed = static_cast<int>(AllowedCores().size());
  const double quota = QuotaCores();
  return quota > 0 ? std::clamp(static_cast<int>(std::floor(std::min(quota, 1e6) + 0.01)), 1, allowed)
                   : allowed;
}

}  // namespace psring
