#include "trainer/data/dataset.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/hash.h"

namespace psring {

size_t TensorSpec::count() const {
  size_t count = 1;
  for (const int extent : shape) count *= static_cast<size_t>(extent);
  return count;
}

SampleSpec OfPositions(SampleSpec text, int count) {
  text.labels = count;
  text.inputs[0].shape = {count};
  return text;
}

int64_t Dataset::count() const {
  if (source_ == nullptr) return 0;
  return chosen_ != nullptr ? static_cast<int64_t>(chosen_->size()) : source_->count();
}

void Dataset::Gather(const std::vector<int64_t>& indices, absl::Span<void* const> inputs,
                     int32_t* labels) const {
  PSRING_CHECK(inputs.size() == spec_.inputs.size());
  std::array<void*, kMaxSampleInputs> to = {};
  std::copy(inputs.begin(), inputs.end(), to.begin());
  for (const int64_t index : indices) {
    PSRING_CHECK(index >= 0 && index < count());
    Read(chosen_ != nullptr ? (*chosen_)[static_cast<size_t>(index)] : index,
         absl::MakeConstSpan(to.data(), inputs.size()), labels);
    for (size_t i = 0; i < inputs.size(); ++i) {
      to[i] = static_cast<std::byte*>(to[i]) + 4 * spec_.inputs[i].count();
    }
    labels += spec_.labels;
  }
}

void Dataset::Read(int64_t index, absl::Span<void* const> inputs, int32_t* labels) const {
  if (positions_.empty()) return source_->Read(index, inputs, labels);
  const size_t whole = static_cast<size_t>(whole_labels_);
  std::vector<int32_t> tokens(whole), all_labels(whole);
  void* const to_tokens = tokens.data();
  source_->Read(index, absl::MakeConstSpan(&to_tokens, 1), all_labels.data());
  auto* to = static_cast<int32_t*>(inputs[0]);
  for (const ReadyRange& range : positions_) {
    to = std::copy_n(tokens.data() + range.first, range.count, to);
    labels = std::copy_n(all_labels.data() + range.first, range.count, labels);
  }
}

Dataset Dataset::Positions(const std::vector<ReadyRange>& ranges) const {
  Dataset part = *this;
  const size_t whole = static_cast<size_t>(spec_.labels);
  PSRING_CHECK(spec_.inputs.size() == 1 && spec_.inputs[0].kind == TensorKind::kTokens);
  PSRING_CHECK(spec_.inputs[0].count() == whole && positions_.empty());
  size_t count = 0;
  for (const ReadyRange& range : ranges) {
    PSRING_CHECK(range.first + range.count <= whole);
    count += range.count;
  }
  part.positions_ = ranges;
  part.whole_labels_ = spec_.labels;
  part.spec_ = OfPositions(spec_, static_cast<int>(count));
  return part;
}

Dataset Dataset::Part(const std::vector<int64_t>& indices) const {
  std::vector<int64_t> chosen;
  chosen.reserve(indices.size());
  for (const int64_t index : indices) {
    PSRING_CHECK(index >= 0 && index < count());
    chosen.push_back(chosen_ != nullptr ? (*chosen_)[static_cast<size_t>(index)] : index);
  }
  Dataset part = *this;
  part.chosen_ = std::make_shared<const std::vector<int64_t>>(std::move(chosen));
  return part;
}

std::string Dataset::Hash() const {
  if (source_ == nullptr) return "";
  const std::string all = source_->Hash();
  return chosen_ == nullptr
             ? all
             : absl::StrCat(all, HashBytes(chosen_->data(), chosen_->size() * sizeof(int64_t)));
}

}  // namespace psring
