#include "experiments/compare/wrap.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace psring {

std::string Wrap(const std::string& text, const std::string& prefix, size_t width) {
  std::string lines = prefix;
  size_t used = prefix.size();
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    const bool first = used == prefix.size();
    if (!first && used + 1 + word.size() > width) {
      absl::StrAppend(&lines, "\n", std::string(prefix.size(), ' '), word);
      used = prefix.size() + word.size();
    } else {
      absl::StrAppend(&lines, first ? "" : " ", word);
      used += (first ? 0 : 1) + word.size();
    }
  }
  absl::StrAppend(&lines, "\n");
  return lines;
}

}  // namespace psring
