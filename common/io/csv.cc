#include "common/io/csv.h"

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

std::vector<std::string> ParseCsvLine(absl::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

}  // namespace psring
