#include "ring_worker/bench/bench_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"

namespace psring {
namespace {

// Elements compared at a time, so that the converted ones stay in the cache.
constexpr size_t kHashBlock = 4096;

}  // namespace

// If the larger half of the ranks is added first, the sum is at most (3 + 3) ranks / 2 in 16 bits. bfloat16
// represents integers up to 256 exactly, float16 up to 2048, and float32 up to 2^24.
int TestValues::MostRanks(DType type) {
  return type == DType::kBFloat16 ? 64 : type == DType::kFloat16 ? 512 : 1024;
}

TestValues::TestValues(DType type, int ranks)
    : type_(type),
      ranks_(ranks),
      base_period_(type == DType::kFloat32 ? 97 : 3),
      delta_period_(type == DType::kFloat32 ? 61 : 4) {
  PSRING_CHECK(ranks >= 1 && ranks <= MostRanks(type));
}

float TestValues::Of(int rank, size_t i) const {
  const float base = static_cast<float>(i % base_period_ + 1);
  const int partner = ranks_ - 1 - rank;
  if (rank == partner) return base;
  const size_t pair = static_cast<size_t>(std::min(rank, partner));
  const float delta = static_cast<float>((pair * 7 + i * 3) % delta_period_);
  return rank < partner ? base + delta : base - delta;
}

float TestValues::Reduced(ReduceOp op, size_t i) const {
  const float base = static_cast<float>(i % base_period_ + 1);
  switch (op) {
    case ReduceOp::kSum:
      return base * static_cast<float>(ranks_);
    case ReduceOp::kMean:
      return base;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      break;
  }
  float result = Of(0, i);
  for (int rank = 1; rank < ranks_; ++rank) {
    result = op == ReduceOp::kMin ? std::min(result, Of(rank, i)) : std::max(result, Of(rank, i));
  }
  return result;
}

std::vector<float> TestValues::PeriodOf(int rank) const {
  std::vector<float> period(base_period_ * delta_period_);
  for (size_t i = 0; i < period.size(); ++i) period[i] = Of(rank, i);
  return period;
}

void TestValues::Fill(int rank, size_t first, Span data) const {
  PSRING_CHECK(data.type == type_);
  const std::vector<float> period = PeriodOf(rank);
  const size_t head = std::min(data.count, period.size());
  std::vector<float> start(head);
  for (size_t i = 0; i < head; ++i) start[i] = period[(first + i) % period.size()];
  cpu::Convert(DType::kFloat32, start.data(), type_, data.data, head);
  // The rest repeats the first period.
  char* const bytes = static_cast<char*>(data.data);
  for (size_t done = head * SizeOf(type_); done < data.bytes();) {
    const size_t more = std::min(done, data.bytes() - done);
    std::memcpy(bytes + done, bytes, more);
    done += more;
  }
}

Mismatch TestValues::CompareWithPeriod(const std::vector<float>& period, float tolerance, size_t first,
                                       ConstSpan data) const {
  PSRING_CHECK(data.type == type_);
  Mismatch mismatch;
  std::vector<float> block(std::min(kHashBlock, data.count));
  size_t at = first % period.size();
  for (size_t begin = 0; begin < data.count; begin += block.size()) {
    const size_t count = std::min(block.size(), data.count - begin);
    cpu::Convert(type_, data.Slice(begin, count).data, DType::kFloat32, block.data(), count);
    for (size_t i = 0; i < count; ++i) {
      const float wanted = period[at];
      if (++at == period.size()) at = 0;
      // Negated so that NaN is a mismatch.
      if (!(std::fabs(block[i] - wanted) <= tolerance * wanted)) {
        if (mismatch.wrong++ == 0) {
          mismatch.first = begin + i;
          mismatch.got = block[i];
          mismatch.wanted = wanted;
        }
      }
    }
  }
  return mismatch;
}

Mismatch TestValues::Compare(int rank, size_t first, ConstSpan data) const {
  // With a tolerance of 0 only equal values pass, also if `wanted` is negative.
  std::vector<float> period = PeriodOf(rank);
  return CompareWithPeriod(period, 0, first, data);
}

Mismatch TestValues::CompareReduced(ReduceOp op, size_t first, ConstSpan data) const {
  std::vector<float> period(base_period_ * delta_period_);
  for (size_t i = 0; i < period.size(); ++i) period[i] = Reduced(op, i);
  // 1/N and the product are each rounded by at most half a unit in the last place of 24 bits; an
  // implementation that divides before it adds rounds once per rank.
  const bool rounds = op == ReduceOp::kMean && type_ == DType::kFloat32;
  const float tolerance = rounds ? static_cast<float>(ranks_ + 2) * 0x1p-24f : 0;
  return CompareWithPeriod(period, tolerance, first, data);
}

void Poison(Span data) { std::memset(data.data, 0xff, data.bytes()); }

}  // namespace psring
