#include "common/cli/config_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/read_file.h"

namespace psring {
namespace {

constexpr size_t kMostConfigBytes = 1 << 20;

bool IsKeyCharacter(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.'; }

class ConfigParser {
 public:
  ConfigParser(const std::string& text, const std::string& file) : text_(text), file_(file) {}

  absl::StatusOr<std::vector<ConfigItem>> Parse() {
    std::string section;
    std::vector<ConfigItem> items;
    std::set<std::string> keys;
    for (SkipBlank(true); !AtEnd(); SkipBlank(true)) {
      if (Take('[')) {
        PSRING_ASSIGN_OR_RETURN(section, Key());
        if (!Take(']')) return Error("']' expected after a section's name");
      } else {
        ConfigItem item{.line = line_};
        PSRING_ASSIGN_OR_RETURN(const std::string key, Key());
        item.key = section.empty() ? key : absl::StrCat(section, ".", key);
        if (!Take('=')) return Error(absl::StrCat("'=' expected after ", key));
        PSRING_ASSIGN_OR_RETURN(item.value, Peek() == '[' ? List() : Scalar());
        if (!keys.insert(item.key).second) return Error(absl::StrCat(item.key, " is given twice"));
        items.push_back(std::move(item));
      }
      SkipBlank(false);
      if (!AtEnd() && Peek() != '\n') return Error("unexpected text at the end of the line");
    }
    return items;
  }

 private:
  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek() const { return AtEnd() ? '\0' : text_[at_]; }
  char Next() {
    const char c = text_[at_++];
    if (c == '\n') ++line_;
    return c;
  }
  // Skips white space, then `c` if it is next, then white space.
  bool Take(char c) {
    SkipBlank(false);
    if (AtEnd() || Peek() != c) return false;
    Next();
    SkipBlank(false);
    return true;
  }
  void SkipBlank(bool lines) {
    while (!AtEnd() && (Peek() == ' ' || Peek() == '\t' || Peek() == '\r' || Peek() == '#' ||
                        (lines && Peek() == '\n'))) {
      if (Peek() == '#') {
        while (!AtEnd() && Peek() != '\n') Next();
      } else {
        Next();
      }
    }
  }

  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_, ":", line_, ": ", what));
  }

  absl::StatusOr<std::string> Key() {
    std::string key;
    while (!AtEnd() && IsKeyCharacter(Peek())) key += Next();
    if (key.empty()) return Error("a flag's name expected, as in: batch = 64");
    return key;
  }

  absl::StatusOr<std::string> List() {
    Next();
    std::string list;
    for (SkipBlank(true); Peek() != ']'; SkipBlank(true)) {
      PSRING_ASSIGN_OR_RETURN(const std::string item, Scalar());
      absl::StrAppend(&list, list.empty() ? "" : ",", item);
      SkipBlank(true);
      if (Peek() == ',') {
        Next();
      } else if (Peek() != ']') {
        return Error("',' or ']' expected in a list");
      }
    }
    Next();
    return list;
  }

  absl::StatusOr<std::string> Scalar() {
    if (Peek() == '"' || Peek() == '\'') return Quoted(Next());
    std::string word;
    while (!AtEnd() && (IsKeyCharacter(Peek()) || Peek() == '+')) word += Next();
    double number = 0;
    if (word == "true" || word == "false" || absl::SimpleAtod(word, &number)) return word;
    return Error(absl::StrCat(word.empty() ? "a value" : word, word.empty() ? " expected" : " needs quotes"));
  }

  absl::StatusOr<std::string> Quoted(char quote) {
    std::string value;
    while (!AtEnd() && Peek() != quote && Peek() != '\n') {
      const char c = Next();
      if (c != '\\' || quote == '\'') {
        value += c;
        continue;
      }
      const char escaped = AtEnd() ? '\0' : Next();
      if (escaped == 'n' || escaped == 't') {
        value += escaped == 'n' ? '\n' : '\t';
      } else if (escaped == '"' || escaped == '\\') {
        value += escaped;
      } else {
        return Error("unknown escape in a string");
      }
    }
    if (Peek() != quote) return Error("a string has no closing quote");
    Next();
    return value;
  }

  const std::string& text_;
  const std::string& file_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

absl::StatusOr<std::vector<ConfigItem>> ParseConfig(const std::string& text, const std::string& file) {
  return ConfigParser(text, file).Parse();
}

absl::StatusOr<std::vector<ConfigItem>> ReadConfigFile(const std::string& file) {
  const absl::StatusOr<std::string> text = ReadFile(file, kMostConfigBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(), absl::StrCat("--config: ", text.status().message()));
  }
  return ParseConfig(*text, file);
}

FlagReach ReachOf(const std::string& verb, const std::string& flag, const std::string& value) {
  static const auto* const outside = new std::set<std::string>(
      {"J", "bind", "checkpoint_dir", "config", "interface", "master_addr", "master_port", "out", "output_file", "record", "rendezvous", "replay"});
  static const auto* const inputs =
      new std::set<std::string>({"cluster", "compute_ms", "compute_varies", "data_dir", "like", "network_ms",
                                 "plan_of", "profile", "resume", "text", "workload"});
  const bool names_keys = flag == "tls" && value != "auto";
  const bool is_output = verb == "bench" && flag == "profile";
  if (outside->contains(flag) || names_keys || is_output) return FlagReach::kOutside;
  return inputs->contains(flag) ? FlagReach::kInput : FlagReach::kValue;
}

absl::Status CheckOnlyMine(const std::string& path) {
  std::error_code error;
  const std::filesystem::path full = std::filesystem::canonical(path, error);
  for (const std::filesystem::path& part : {full, full.parent_path()}) {
    struct stat info = {};
    if (error || stat(part.c_str(), &info) != 0) return FileError("read", path);
    if (info.st_uid != geteuid() && info.st_uid != 0) {
      return absl::FailedPreconditionError(absl::StrCat(part.string(), " belongs to another user"));
    }
    // The group of the user's own name usually has no other members.
    const mode_t others = info.st_gid == getegid() ? S_IWOTH : S_IWGRP | S_IWOTH;
    const bool only_adds = S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX) != 0;
    if ((info.st_mode & others) != 0 && !only_adds) {
      return absl::FailedPreconditionError(absl::StrCat("other users can write ", part.string()));
    }
  }
  return absl::OkStatus();
}

std::string ConfigLine(const std::string& key, const std::string& value) {
  double number = 0;
  bool bare = value == "true" || value == "false" || absl::SimpleAtod(value, &number);
  for (const char c : value) bare = bare && (IsKeyCharacter(c) || c == '+');
  if (bare) return absl::StrCat(key, " = ", value, "\n");
  std::string quoted;
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n' || c == '\t') {
      absl::StrAppend(&quoted, c == '\n' ? "\\n" : "\\t");
    } else {
      quoted += c;
    }
  }
  return absl::StrCat(key, " = \"", quoted, "\"\n");
}

}  // namespace psring
