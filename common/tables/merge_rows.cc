#include "common/tables/merge_rows.h"

#include <algorithm>
#include <limits>

#include "common/ops/cpu_kernels.h"

namespace psring {

void AddUpRows(absl::Span<const RowGradient> sources, size_t width, std::vector<int32_t>& rows,
               std::vector<float>& sums) {
  size_t most = 0;
  for (const RowGradient& source : sources) most += source.rows.size();
  rows.clear();
  sums.resize(most * width);
  float* to = sums.data();
  std::vector<size_t> next(sources.size());
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  while (true) {
    int32_t lowest = kNone;
    for (size_t s = 0; s < sources.size(); ++s) {
      if (next[s] < sources[s].rows.size()) lowest = std::min(lowest, sources[s].rows[next[s]]);
    }
    if (lowest == kNone) break;
    bool is_first = true;
    for (size_t s = 0; s < sources.size(); ++s) {
      if (next[s] == sources[s].rows.size() || sources[s].rows[next[s]] != lowest) continue;
      const float* const from = sources[s].gradient + next[s]++ * width;
      if (is_first) {
        std::copy_n(from, width, to);
      } else {
        cpu::Add(width, to, from);
      }
      is_first = false;
    }
    rows.push_back(lowest);
    to += width;
  }
  sums.resize(rows.size() * width);
}

}  // namespace psring
