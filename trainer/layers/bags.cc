#include "trainer/layers/bags.h"

#include "common/base/check.h"
#include "trainer/tables/touched_rows.h"

namespace psring {
namespace {

int BagsOf(const std::vector<Table>& tables) {
  int bags = 0;
  for (const Table& table : tables) bags += table.bags;
  return bags;
}

}  // namespace

BagLayer::BagLayer(const std::vector<Table>& tables, int lookups, ParameterLayout& layout)
    : Layer({.outputs = static_cast<size_t>(BagsOf(tables)) * static_cast<size_t>(tables.at(0).width)}),
      input_(tables.at(0).input) {
  int first_bag = 0;
  for (const Table& table : tables) {
    PSRING_CHECK(table.input == input_ && table.width == tables[0].width);
    const BagShape shape{.batch = 0,
                         .lookups = lookups,
                         .first = table.first_lookup,
                         .bags = table.bags,
                         .per_bag = table.per_bag,
                         .rows = table.rows,
                         .width = table.width,
                         .all_bags = BagsOf(tables),
                         .first_bag = first_bag};
    own_.push_back({layout.AddTable(table), shape});
    first_bag += table.bags;
  }
}

absl::Status BagLayer::Forward(const LayerPass& pass) const {
  PSRING_CHECK(pass.rows != nullptr && pass.lookups != nullptr);
  for (const Own& own : own_) {
    const TouchedRows::OfTable& table = pass.rows->of_tables()[static_cast<size_t>(own.number)];
    BagShape shape = own.shape;
    shape.batch = pass.batch;
    const auto* at = static_cast<const int32_t*>(pass.x[0].data);
    if (!table.is_entire_table) {
      shape.rows = static_cast<int>(table.rows.size());
      at = pass.lookups->slots_at[static_cast<size_t>(input_)].data();
    }
    const ConstSpan values(table.values, static_cast<size_t>(shape.rows) * static_cast<size_t>(shape.width));
    pass.ops.families().bags->Forward(shape, at, values, pass.y, pass.stream);
  }
  return absl::OkStatus();
}

absl::Status BagLayer::BackwardWeight(const LayerPass& pass) const {
  for (const Own& own : own_) {
    std::vector<float>& gradient = pass.rows->of_tables()[static_cast<size_t>(own.number)].gradient;
    pass.ops.families().bags->Backward(own.shape.width,
                                       pass.lookups->tables[static_cast<size_t>(own.number)].groups(),
                                       pass.dy, {gradient.data(), gradient.size()}, pass.stream);
  }
  return absl::OkStatus();
}

}  // namespace psring
