// The values that a benchmark sends and checks: exact in every type and order, so that every error is
// detected.
#include "ring_worker/bench/bench_values.h"

#include <gtest/gtest.h>

#include <vector>

namespace psring {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax};

// `count` elements of `type`, as floats.
struct BenchElements {
  BenchElements(DType its_type, size_t count) : type(its_type), bytes(count * SizeOf(its_type)) {}
  size_t count() const { return bytes.size() / SizeOf(type); }
  Span span() { return {bytes.data(), count(), type}; }
  float at(size_t i) {
    float value = 0;
    cpu::Convert(type, span().Slice(i, 1).data, DType::kFloat32, &value, 1);
    return value;
  }
  void set(size_t i, float value) { cpu::Convert(DType::kFloat32, &value, type, span().Slice(i, 1).data, 1); }

  DType type;
  std::vector<char> bytes;
};

// The sum of the ranks in some order, with each partial result rounded to `type`.
BenchElements ReduceInOrder(const TestValues& values, DType type, ReduceOp op, int ranks, int first_rank,
                            size_t count) {
  BenchElements result(type, count), next(type, count);
  values.Fill(first_rank, 0, result.span());
  for (int step = 1; step < ranks; ++step) {
    values.Fill((first_rank + step) % ranks, 0, next.span());
    const void* sources[] = {result.span().data, next.span().data};
    cpu::Reduce(op, type, count, result.span().data, sources, 2);
  }
  if (op == ReduceOp::kMean) cpu::Scale(type, count, result.span().data, 1.0f / static_cast<float>(ranks));
  return result;
}

TEST(BenchValues, EveryOrderOfEveryReductionIsExactInEveryType) {
  for (const DType type : kTypes) {
    for (const int ranks : {1, 2, 3, 4, 7, 8, 41, TestValues::MostRanks(type)}) {
      const TestValues values(type, ranks);
      for (const ReduceOp op : kOps) {
        for (const int first : {0, ranks / 2, ranks - 1}) {
          BenchElements result = ReduceInOrder(values, type, op, ranks, first, 1000);
          const Mismatch mismatch = values.CompareReduced(op, 0, result.span());
          EXPECT_EQ(mismatch.wrong, 0)
              << Name(type) << " " << Name(op) << " of " << ranks << " ranks: element " << mismatch.first
              << " is " << mismatch.got << ", not " << mismatch.wanted;
        }
      }
    }
  }
}

TEST(BenchValues, OneWrongElementIsNamed) {
  for (const DType type : kTypes) {
    const TestValues values(type, 4);
    for (const size_t at : {size_t{0}, size_t{4095}, size_t{4096}, size_t{9999}}) {
      BenchElements result = ReduceInOrder(values, type, ReduceOp::kSum, 4, 0, 10'000);
      const float right = result.at(at);
      result.set(at, right + 4);
      const Mismatch mismatch = values.CompareReduced(ReduceOp::kSum, 0, result.span());
      EXPECT_EQ(mismatch.wrong, 1);
      EXPECT_EQ(mismatch.first, at);
      EXPECT_EQ(mismatch.got, right + 4);
      EXPECT_EQ(mismatch.wanted, right);
    }
  }
}

TEST(BenchValues, AMissingOrRepeatedRankIsDetected) {
  for (const DType type : kTypes) {
    for (const int ranks : {2, 3, 8}) {
      const TestValues values(type, ranks);
      BenchElements lacking = ReduceInOrder(values, type, ReduceOp::kSum, ranks - 1, 0, 500);
      EXPECT_GT(values.CompareReduced(ReduceOp::kSum, 0, lacking.span()).wrong, 300) << ranks;
      BenchElements twice = ReduceInOrder(values, type, ReduceOp::kSum, ranks, 0, 500);
      BenchElements again(type, 500);
      values.Fill(0, 0, again.span());
      const void* sources[] = {twice.span().data, again.span().data};
      cpu::Reduce(ReduceOp::kSum, type, 500, twice.span().data, sources, 2);
      EXPECT_GT(values.CompareReduced(ReduceOp::kSum, 0, twice.span()).wrong, 300) << ranks;
    }
  }
}

TEST(BenchValues, UnwrittenElementsAreDetected) {
  for (const DType type : kTypes) {
    const TestValues values(type, 2);
    BenchElements result(type, 100);
    Poison(result.span());
    EXPECT_EQ(values.CompareReduced(ReduceOp::kSum, 0, result.span()).wrong, 100);
    EXPECT_EQ(values.Compare(1, 0, result.span()).wrong, 100);
  }
}

TEST(BenchValues, PartsAtTheWrongPlaceAreDetected) {
  for (const DType type : kTypes) {
    const TestValues values(type, 2);
    BenchElements part(type, 64);
    values.Fill(1, 64, part.span());
    EXPECT_EQ(values.Compare(1, 64, part.span()).wrong, 0);
    EXPECT_GT(values.Compare(1, 0, part.span()).wrong, 30) << Name(type);
    EXPECT_GT(values.Compare(0, 64, part.span()).wrong, 30) << Name(type);
  }
}

TEST(BenchValues, FillMayBeginAtAnyElement) {
  const TestValues values(DType::kFloat32, 3);
  BenchElements part(DType::kFloat32, 20'000);
  values.Fill(2, 12'345, part.span());
  for (const size_t i : {size_t{0}, size_t{1}, size_t{5916}, size_t{5917}, size_t{19'999}})
    EXPECT_EQ(part.at(i), values.Of(2, 12'345 + i)) << i;
}

}  // namespace
}  // namespace psring
