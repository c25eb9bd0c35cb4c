#include "common/tables/row_storage.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/base/random.h"
#include "common/tables/merge_rows.h"
#include "tests/common/ops/reference_ops.h"

namespace psring {
namespace {

const OptimizerKind kKinds[] = {OptimizerKind::kSgd, OptimizerKind::kAdagrad, OptimizerKind::kAdam};

TEST(RowStorage, AnUpdateChangesOnlyItsRowsWithTheBitsOfADenseUpdate) {
  const auto host = MakeCpuDevice();
  const auto stream = host->NewStream(StreamKind::kCompute, "test");
  const auto ops = MakeReferenceOps();
  const std::vector<Table> tables = {{.name = "a", .rows = 3, .width = 20, .bound = 1},
                                     {.name = "b", .rows = 9, .width = 5, .bound = 1}};
  for (const OptimizerKind kind : kKinds) {
    const OptimizerConfig config{.kind = kind};
    auto storage = RowStorage::Create(tables, config, *host).value();
    storage.Initialize(7);
    const std::vector<float> before(storage.values().floats(), storage.values().floats() + 60 + 45);
    std::vector<float> dense(before.begin() + 60, before.end()), dense_gradient(45);
    const auto optimizer = Optimizer::Create(config, *host, 45);
    const std::vector<int32_t> rows = {0, 4, 8};
    Random random(1);
    for (int step = 0; step < 3; ++step) {
      std::vector<float> gradient(15);
      for (float& value : gradient) value = random.Uniform(-1, 1);
      for (int i = 0; i < 15; ++i) dense_gradient[rows[i / 5] * 5 + i % 5] = gradient[i];
      storage.Update(1, rows, gradient.data(), StepOf(config, 4, .1, step + 1));
      optimizer->Apply(0, {dense.data(), 45}, {dense_gradient.data(), 45}, 4, .1, step + 1, *ops, *stream);
    }
    for (int i = 0; i < 45; ++i) {
      const bool is_updated = i / 5 % 4 == 0;
      EXPECT_EQ(storage.values().floats()[60 + i], is_updated ? dense[i] : before[60 + i]) << i;
    }
    EXPECT_EQ(std::vector<float>(storage.values().floats(), storage.values().floats() + 60),
              std::vector<float>(before.begin(), before.begin() + 60));
  }
}

TEST(RowStorage, PartsHaveTheInitialRowsOfTheWholeTable) {
  const auto host = MakeCpuDevice();
  const std::vector<Table> tables = {{.name = "a", .rows = 7, .width = 3, .bound = .5}};
  const OptimizerConfig sgd{.kind = OptimizerKind::kSgd};
  auto whole = RowStorage::Create(tables, sgd, *host);
  whole->Initialize(3);
  for (int part = 0; part < 3; ++part) {
    auto own = RowStorage::Create(tables, sgd, *host, {part, 3});
    own->Initialize(3);
    ASSERT_EQ(own->values().count, part == 0 ? 9 : 6);
    for (size_t i = 0; i < own->values().count; ++i)
      EXPECT_EQ(own->values().floats()[i], whole->values().floats()[(i / 3 * 3 + part) * 3 + i % 3]);
  }
}

TEST(RowStorage, OptimizersThatChangeAllRowsAreRejected) {
  EXPECT_EQ(CheckRowOptimizer({.kind = OptimizerKind::kMomentum}).message(),
            "--optimizer momentum changes all rows of a table in every step; use sgd, adagrad or adam");
  EXPECT_FALSE(CheckRowOptimizer({.kind = OptimizerKind::kAdamW}).ok());
  for (const OptimizerKind kind : kKinds) EXPECT_TRUE(CheckRowOptimizer({.kind = kind}).ok());
}

TEST(AddUpRows, AddsInTheOrderOfSources) {
  const std::vector<int32_t> first = {1, 5}, second = {0, 1, 7}, third = {1, 7};
  const std::vector<float> a = {1e8f, 1}, b = {2, 3, 4}, c = {-1e8f, 5};
  const std::vector<RowGradient> sources = {{first, a.data()}, {second, b.data()}, {third, c.data()}};
  std::vector<int32_t> rows;
  std::vector<float> sums;
  AddUpRows(sources, 1, rows, sums);
  EXPECT_EQ(rows, (std::vector<int32_t>{0, 1, 5, 7}));
  EXPECT_EQ(sums, (std::vector<float>{2, (1e8f + 3) + -1e8f, 1, 9}));
  AddUpRows({}, 1, rows, sums);
  EXPECT_TRUE(rows.empty());
}

}  // namespace
}  // namespace psring
