#include "trainer/tables/touched_rows.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {
namespace {

size_t At(int i) { return static_cast<size_t>(i); }

// Sorts by row and then by lookup: rows are in the upper half. Three passes over 11 bits each are faster than
// comparisons if there are many keys; fewer if the rows are small numbers.
void SortKeys(std::vector<uint64_t>& keys, uint32_t highest_row) {
  constexpr size_t kFewKeys = 256;
  if (keys.size() < kFewKeys) return std::sort(keys.begin(), keys.end());
  constexpr int kBits = 11;
  std::vector<uint64_t> other(keys.size());
  for (int shift = 32; shift < 64 && (highest_row >> (shift - 32)) > 0; shift += kBits) {
    std::array<uint32_t, (1 << kBits) + 1> begin = {};
    const auto digit = [&](uint64_t key) { return (key >> shift) & ((1 << kBits) - 1); };
    for (const uint64_t key : keys) ++begin[digit(key) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    for (const uint64_t key : keys) other[begin[digit(key)]++] = key;
    keys.swap(other);
  }
}

}  // namespace

TouchedRows::TouchedRows(const ParameterLayout& layout, const SampleSpec& samples)
    : layout_(layout), samples_(samples), of_tables_(layout.tables().size()), inputs_(samples.inputs.size()) {
  for (const Table& table : layout.tables()) {
    PSRING_CHECK(At(table.input) < samples.inputs.size());
    PSRING_CHECK(table.first_lookup + table.bags * table.per_bag <=
                 static_cast<int>(samples.inputs[At(table.input)].count()));
  }
}

int TouchedRows::BagsOfInput(int input) const {
  int bags = 0;
  for (const Table& table : tables()) bags += table.input == input ? table.bags : 0;
  return bags;
}

void TouchedRows::ReadFrom(const float* values) {
  for (size_t t = 0; t < of_tables_.size(); ++t) {
    of_tables_[t].values = values + tables()[t].first;
    of_tables_[t].is_entire_table = true;
  }
}

void TouchedRows::ReadZeros() {
  for (size_t t = 0; t < of_tables_.size(); ++t) {
    of_tables_[t].pulled.assign(of_tables_[t].rows.size() * At(tables()[t].width), 0.0f);
    of_tables_[t].values = of_tables_[t].pulled.data();
    of_tables_[t].is_entire_table = false;
  }
}

void TouchedRows::EndWorker(bool is_last) {
  for (OfTable& table : of_tables_) {
    if (table.sum.size() != table.gradient.size()) table.sum.assign(table.gradient.size(), 0.0f);
    for (size_t i = 0; i < table.sum.size(); ++i) table.sum[i] += table.gradient[i];
    if (is_last) {
      table.gradient.swap(table.sum);
      table.sum.clear();
    } else {
      std::fill(table.gradient.begin(), table.gradient.end(), 0.0f);
    }
  }
}

Batch TouchedRows::gathered(size_t number) const {
  const size_t first = first_samples_[number];
  Batch batch{.size = static_cast<int>(first_samples_[number + 1] - first),
              .labels = labels_.data() + first * At(samples_.labels)};
  for (size_t i = 0; i < inputs_.size(); ++i) {
    batch.inputs[i] = inputs_[i].data() + first * samples_.inputs[i].count();
  }
  return batch;
}

absl::Status TouchedRows::Plan(const Dataset& data, const std::vector<std::vector<int64_t>>& batches) {
  // The lookups of all batches, one after the other.
  size_t samples = 0;
  for (const std::vector<int64_t>& batch : batches) samples += batch.size();
  std::array<void*, kMaxSampleInputs> to = {};
  for (size_t i = 0; i < inputs_.size(); ++i) {
    inputs_[i].resize(std::max<size_t>(1, samples * samples_.inputs[i].count()));
  }
  labels_.resize(std::max<size_t>(1, samples * At(samples_.labels)));
  size_t before = 0;
  first_samples_ = {0};
  for (const std::vector<int64_t>& batch : batches) {
    for (size_t i = 0; i < inputs_.size(); ++i)
      to[i] = inputs_[i].data() + before * samples_.inputs[i].count();
    data.Gather(batch, absl::MakeConstSpan(to.data(), inputs_.size()),
                labels_.data() + before * At(samples_.labels));
    before += batch.size();
    first_samples_.push_back(before);
  }
  batches_.resize(batches.size());
  for (size_t b = 0; b < batches.size(); ++b) {
    batches_[b].tables.resize(tables().size());
    batches_[b].slots_at.resize(inputs_.size());
    for (const Table& table : tables()) {
      batches_[b].slots_at[At(table.input)].resize(batches[b].size() *
                                                   samples_.inputs[At(table.input)].count());
    }
  }
  std::vector<int> bags_before(inputs_.size());  // of the tables so far, by input
  for (size_t t = 0; t < tables().size(); ++t) {
    const Table& table = tables()[t];
    OfTable& own = of_tables_[t];
    const size_t lookups = samples_.inputs[At(table.input)].count(), used = At(table.bags * table.per_bag);
    const int first_bag = bags_before[At(table.input)], all_bags = BagsOfInput(table.input);
    bags_before[At(table.input)] += table.bags;
    // A key is a row and a lookup's number among all batches' lookups of this table.
    keys_.clear();
    const uint32_t* const all = inputs_[At(table.input)].data();
    for (size_t sample = 0; sample < samples; ++sample) {
      const uint32_t* const from = all + sample * lookups + At(table.first_lookup);
      for (size_t k = 0; k < used; ++k) {
        if (from[k] >= static_cast<uint32_t>(table.rows)) {
          return InvalidArgument("the data have a row ", from[k], ", but ", table.name, " has ", table.rows,
                                 " rows");
        }
        keys_.push_back(uint64_t{from[k]} << 32 | (sample * used + k));
      }
    }
    SortKeys(keys_, static_cast<uint32_t>(table.rows - 1));
    own.rows.clear();
    for (BatchLookups& batch : batches_) {
      batch.tables[t].slots.clear();
      batch.tables[t].begin.clear();
      batch.tables[t].bags.clear();
    }
    size_t b = 0, begin = 0, end = 0;  // batch b has the samples begin ... end - 1
    for (const uint64_t key : keys_) {
      const int32_t row = static_cast<int32_t>(key >> 32);
      const size_t lookup = key & 0xffffffff, sample = lookup / used, k = lookup % used;
      if (own.rows.empty() || own.rows.back() != row) {
        own.rows.push_back(row);
        b = begin = 0;
        end = batches[0].size();
      }
      for (; sample >= end; end += batches[++b].size()) begin = end;
      const int32_t slot = static_cast<int32_t>(own.rows.size()) - 1;
      BatchLookups::OfTable& batch = batches_[b].tables[t];
      if (batch.slots.empty() || batch.slots.back() != slot) {
        batch.slots.push_back(slot);
        batch.begin.push_back(static_cast<int32_t>(batch.bags.size()));
      }
      batch.bags.push_back(static_cast<int32_t>((sample - begin) * At(all_bags)) + first_bag +
                           static_cast<int32_t>(k) / table.per_bag);
      batches_[b].slots_at[At(table.input)][(sample - begin) * lookups + At(table.first_lookup) + k] = slot;
    }
    for (BatchLookups& batch : batches_) {
      batch.tables[t].begin.push_back(static_cast<int32_t>(batch.tables[t].bags.size()));
    }
    own.values = nullptr;
    own.is_entire_table = false;
    own.gradient.assign(own.rows.size() * At(table.width), 0.0f);
  }
  return absl::OkStatus();
}

}  // namespace psring
