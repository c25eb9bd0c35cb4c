#include "common/io/csv.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace psring {

std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

}  // namespace psring
