#include "trainer/process/interface_counter.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/io/files.h"

namespace psring {

absl::StatusOr<int64_t> InterfaceTxBytesOf(const std::string& proc_net_dev, const std::string& interface) {
  constexpr size_t kTxBytes = 8;  // after eight receive counters
  std::vector<std::string> names;
  for (absl::string_view line : absl::StrSplit(proc_net_dev, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (parts.second.empty()) continue;
    names.emplace_back(absl::StripAsciiWhitespace(parts.first));
    if (names.back() != interface) continue;
    const std::vector<absl::string_view> fields =
        absl::StrSplit(parts.second, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t bytes = 0;
    if (fields.size() > kTxBytes && absl::SimpleAtoi(fields[kTxBytes], &bytes)) return bytes;
    return absl::InternalError(absl::StrCat("/proc/net/dev has no count for ", interface));
  }
  return absl::NotFoundError(
      absl::StrCat("no interface '", interface, "'; there are ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<int64_t> InterfaceTxBytes(const std::string& interface) {
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile("/proc/self/net/dev"));
  return InterfaceTxBytesOf(text, interface);
}

}  // namespace psring
