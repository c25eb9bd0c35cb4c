#include "common/rendezvous/begin_together.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/deadline.h"
#include "common/measure/trace.h"
#include "common/net/host_identity.h"

namespace psring {
namespace {

// Within this time all ranks learn of the last one's arrival, and links' token buckets are full again.
constexpr int64_t kLeadNs = 3'000'000;

}  // namespace

std::string ThisClock() { return absl::StrCat(BootId(), NamespaceId("time")); }

absl::Status BeginTogether(Rendezvous& rendezvous, const std::string& clock) {
  const absl::StatusOr<std::vector<std::string>> values =
      rendezvous.Exchange("begin", absl::StrCat(MonotonicNanos(), " ", clock));
  if (!values.ok()) return values.status();
  const int64_t now = MonotonicNanos();
  int64_t last = 0;
  for (const std::string& value : *values) {
    const std::pair<std::string, std::string> fields = absl::StrSplit(value, absl::MaxSplits(' ', 1));
    int64_t arrived = 0;
    if (fields.second != clock || !absl::SimpleAtoi(fields.first, &arrived)) return absl::OkStatus();
    if (arrived > now) return absl::OkStatus();  // no time of this clock
    last = std::max(last, arrived);
  }
  SleepUntil(last + kLeadNs);
  return absl::OkStatus();
}

}  // namespace psring
