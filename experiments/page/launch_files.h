// The records of one launch (`trainer --record`) as the files of a run folder, so that the page can show
// them.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace psring {

// Whether `folder` has the records of a launch and is not a run folder.
bool HasLaunchRecords(const std::string& folder);

// summary.json, table.json, findings.txt, findings.zh.txt, runs.csv, curves.csv, steps.jsonl and trace.json
// by name, without a manifest. Errors are one line that says what is missing or invalid: a rank's records,
// what it trained (earlier versions do not record it), or a common clock of the ranks.
absl::StatusOr<std::map<std::string, std::string>> LaunchFiles(const std::string& folder);

}  // namespace psring
