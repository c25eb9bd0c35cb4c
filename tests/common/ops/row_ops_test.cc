// Sums of rows and products of vectors, of every implementation of Ops that has them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/kernels/threefry.h"
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

// Dropout of every implementation of Ops that has it, and the generator that it draws from.

// The known answers of Random123, the authors' library.
TEST(Threefry, GivesTheKnownAnswers) {
  const auto words = [](const Words4& counter, const Words4& key) {
    const Words4 bits = Threefry(counter, ThreefryKey(key));
    return std::vector<uint32_t>{bits.w0, bits.w1, bits.w2, bits.w3};
  };
  using Words = std::vector<uint32_t>;
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(words({0, 0, 0, 0}, {0, 0, 0, 0}), (Words{0x9c6ca96a, 0xe17eae66, 0xfc10ecd4, 0x5256a7d8}));
  EXPECT_EQ(words({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes, kOnes, kOnes}),
            (Words{0x2a881696, 0x57012287, 0xf6c7446e, 0xa16a6732}));
  EXPECT_EQ(words({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                  {0xa4093822, 0x299f31d0, 0x082efa98, 0xec4e6c89}),
            (Words{0x59cd1dbb, 0xb8879579, 0x86b5d00c, 0xac8b6d84}));
}

class DropoutOpsTest : public OpsTest {
 protected:
  Floats Apply(const DropoutShape& shape, const std::vector<uint64_t>& seeds) {
    const Tensor x(*device_, *stream_, Floats(shape.batch * shape.elements, 1.0f), ops_->activations()),
        y(*device_, *stream_, Floats(shape.batch * shape.elements, std::nanf("")), ops_->activations());
    ops_->families().dropout->Apply(shape, seeds.data(), x.span(), {}, y.span(), *stream_);
    return y.floats();
  }
};

INSTANTIATE_TEST_SUITE_P(All, DropoutOpsTest, testing::ValuesIn(AllImplementations()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(DropoutOpsTest, AgreesWithTheReference) {
  SKIP_WITHOUT(dropout);
  const std::vector<uint64_t> seeds = {7, 1, 7};
  for (const int batch : {0, 1, 3}) {
    for (const size_t elements : {1, 63, 64, 65, 200}) {
      for (const double probability : {0.0, .1, .9}) {
        for (const bool adds : {false, true}) {
          for (const bool trains : {false, true}) {
            SCOPED_TRACE(testing::Message() << batch << " x " << elements << ", " << probability
                                            << (adds ? ", residual" : "") << (trains ? "" : ", evaluation"));
            const DropoutShape shape{batch, elements, probability, 2};
            const size_t count = batch * elements;
            const auto run = [&](Ops& ops, const Memory& m) -> Results {
              const Tensor x = m.PutActivations(count, 1), residual = m.PutActivations(count, 2),
                           y = m.ResultActivations(count);
              ops.families().dropout->Apply(shape, trains ? seeds.data() : nullptr, x.span(),
                                            adds ? residual.span() : Span{}, y.span(), m.stream);
              return {y.floats()};
            };
            ExpectLikeTheReference(run);
          }
        }
      }
    }
  }
}

TEST_P(DropoutOpsTest, DropsTheGivenShareAndScalesTheRest) {
  SKIP_WITHOUT(dropout);
  for (const double probability : {.1, .5, .75}) {
    const Floats y = Apply({4, 50'000, probability, 0}, {1, 2, 3, 4});
    double zeros = 0;
    for (const float value : y) {
      if (value == 0) {
        ++zeros;
      } else {
        ASSERT_NEAR(value, 1 / (1 - probability), 4e-3 / (1 - probability));
      }
    }
    const double deviation = std::sqrt(probability * (1 - probability) / double(y.size()));
    EXPECT_NEAR(zeros / double(y.size()), probability, 5 * deviation);
  }
}

TEST_P(DropoutOpsTest, DropsOtherElementsOfOtherSamplesAndLayersOnly) {
  SKIP_WITHOUT(dropout);
  const auto differing = [](const Floats& a, const Floats& b) {
    double count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += (a[i] == 0) != (b[i] == 0);
    return count / double(a.size());
  };
  const size_t elements = 20'000;
  const Floats one = Apply({1, elements, .5, 3}, {8}), two = Apply({2, elements, .5, 3}, {9, 8});
  const Floats first(two.begin(), two.begin() + elements), second(two.begin() + elements, two.end());
  EXPECT_EQ(second, one) << "wherever the sample is in a batch";
  EXPECT_NEAR(differing(first, second), .5, .02);
  EXPECT_NEAR(differing(Apply({1, elements, .5, 4}, {8}), one), .5, .02);
  const Floats low(one.begin(), one.begin() + elements / 2), high(one.begin() + elements / 2, one.end());
  EXPECT_NEAR(differing(low, high), .5, .025) << "elements";
}

TEST_P(DropoutOpsTest, APartOfASampleLosesWhatTheWholeSampleLosesThere) {
  SKIP_WITHOUT(dropout);
  const Floats whole = Apply({1, 300, .5, 3}, {8});
  for (const size_t first : {1, 16, 63, 64, 65, 100, 299}) {
    for (const size_t count : {size_t{1}, size_t{70}, size_t{200}}) {
      if (first + count > whole.size()) continue;
      SCOPED_TRACE(testing::Message() << count << " from " << first);
      const Floats part = Apply({2, count, .5, 3, first}, {9, 8});
      const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(first);
      EXPECT_EQ(Floats(part.begin() + static_cast<std::ptrdiff_t>(count), part.end()),
                Floats(begin, begin + static_cast<std::ptrdiff_t>(count)));
    }
  }
}

}  // namespace
}  // namespace psring
