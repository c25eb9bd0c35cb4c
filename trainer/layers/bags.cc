#include "common/base/check.h"
#include "trainer/layers/layers.h"
#include "trainer/tables/touched_rows.h"

namespace psring {
namespace {

int BagsOf(const std::vector<Table>& tables) {
  int bags = 0;
  for (const Table& table : tables) bags += table.bags;
  return bags;
}

class BagLayer : public Layer {
 public:
  BagLayer(const std::vector<Table>& tables, int lookups, ParameterLayout& layout)
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
      own_.push_back({static_cast<size_t>(layout.AddTable(table)), shape});
      first_bag += table.bags;
    }
  }

  void Initialize(Random&, float*) const override {}
  absl::Status Forward(const LayerPass& pass) const override {
    PSRING_CHECK(pass.rows != nullptr && pass.lookups != nullptr);
    for (const Own& own : own_) {
      const TouchedRows::OfTable& table = pass.rows->of_tables()[own.number];
      BagShape shape = ForBatch(own.shape, pass.batch);
      const auto* at = static_cast<const int32_t*>(pass.x[0].data);
      if (!table.is_entire_table) {
        shape.rows = static_cast<int>(table.rows.size());
        at = pass.lookups->slots_at[static_cast<size_t>(input_)].data();
      }
      const ConstSpan values(table.values,
                             static_cast<size_t>(shape.rows) * static_cast<size_t>(shape.width));
      pass.ops.families().bags->Forward(shape, at, values, pass.y, pass.stream);
    }
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerPass&) const override { return absl::OkStatus(); }
  absl::Status BackwardWeight(const LayerPass& pass) const override {
    for (const Own& own : own_) {
      std::vector<float>& gradient = pass.rows->of_tables()[own.number].gradient;
      pass.ops.families().bags->Backward(own.shape.width, pass.lookups->tables[own.number].groups(), pass.dy,
                                         {gradient.data(), gradient.size()}, pass.stream);
    }
    return absl::OkStatus();
  }

 private:
  struct Own {
    size_t number;  // of the table in the layout
    BagShape shape;
  };
  std::vector<Own> own_;
  int input_;
};

}  // namespace

std::unique_ptr<Layer> MakeBags(const std::vector<Table>& tables, int lookups, ParameterLayout& layout) {
  return std::make_unique<BagLayer>(tables, lookups, layout);
}

}  // namespace psring
