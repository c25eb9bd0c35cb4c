// Flags in a file, in TOML. CLI11's own reader (2.1) drops what follows a '#' inside strings, has no escapes
// and skips lines that it does not understand.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct ConfigItem {
  std::string key;    // of a [section]: "section.key"
  std::string value;  // unquoted; a list's items separated by commas
  int line = 0;       // from 1
};

// The items in the order of their lines. InvalidArgument, in one line: "FILE:3:7: ..." is not TOML, or a
// value is neither a scalar nor a flat list of scalars.
absl::StatusOr<std::vector<ConfigItem>> ParseConfig(const std::string& text, const std::string& file);

// ParseConfig of a file of at most 16 KiB, with the errors of ReadFile.
absl::StatusOr<std::vector<ConfigItem>> ReadConfigFile(const std::string& file);

// What the value of a flag can reach. A run folder passes from one user to another, so psring takes no
// kOutside flag from one (outputs, checkpoints, addresses, keys), and no kInput flag (files to read) from a
// file that other users can change.
enum class FlagReach { kValue, kInput, kOutside };
FlagReach ReachOf(const std::string& flag, const std::string& value);
// FailedPrecondition if users other than this one and root can change the file or folder `path`: says why.
absl::Status CheckOnlyMine(const std::string& path);

// "key = value\n", quoted if necessary, so that ParseConfig returns `value`.
std::string ConfigLine(const std::string& key, const std::string& value);

}  // namespace psring
