#include "experiments/limits.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/collective_table.h"
#include "experiments/statistics.h"

namespace psring {

std::string LimitKindOf(const std::string& transport) {
  if (transport == "shm") return "shared";
  if (transport == "tcp") return "tcp";
  return "";
}

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
  if (combination.workers < 2) return std::nullopt;
  // No limit is measured for one process that adds what all others have in their memory.
  if (combination.push_pull() && transport == "shm") return std::nullopt;
  const std::string collective = combination.push_pull() ? "all_reduce" : combination.collective;
  const std::optional<double> median =
      MedianUs({combination.workers, LimitKindOf(transport), collective, bytes});
  if (!median) return std::nullopt;
  const double busbw =
      BusFactor(collective, combination.workers) * static_cast<double>(bytes) / *median / 1e3;
  return combination.push_pull() ? busbw / 2 : busbw;
}

std::string MeasuredLimits::Text(int workers) const {
  std::set<std::pair<std::string, uint64_t>> rows;
  for (const auto& [key, times] : times_us_) {
    const auto& [its_workers, kind, collective, bytes] = key;
    if (its_workers == workers && kind != "copy") rows.insert({collective, bytes});
  }
  if (rows.empty()) return "";
  std::string text = absl::StrFormat(
      "# Limits of this host with %d processes, GB/s. copy: each copies, all at once. shared, tcp, unix: "
      "busbw\n"
      "# of the least work: adding straight out of peers' memory; sending around a ring, in one go.\n"
      "# %10s  %14s  %8s  %8s  %8s  %8s\n",
      workers, "size", "collective", "copy", "shared", "tcp", "unix");
  for (const auto& [collective, bytes] : rows) {
    absl::StrAppendFormat(&text, "# %10d  %14s", bytes, collective);
    for (const char* kind : {"copy", "shared", "tcp", "unix"}) {
      // A copy is the same whatever it is measured beside.
      const double factor = std::string(kind) == "copy" ? 1 : BusFactor(collective, workers);
      const std::optional<double> median = MedianUs({workers, kind, collective, bytes});
      text += median ? absl::StrFormat("  %8.2f", factor * static_cast<double>(bytes) / *median / 1e3)
                     : absl::StrFormat("  %8s", "");
    }
    text += "\n";
  }
  return text;
}

}  // namespace psring
