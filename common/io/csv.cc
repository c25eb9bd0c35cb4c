#include "common/io/csv.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace psring {

std::string CsvLine(const std::vector<std::string>& fields) {
  std::string line;
  for (const std::string& field : fields) {
    if (&field != &fields.front()) line += ',';
    if (field.find_first_of(",\"\r\n") == std::string::npos) {
      line += field;
    } else {
      absl::StrAppend(&line, "\"", absl::StrReplaceAll(field, {{"\"", "\"\""}}), "\"");
    }
  }
  return line + "\n";
}

absl::StatusOr<std::vector<std::string>> ParseCsvLine(absl::string_view line) {
  constexpr size_t kMostBytes = 64 << 10, kMostFields = 1024;
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  if (line.size() > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", line.size(), " bytes; the limit is ", kMostBytes));
  }
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c)) && c != '\t') {
      return absl::InvalidArgumentError(
          absl::StrCat("it contains the control character ", static_cast<int>(c), "; save the file as text"));
    }
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      if (fields.size() == kMostFields) {
        return absl::InvalidArgumentError(absl::StrCat("it has more than ", kMostFields, " fields"));
      }
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  if (quoted) return absl::InvalidArgumentError("a quote is not closed");
  return fields;
}

}  // namespace psring
