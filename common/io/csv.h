// CSV as in RFC 4180, with "\n" at the end of a record.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psring {

// One record. Fields that contain a comma, a quote or a line break are quoted.
std::string CsvLine(const std::vector<std::string>& fields);

// The fields of a record that contains no line break; one at the end, "\r" or "\n", is ignored.
// InvalidArgument says what is wrong with the line: a quote that is not closed, a control character, too many
// bytes or fields.
absl::StatusOr<std::vector<std::string>> ParseCsvLine(absl::string_view line);

}  // namespace psring
