#include "trainer/data/names.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/cli/command_line.h"

namespace psring {

absl::Status UnknownName(const std::string& kind, const std::string& name,
                         const std::vector<std::string>& known, const std::string& meant) {
  const std::string nearest = meant.empty() ? NearestWord(name, known) : meant;
  return absl::NotFoundError(
      absl::StrCat("unknown ", kind, " '", name, "'; ",
                   nearest.empty() ? "" : absl::StrCat("did you mean '", nearest, "'? "),
                   nearest.empty() ? "there are " : "There are ", absl::StrJoin(known, ", ")));
}

}  // namespace psring
