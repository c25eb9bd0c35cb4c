// The numbers that a benchmark sends, and what must come back. Whole numbers so small that every partial sum
// is exact in every type, in whatever order ranks are added; so a check asks for equality. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/reduce/reduce.h"

namespace psring {

// What did not come out as it must.
struct Mismatch {
  size_t wrong = 0;  // elements
  size_t first = 0;  // the first of them
  float got = 0, wanted = 0;
};

// Element i of rank r is k(i) + d(r, i). k counts up from 1 and starts over; d is 0 over all ranks, because
// ranks come in pairs of which one adds what the other takes away (of an odd number the one in the middle
// adds nothing). Hence sum N k(i), mean k(i), and both minimum and maximum differ from every rank's own.
class TestValues {
 public:
  // At most 64 ranks.
  TestValues(DType type, int ranks);

  float Of(int rank, size_t i) const;
  float Reduced(ReduceOp op, size_t i) const;

  // data[i] = Of(rank, first + i).
  void Fill(int rank, size_t first, Span data) const;

  // Holds data[i] against Of(rank, first + i), or against Reduced(op, first + i). The mean of float32 may be
  // off by the rounding of 1/N and of one product; everything else must be equal.
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

// Fills with a pattern that is a NaN in every type: what a call forgets to write is then found.
void Poison(Span data);

}  // namespace psring
