#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/io/hash.h"
#include "common/workloads/zipf.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

constexpr size_t kNumbers = ClickShape::kNumbers, kLookups = ClickShape::kLookups;

class ClickSource : public SampleSource {
 public:
  ClickSource(std::vector<float> numbers, std::vector<int32_t> rows, std::vector<int32_t> labels)
      : numbers_(std::move(numbers)), rows_(std::move(rows)), labels_(std::move(labels)) {}

  int64_t count() const override { return static_cast<int64_t>(labels_.size()); }
  void Read(int64_t index, absl::Span<void* const> inputs, int32_t* labels) const override {
    const size_t i = static_cast<size_t>(index);
    std::copy_n(numbers_.data() + i * kNumbers, kNumbers, static_cast<float*>(inputs[0]));
    std::copy_n(rows_.data() + i * kLookups, kLookups, static_cast<int32_t*>(inputs[1]));
    *labels = labels_[i];
  }
  std::string Hash() const override {
    return absl::StrCat(HashBytes(numbers_.data(), numbers_.size() * sizeof(float)),
                        HashBytes(rows_.data(), rows_.size() * sizeof(int32_t)),
                        HashBytes(labels_.data(), labels_.size() * sizeof(int32_t)));
  }

 private:
  const std::vector<float> numbers_;
  const std::vector<int32_t> rows_, labels_;
};

// Spreads the most frequent items over a table: a permutation of [0, rows).
class Spread {
 public:
  Spread(int rows, uint64_t seed, int table) : rows_(static_cast<uint64_t>(rows)) {
    Random random(seed, 100 + static_cast<uint64_t>(table));
    shift_ = random.Below(static_cast<uint32_t>(rows));
    do {
      factor_ = random.Below(static_cast<uint32_t>(rows)) | 1;
    } while (std::gcd(factor_, rows_) != 1);
  }
  int32_t operator()(int item) const {
    return static_cast<int32_t>((static_cast<uint64_t>(item - 1) * factor_ + shift_) % rows_);
  }

 private:
  uint64_t rows_, factor_, shift_;
};

// What a row contributes to a click: almost normal, with mean 0 and deviation 1.
double EffectOf(int table, int32_t row, uint64_t seed) {
  return Random(seed, (uint64_t{1} << 62) + (static_cast<uint64_t>(table) << 32) + static_cast<uint64_t>(row))
      .Normal();
}

Dataset MakeLog(const ClickShape& shape, const std::vector<float>& weights, int64_t count, uint64_t seed,
                uint64_t stream) {
  const SampleSpec spec = ClickSpec(shape.rows);
  const Zipf zipf(shape.rows, shape.alpha);
  std::vector<Spread> spread;
  for (int table = 0; table < ClickShape::kTables; ++table) spread.emplace_back(shape.rows, seed, table);
  std::vector<float> numbers;
  std::vector<int32_t> rows, labels;
  numbers.reserve(static_cast<size_t>(count) * kNumbers);
  rows.reserve(static_cast<size_t>(count) * kLookups);
  labels.reserve(static_cast<size_t>(count));
  Random random(seed, stream);
  for (int64_t i = 0; i < count; ++i) {
    constexpr double kBias = -1, kRowWeight = .3;
    double logit = kBias;
    for (size_t n = 0; n < kNumbers; ++n) {
      numbers.push_back(random.Normal());
      logit += double{weights[n]} * numbers.back();
    }
    for (int table = 0; table < ClickShape::kTables; ++table) {
      for (int k = 0; k < spec.inputs[1].lookups[static_cast<size_t>(table)]; ++k) {
        rows.push_back(spread[static_cast<size_t>(table)](zipf.Next(random)));
        logit += kRowWeight * EffectOf(table, rows.back(), seed);
      }
    }
    const double click = 1 / (1 + std::exp(-logit));
    labels.push_back(static_cast<double>(random.Next() >> 11) * 0x1p-53 < click ? 1 : 0);
  }
  return Dataset(spec,
                 std::make_shared<const ClickSource>(std::move(numbers), std::move(rows), std::move(labels)));
}

}  // namespace

SampleSpec ClickSpec(int rows) {
  TensorSpec lookups{
      .name = "rows", .kind = TensorKind::kRows, .shape = {ClickShape::kLookups}, .range = rows};
  for (int table = 0; table < ClickShape::kTables; ++table) {
    lookups.lookups.push_back(ClickShape::kLookups / ClickShape::kTables +
                              (table < ClickShape::kLookups % ClickShape::kTables ? 1 : 0));
  }
  return {
      .inputs = {{.name = "numbers", .kind = TensorKind::kNumbers, .shape = {ClickShape::kNumbers}}, lookups},
      .classes = 2};
}

DataSplits MakeClicks(const ClickShape& shape, uint64_t seed) {
  constexpr float kNumberWeight = .3f;
  std::vector<float> weights(kNumbers);
  Random random(seed, 11);
  for (float& weight : weights) weight = kNumberWeight * random.Normal();
  return {.name = absl::StrCat("zipf:", shape.rows, ":", shape.alpha),
          .train = MakeLog(shape, weights, shape.train, seed, 12),
          .test = MakeLog(shape, weights, shape.test, seed, 13)};
}

}  // namespace psring
