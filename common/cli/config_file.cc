#include "common/cli/config_file.h"

#include <sys/stat.h>
#include <unistd.h>

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/read_file.h"
#include "common/text/peer_text.h"
#include "common/text/units.h"

namespace psring {
namespace {

constexpr size_t kMaxConfigBytes = 16 << 10;  // also bounds how deeply toml++ nests tables

// The shortest text with this value, as a flag takes it.
absl::Status ConfigError(const std::string& file, const toml::source_region& at, const std::string& what) {
  return InvalidArgument(file, ":", at.begin.line, ":", at.begin.column, ": ", OneLine(what));
}

absl::StatusOr<std::string> Scalar(const toml::node& node, const std::string& file) {
  if (const auto* const text = node.as_string(); text != nullptr) return text->get();
  if (const auto* const whole = node.as_integer(); whole != nullptr) return absl::StrCat(whole->get());
  if (const auto* const real = node.as_floating_point(); real != nullptr) return ShortestText(real->get());
  if (const auto* const yes = node.as_boolean(); yes != nullptr) return yes->get() ? "true" : "false";
  return ConfigError(file, node.source(),
                     "a flag takes a text in quotes, a number, true, false or a list of these");
}

absl::Status Collect(const toml::table& table, const std::string& section, const std::string& file,
                     std::vector<ConfigItem>& items) {
  for (auto&& [key, node] : table) {
    ConfigItem item{.key = absl::StrCat(section, std::string(key.str())),
                    .line = static_cast<int>(key.source().begin.line)};
    if (const toml::table* const inner = node.as_table(); inner != nullptr) {
      if (absl::StrContains(section, '.')) return ConfigError(file, key.source(), "no flag has such a name");
      PSRING_RETURN_IF_ERROR(Collect(*inner, item.key + ".", file, items));
      continue;
    }
    if (const toml::array* const list = node.as_array(); list != nullptr) {
      for (const toml::node& one : *list) {
        PSRING_ASSIGN_OR_RETURN(const std::string text, Scalar(one, file));
        absl::StrAppend(&item.value, &one == list->get(0) ? "" : ",", text);
      }
    } else {
      PSRING_ASSIGN_OR_RETURN(item.value, Scalar(node, file));
    }
    items.push_back(std::move(item));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ConfigItem>> ParseConfig(const std::string& text, const std::string& file) {
  const toml::parse_result parsed = toml::parse(std::string_view(text), std::string_view(file));
  if (!parsed) {
    return ConfigError(file, parsed.error().source(),
                       std::string(parsed.error().description()) + "; texts need quotes");
  }
  std::vector<ConfigItem> items;
  PSRING_RETURN_IF_ERROR(Collect(parsed.table(), "", file, items));
  // TOML's tables are not ordered.
  std::ranges::stable_sort(items, {}, &ConfigItem::line);
  return items;
}

absl::StatusOr<std::vector<ConfigItem>> ReadConfigFile(const std::string& file) {
  const absl::StatusOr<std::string> text = ReadFile(file, kMaxConfigBytes);
  if (!text.ok()) return Prefixed(text.status(), "--config: ");
  return ParseConfig(*text, file);
}

FlagReach ReachOf(const std::string& flag, const std::string& value) {
  constexpr std::string_view kOutside[] = {"J",           "bind",        "checkpoint_dir", "config",
                                           "interface",   "master_addr", "master_port",    "out",
                                           "output_file", "record",      "rendezvous",     "replay"};
  constexpr std::string_view kInputs[] = {"cluster", "compute_ms", "compute_varies", "data_dir",
                                          "like",    "network_ms", "plan_of",        "profile",
                                          "resume",  "text",       "workload"};
  const bool names_keys = flag == "tls" && value != "auto";
  if (std::ranges::find(kOutside, flag) != std::end(kOutside) || names_keys) return FlagReach::kOutside;
  return std::ranges::find(kInputs, flag) != std::end(kInputs) ? FlagReach::kInput : FlagReach::kValue;
}

absl::Status CheckOnlyMine(const std::string& path) {
  std::error_code error;
  const std::filesystem::path full = std::filesystem::canonical(path, error);
  for (const std::filesystem::path& part : {full, full.parent_path()}) {
    struct stat info = {};
    if (error || stat(part.c_str(), &info) != 0) return FileError("read", path);
    if (info.st_uid != geteuid() && info.st_uid != 0) {
      return FailedPrecondition(part.string(), " belongs to another user");
    }
    // The group of the user's own name usually has no other members.
    const mode_t others = info.st_gid == getegid() ? S_IWOTH : S_IWGRP | S_IWOTH;
    const bool only_adds = S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX) != 0;
    if ((info.st_mode & others) != 0 && !only_adds) {
      return FailedPrecondition("other users can write ", part.string());
    }
  }
  return absl::OkStatus();
}

std::string ConfigLine(const std::string& key, const std::string& value) {
  int64_t whole = 0;
  double real = 0;
  const bool is_whole = absl::SimpleAtoi(value, &whole) && absl::StrCat(whole) == value;
  const bool is_real =
      absl::StrContains(value, '.') && absl::SimpleAtod(value, &real) && ShortestText(real) == value;
  if (is_whole || is_real || value == "true" || value == "false")
    return absl::StrCat(key, " = ", value, "\n");
  std::string quoted;
  for (const char c : value) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppendFormat(&quoted, "\\u%04X", static_cast<unsigned char>(c));
    } else {
      absl::StrAppend(&quoted, c == '"' || c == '\\' ? "\\" : "", std::string(1, c));
    }
  }
  return absl::StrCat(key, " = \"", quoted, "\"\n");
}

}  // namespace psring
