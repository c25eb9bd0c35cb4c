#include "experiments/virtual_cluster/link_counters.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"

namespace psring {
namespace {

constexpr double kSegmentBytes = 1448;
constexpr double kLeastTimeoutMs = 200;

std::vector<absl::string_view> SplitFields(absl::string_view line) {
  return absl::StrSplit(line, absl::ByAnyChar(" \t(),"), absl::SkipEmpty());
}

}  // namespace

absl::StatusOr<int64_t> NetworkCounterOf(const std::string& text, const std::string& protocol,
                                         const std::string& name) {
  std::vector<absl::string_view> names;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, absl::StrCat(protocol, ": "))) continue;
    if (names.empty()) {
      names = SplitFields(line);
      continue;
    }
    const std::vector<absl::string_view> numbers = SplitFields(line);
    const auto found = std::find(names.begin(), names.end(), name);
    const size_t at = static_cast<size_t>(found - names.begin());
    int64_t value = 0;
    if (at < numbers.size() && absl::SimpleAtoi(numbers[at], &value)) return value;
    break;
  }
  return absl::NotFoundError(absl::StrCat("the kernel has no counter ", protocol, " ", name));
}

absl::StatusOr<int64_t> QueueDropsOf(const std::string& text, const std::string& interface) {
  bool matches = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> fields = SplitFields(line);
    if (!fields.empty() && fields[0] == "qdisc") {
      const auto dev = std::find(fields.begin(), fields.end(), "dev");
      matches = dev != fields.end() && dev + 1 != fields.end() && *(dev + 1) == interface &&
                std::find(fields.begin(), fields.end(), "root") != fields.end();
      continue;
    }
    const auto dropped = std::find(fields.begin(), fields.end(), "dropped");
    int64_t value = 0;
    if (matches && dropped != fields.end() && dropped + 1 != fields.end() &&
        absl::SimpleAtoi(*(dropped + 1), &value)) {
      return value;
    }
  }
  return absl::NotFoundError(absl::StrCat("tc shows no root queue of ", interface));
}

std::vector<NodeCounters> Difference(const std::vector<NodeCounters>& after,
                                     const std::vector<NodeCounters>& before) {
  PSRING_CHECK(after.size() == before.size());
  std::vector<NodeCounters> difference;
  for (size_t i = 0; i < after.size(); ++i) {
    difference.push_back({after[i].retransmitted_segments - before[i].retransmitted_segments,
                          after[i].timeouts - before[i].timeouts,
                          after[i].queue_drops - before[i].queue_drops});
  }
  return difference;
}

double RetransmissionMs(const std::vector<NodeCounters>& nodes, double bits_per_s) {
  double most = 0;
  for (const NodeCounters& node : nodes) {
    const double resent =
        bits_per_s > 0 ? 8e3 * kSegmentBytes * static_cast<double>(node.retransmitted_segments) / bits_per_s
                       : 0;
    most = std::max(most, resent + kLeastTimeoutMs * static_cast<double>(node.timeouts));
  }
  return most;
}

}  // namespace psring
