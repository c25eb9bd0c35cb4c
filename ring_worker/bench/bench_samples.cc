#include "ring_worker/bench/bench_samples.h"

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"

namespace psring {
namespace {

constexpr int64_t kMaxCallsPerTurn = 10'000;

}  // namespace

absl::Status ChooseCalls(BenchSetup& setup, const std::vector<int64_t>& call_ns,
                         std::vector<BenchCase>& cases) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          setup.rendezvous().Exchange("bench warm", absl::StrJoin(call_ns, " ")));
  std::vector<int64_t> slowest(cases.size(), 1);
  for (const std::string& text : all) {
    const std::vector<std::string> fields = absl::StrSplit(text, ' ', absl::SkipEmpty());
    for (size_t i = 0; i < std::min(fields.size(), cases.size()); ++i) {
      int64_t ns = 0;
      if (absl::SimpleAtoi(fields[i], &ns)) slowest[i] = std::max(slowest[i], ns);
    }
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    cases[i].calls =
        setup.options().calls_per_turn > 0
            ? setup.options().calls_per_turn
            : std::clamp<int64_t>(absl::ToInt64Nanoseconds(kTurn) / slowest[i], 1, kMaxCallsPerTurn);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Samples>> GatherSamples(BenchSetup& setup, const std::vector<BenchCase>& cases) {
  std::vector<Samples> samples;
  std::string mine;
  for (const BenchCase& item : cases) absl::StrAppend(&mine, absl::StrJoin(item.turn_ns, " "), " ");
  PSRING_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          setup.rendezvous().Exchange("bench times", mine));
  if (setup.rank() != 0) return samples;
  std::vector<std::vector<double>> ns;  // by rank, then by case and turn
  const size_t turns = static_cast<size_t>(setup.options().turns);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::vector<double>& row = ns.emplace_back();
    for (absl::string_view field : absl::StrSplit(all[rank], ' ', absl::SkipEmpty())) {
      if (!absl::SimpleAtod(field, &row.emplace_back())) row.clear();
    }
    if (row.size() != cases.size() * turns) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " sent ", row.size(), " times instead of ", cases.size() * turns));
    }
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    Samples& result = samples.emplace_back();
    result.calls_per_turn = cases[i].calls;
    result.wrong = !cases[i].is_limit && setup.options().checked_calls > 0 ? 0 : -1;
    for (size_t turn = 0; turn < turns; ++turn) {
      double sum = 0, least = ns[0][i * turns + turn], most = least;
      for (const std::vector<double>& row : ns) {
        const double time = row[i * turns + turn];
        sum += time;
        least = std::min(least, time);
        most = std::max(most, time);
      }
      const double whole = setup.options().across == AcrossRanks::kRankZero ? ns[0][i * turns + turn]
                           : setup.options().across == AcrossRanks::kMean   ? sum / setup.ranks()
                           : setup.options().across == AcrossRanks::kMin    ? least
                                                                            : most;
      result.times_us.push_back(whole / 1e3 / static_cast<double>(cases[i].calls));
    }
  }
  return samples;
}

}  // namespace psring
