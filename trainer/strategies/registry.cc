// The implementations that the rows of the table of strategies name.
#include <algorithm>

#include "common/base/check.h"
#include "trainer/strategies/strategies.h"

namespace psring {

// all_reduce.cc: the group sums the gradients, and every rank makes the same update. A single rank needs no
// group.
absl::StatusOr<Strategy> MakeAllReduce(const StrategyContext& context);
// zero.cc: each rank updates one shard of each bucket; StrategyContext::shards: of what else it has only
// shards.
absl::StatusOr<Strategy> MakeZero(const StrategyContext& context);
// gathered_rows.cc: the group exchanges the rows that all ranks touched.
absl::StatusOr<std::unique_ptr<RowStrategy>> MakeGatheredRows(const StrategyContext& context);

namespace {

struct Implementation {
  const char* name;  // StrategyRow::implementation
  decltype(StrategyRow::make) make;
  decltype(StrategyRow::make_rows) make_rows = nullptr;
};

// An implementation is one file with such functions.
constexpr Implementation kImplementations[] = {
    {"none", MakeNone, MakeLocalRows},
    {"replicas", MakeNone},
    {"all-reduce", MakeAllReduce, MakeGatheredRows},
    {"shards", MakeZero, MakeGatheredRows},
    {"shards and units", MakeZero},
    {"all-reduce and rows on servers", MakeAllReduce, MakeOnlyRowsOnServers},
    {"servers", MakeParameterServer, MakeServerRows},
};

Implementation ImplementationOf(const StrategyRow& row) {
  if (row.make != nullptr) return {row.name.c_str(), row.make, row.make_rows};
  const auto* found = std::ranges::find(kImplementations, row.implementation, &Implementation::name);
  PSRING_CHECK(found != std::end(kImplementations));
  return *found;
}

}  // namespace

absl::StatusOr<Strategy> Implement(const StrategyRow& row, const StrategyContext& context) {
  return ImplementationOf(row).make(context);
}

absl::StatusOr<std::unique_ptr<RowStrategy>> ImplementRows(const StrategyRow& row,
                                                           const StrategyContext& context) {
  return ImplementationOf(row).make_rows(context);
}

bool TrainsTables(const StrategyRow& row) { return ImplementationOf(row).make_rows != nullptr; }

}  // namespace psring
