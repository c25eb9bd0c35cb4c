#include "experiments/virtual_cluster/link.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/text/translate.h"
#include "common/text/units.h"

namespace psring {
namespace {

constexpr double kBurstSeconds = 8.0 * (128 << 10) / 1e9;
constexpr double kQueueSeconds = 0.016;

}  // namespace

const char* ShapingName(Shaping shaping) {
  constexpr const char* kNames[] = {"none", "netns", "userspace"};
  return kNames[static_cast<size_t>(shaping)];
}

absl::Status CheckLink(const LinkOptions& options) {
  if (options.scale > 1 && options.bits_per_s <= 0) {
    return InvalidTr(
        "--scale is for links that this machine cannot carry; add --link with their rate, such as 10gbit");
  }
  if (options.shaping == "none" && options.wanted()) {
    return absl::InvalidArgumentError("--shaping none contradicts --link and --latency; omit it or them");
  }
  if ((options.shaping == "netns" || options.shaping == "userspace") && !options.wanted()) {
    return InvalidArgument("--shaping ", options.shaping, " needs a rate; add --link 1gbit");
  }
  return absl::OkStatus();
}

absl::StatusOr<double> ParseLink(const std::string& text) {
  if (text == "none") return 0;
  return ParseBitRate(text);
}

absl::StatusOr<double> ParseLatency(const std::string& text) {
  absl::Duration duration;
  if (const std::optional<absl::Duration> with_units = ParseDurationText(text)) {
    duration = *with_units;
  } else if (!absl::ParseDuration(text, &duration)) {
    return InvalidTr("'$0' is not a time; write a number with a unit, such as 0.5ms or 100us", text);
  }
  if (duration < absl::ZeroDuration() || duration > absl::Seconds(10)) {
    return InvalidArgument("'", text, "' is not between 0 and 10s");
  }
  return absl::ToDoubleSeconds(duration);
}

int64_t BurstBytes(double bits_per_s) {
  return std::max<int64_t>(16 << 10, static_cast<int64_t>(kBurstSeconds * bits_per_s / 8));
}

int64_t LargestPacketBytes(double bits_per_s) {
  return std::min<int64_t>(64 << 10, BurstBytes(bits_per_s) * 7 / 8);  // the rest is for the frames' headers
}

int64_t QueueBytes(double bits_per_s) {
  return std::max<int64_t>(256 << 10, static_cast<int64_t>(kQueueSeconds * bits_per_s / 8));
}

std::string WhyNotCarried(const LinkReport& report) {
  if (report.bits_per_s <= 0) return "";
  const auto falls_short = [&](double measured) {
    return measured > 0 && measured < kLeastShare * report.bits_per_s;
  };
  const auto carried = [&](const std::string& what, double measured) {
    return absl::StrFormat("%s carried %.0f of %.0f Mbit/s", what, measured / 1e6, report.mbps());
  };
  for (size_t node = 0; node < report.links.size(); ++node) {
    if (falls_short(report.links[node])) {
      return carried(absl::StrCat("the link of node ", node), report.links[node]);
    }
  }
  if (falls_short(report.ring)) return carried("the slowest link, while every node sends,", report.ring);
  if (falls_short(report.incast)) return carried("the link into one node from all others", report.incast);
  return "";
}

double LeastCarried(const LinkReport& report) {
  double least = std::min(report.ring, report.incast);
  for (const double link : report.links) least = std::min(least, link);
  return least;
}

LinkReport Nominal(LinkReport built, double scale) {
  built.bits_per_s *= scale;
  built.latency_s /= scale;
  built.scale = scale;
  return built;
}

std::string NameLink(const LinkReport& report) {
  if (report.shaping == Shaping::kNone) return Tr("this machine's loopback");
  std::string text =
      report.bits_per_s > 0 ? Tr("$0 links", BitRateText(report.bits_per_s)) : Tr("links without a limit");
  if (report.latency_s > 0) text += Tr(" with $0 ms of latency", report.latency_s * 1e3);
  return text;
}

std::string DescribeLink(const LinkReport& report) {
  std::string text = NameLink(report);
  if (report.shaping == Shaping::kNetns) text += Tr(" between network namespaces of this machine");
  if (report.shaping == Shaping::kUserspace)
    text += Tr(", limited by psring's own transports on this machine");
  if (!report.congestion_control.empty()) absl::StrAppend(&text, " (TCP ", report.congestion_control, ")");
  if (report.scale > 1) text += Tr(", at 1/$0 of the speed", report.scale);
  return text;
}

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
    const auto found = std::ranges::find(names, name);
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
      const auto dev = std::ranges::find(fields, "dev");
      matches = dev != fields.end() && dev + 1 != fields.end() && *(dev + 1) == interface &&
                std::ranges::find(fields, "root") != fields.end();
      continue;
    }
    const auto dropped = std::ranges::find(fields, "dropped");
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
