#include "experiments/bench/limits.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/measure/collective_table.h"
#include "common/text/translate.h"
#include "experiments/stats/statistics.h"

namespace psring {
namespace {

// The workers' name of the limit; empty if there is none.
std::string LimitKindOf(const BenchCombination& combination, const std::string& transport) {
  if (transport == "shm") return combination.push_pull() ? "fused" : "shared";
  if (transport == "tcp") return combination.push_pull() ? "raw" : "tcp";
  return "";
}

}  // namespace

void MeasuredLimits::Add(int workers, const std::string& kind, const std::string& collective, uint64_t bytes,
                         const std::vector<double>& times_us) {
  std::vector<double>& all = times_us_[{workers, kind, collective, bytes}];
  all.insert(all.end(), times_us.begin(), times_us.end());
}

std::optional<double> MeasuredLimits::MedianUs(const Key& key) const {
  const auto found = times_us_.find(key);
  if (found == times_us_.end()) return std::nullopt;
  const double median = Quantile(found->second, 0.5);
  if (median <= 0) return std::nullopt;
  return median;
}

std::optional<double> MeasuredLimits::BusBandwidth(const BenchCombination& combination,
                                                   const std::string& transport, uint64_t bytes) const {
  if (combination.workers < 2 && !combination.push_pull()) return std::nullopt;
  const std::optional<double> median =
      MedianUs({combination.workers, LimitKindOf(combination, transport), combination.collective, bytes});
  if (!median) return std::nullopt;
  return BusFactor(combination.collective, combination.workers) * static_cast<double>(bytes) / *median / 1e3;
}

std::string MeasuredLimits::PushPullText(int workers) const {
  std::set<uint64_t> sizes;
  for (const auto& [key, times] : times_us_) {
    const auto& [its_workers, kind, collective, bytes] = key;
    if (its_workers == workers && collective == kPushPull) sizes.insert(bytes);
  }
  if (sizes.empty()) return "";
  std::string text =
      absl::StrCat(Tr("# Limits of a server's round with $0 workers, us. raw: the same bytes over plain TCP "
                      "sockets.\n# fused: one pass through memory that adds all gradients, updates the "
                      "weights and writes them\n# for every worker.",
                      workers),
                   "\n", absl::StrFormat("# %10s  %10s  %10s\n", "size", "raw", "fused"));
  for (const uint64_t bytes : sizes) {
    absl::StrAppendFormat(&text, "# %10d", bytes);
    for (const char* kind : {"raw", "fused"}) {
      const std::optional<double> median = MedianUs({workers, kind, kPushPull, bytes});
      text += median ? absl::StrFormat("  %10.1f", *median) : absl::StrFormat("  %10s", "");
    }
    text += "\n";
  }
  return text;
}

std::string MeasuredLimits::Text(int workers) const {
  std::set<std::pair<std::string, uint64_t>> rows;
  for (const auto& [key, times] : times_us_) {
    const auto& [its_workers, kind, collective, bytes] = key;
    if (its_workers == workers && kind != "copy" && collective != kPushPull) rows.insert({collective, bytes});
  }
  std::string text;
  if (!rows.empty()) {
    text =
        absl::StrCat(Tr("# Limits of this host with $0 processes, GB/s. copy: all processes copy at the same "
                        "time.\n# shared, tcp, unix: busbw of the minimum work: adding directly from the "
                        "peers' memory (shared),\n# or sending the data once around a ring (tcp, unix).",
                        workers),
                     "\n",
                     absl::StrFormat("# %10s  %14s  %8s  %8s  %8s  %8s\n", "size", "collective", "copy",
                                     "shared", "tcp", "unix"));
  }
  for (const auto& [collective, bytes] : rows) {
    absl::StrAppendFormat(&text, "# %10d  %14s", bytes, collective);
    for (const char* kind : {"copy", "shared", "tcp", "unix"}) {
      // A copy has no bus factor.
      const double factor = std::string(kind) == "copy" ? 1 : BusFactor(collective, workers);
      const std::optional<double> median = MedianUs({workers, kind, collective, bytes});
      text += median ? absl::StrFormat("  %8.2f", factor * static_cast<double>(bytes) / *median / 1e3)
                     : absl::StrFormat("  %8s", "");
    }
    text += "\n";
  }
  return absl::StrCat(text, PushPullText(workers));
}

}  // namespace psring
