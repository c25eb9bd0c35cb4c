// The values that a benchmark sends, and the expected results. The values are integers so small that every
// partial sum is exact in every type, in any order of addition, so results must be equal. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "common/device/device.h"
#include "common/kernels/reduce.h"

namespace psring {

// The wrong elements of a result.
struct Mismatch {
  size_t wrong = 0;  // elements
  size_t first = 0;  // index of the first one
  float got = 0, wanted = 0;
};

// Element i of rank r is k(i) + d(r, i). k counts up from 1 and starts over. d sums to 0 over all ranks:
// ranks form pairs, of which one adds what the other subtracts (with an odd number the middle one adds
// nothing). Hence the sum is N k(i), the mean k(i), and both minimum and maximum differ from every rank's own
// value.
class TestValues {
 public:
  // With more ranks, a partial sum may not be exact.
  static int MostRanks(DType type);
  // At most MostRanks(type) ranks.
  TestValues(DType type, int ranks);

  float Of(int rank, size_t i) const;
  float Reduced(ReduceOp op, size_t i) const;

  // data[i] = Of(rank, first + i).
  void Fill(int rank, size_t first, Span data) const;

  // Compares data[i] with Of(rank, first + i), or with Reduced(op, first + i). The mean of float32 may differ
  // by the rounding of 1/N and of one product; everything else must be equal.
  Mismatch Compare(int rank, size_t first, ConstSpan data) const;
  Mismatch CompareReduced(ReduceOp op, size_t first, ConstSpan data) const;

 private:
  std::vector<float> PeriodOf(int rank) const;
  Mismatch CompareWithPeriod(const std::vector<float>& period, float tolerance, size_t first,
                             ConstSpan data) const;

  const DType type_;
  const int ranks_;
  const size_t base_period_, delta_period_;  // of k and d in i; coprime
};

// Fills with a pattern that is a NaN in every type, to find elements that a call does not write.
void Poison(Span data);

}  // namespace psring
