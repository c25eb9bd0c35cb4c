// Sums of rows and products of vectors, of every implementation of Ops that has them.
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/common/ops/ops_fixture.h"
#include "tests/has.h"

namespace psring {
namespace {

class RowOpsTest : public OpsTest {};

Results SumBags(Ops& ops, const BagShape& s, const Memory& m) {
  BagOps& family = *ops.families().bags;
  std::vector<int32_t> at(static_cast<size_t>(s.batch) * s.lookups);
  for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<int32_t>(i * i % s.rows);
  const OnDevice<int32_t> there(m.device, m.stream, at);
  // Bags of other tables stay as they are.
  const Tensor values = m.Put(Random(static_cast<size_t>(s.rows) * s.width, 1)),
               y = m.PutActivations(static_cast<size_t>(s.batch) * s.all_bags * s.width, 2);
  family.Forward(s, there.data(), values.span(), y.span(), m.stream);
  return {y.floats()};
}

Results AddGroups(Ops& ops, int width, const Memory& m) {
  const std::vector<int32_t> slots = {0, 2, 3}, begin = {0, 1, 4, 6}, bags = {4, 0, 0, 3, 1, 2};
  const Tensor dy = m.PutActivations(size_t{5} * width, 3), gradient = m.Put(Random(size_t{4} * width, 4));
  ops.families().bags->Backward(width, {slots, begin, bags}, dy.span(), gradient.span(), m.stream);
  return {gradient.floats()};
}

Results Multiply(Ops& ops, const DotShape& s, const Memory& m) {
  DotOps& family = *ops.families().dots;
  const size_t first = static_cast<size_t>(s.batch) * s.width, others = first * s.others;
  const Tensor a = m.PutActivations(first, 1), b = m.PutActivations(others, 2),
               y = m.ResultActivations(s.batch * s.outputs()),
               dy = m.PutActivations(s.batch * s.outputs(), 3), da = m.ResultActivations(first),
               db = m.ResultActivations(others);
  family.Forward(s, a.span(), b.span(), y.span(), m.stream);
  family.Backward(s, a.span(), b.span(), dy.span(), da.span(), db.span(), m.stream);
  return {y.floats(), da.floats(), db.floats()};
}

TEST_P(RowOpsTest, BagsAgreeWithTheReference) {
  SKIP_WITHOUT(bags);
  // batch, lookups; first, bags, per_bag; rows, width; all_bags, first_bag
  for (const BagShape& shape : {BagShape{1, 1, 0, 1, 1, 1, 1, 1, 0},
                                {5, 9, 2, 2, 3, 50, 64, 4, 1},
                                {30, 6, 0, 6, 1, 7, 33, 6, 0},
                                {0, 2, 1, 1, 1, 3, 70, 2, 1}}) {
    SCOPED_TRACE(testing::Message() << shape.batch << " x " << shape.bags << " x " << shape.width);
    ExpectLikeTheReference([&](Ops& ops, const Memory& m) { return SumBags(ops, shape, m); });
  }
  for (const int width : {1, 16, 64, 65})
    ExpectLikeTheReference([&](Ops& ops, const Memory& m) { return AddGroups(ops, width, m); });
}

TEST_P(RowOpsTest, ARowOutsideTheTableIsAnErrorWithItsLookup) {
  SKIP_WITHOUT(bags);
  for (const int32_t bad : {-1, 5, 1'000'000'000}) {
    const auto stream = device_->NewStream(StreamKind::kCompute, "bad row");
    const OnDevice<int32_t> at(*device_, *stream, {4, bad, 0});
    const auto values = Put(Floats(5 * 2));
    const Tensor y(*device_, *stream, Floats(6), ops_->activations());
    const BagShape shape{/*batch=*/3, /*lookups=*/1, 0, /*bags=*/1, /*per_bag=*/1,
                         /*rows=*/5,  /*width=*/2,   1, 0};
    ops_->families().bags->Forward(shape, at.data(), values.span(), y.span(), *stream);
    EXPECT_THAT(stream->Synchronize().message(),
                Has(absl::StrCat("row ", bad, " of lookup 1 of the batch is outside a table of 5 rows")));
  }
}

TEST_P(RowOpsTest, ProductsAgreeWithTheReference) {
  SKIP_WITHOUT(dots);
  for (const Dots kind : {Dots::kAllPairs, Dots::kFirstWithOthers}) {
    for (const auto& [batch, others, width] :
         {std::tuple{0, 1, 1}, {1, 1, 1}, {3, 8, 64}, {5, 6, 33}, {2, 40, 128}}) {
      SCOPED_TRACE(testing::Message() << batch << " x " << others << " x " << width);
      const DotShape shape{kind, batch, others, width};
      ExpectLikeTheReference([&](Ops& ops, const Memory& m) { return Multiply(ops, shape, m); });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, RowOpsTest, testing::ValuesIn(AllImplementations()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace psring
