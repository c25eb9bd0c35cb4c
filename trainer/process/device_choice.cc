#include "trainer/process/device_choice.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace psring {

absl::Status CheckSharing(const std::vector<std::string>& units, bool may_share) {
  std::map<std::string, std::vector<int>> ranks;
  for (size_t rank = 0; rank < units.size(); ++rank) {
    if (!units[rank].empty()) ranks[units[rank]].push_back(static_cast<int>(rank));
  }
  for (const auto& [unit, sharers] : ranks) {
    if (sharers.size() == 1 || may_share) continue;
    const size_t gpus = ranks.size();
    return absl::FailedPreconditionError(
        absl::StrCat("ranks ", absl::StrJoin(sharers, ", "), " would share a GPU: there ",
                     gpus == 1 ? "is " : "are ", gpus, gpus == 1 ? " GPU" : " GPUs", " for ", units.size(),
                     " ranks; start fewer, or give --oversubscribe (for functional tests only: timings are "
                     "not meaningful) or "
                     "--device cpu"));
  }
  return absl::OkStatus();
}

absl::Status CheckSharingInProcess(const std::vector<std::string>& units, int ranks_per_process) {
  std::map<std::pair<size_t, std::string>, size_t> first;  // rank on each process's units
  for (size_t rank = 0; rank < units.size() && ranks_per_process > 1; ++rank) {
    if (units[rank].empty()) continue;
    const size_t process = rank / static_cast<size_t>(ranks_per_process);
    const auto [found, is_first] = first.insert({{process, units[rank]}, rank});
    if (is_first) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("ranks ", found->second, " and ", rank,
                     " of one process share a GPU, which NCCL does not support; omit --ranks_per_process, or "
                     "give --backend native"));
  }
  return absl::OkStatus();
}

}  // namespace psring
