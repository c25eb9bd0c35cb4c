#include "trainer/layers/vocabulary_loss.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/kernels/elementwise_math.h"
#include "common/ops/layer_ops.h"

namespace psring {

size_t VocabularyLoss::ColumnOf(int32_t label) const {
  const TensorPlace::Share share = place_.ShareOf(classes_);
  const int column = label - share.first;
  return column >= 0 && column < share.count ? static_cast<size_t>(column) : SIZE_MAX;
}

absl::Status VocabularyLoss::FindHighest(size_t rows, const float* logits, const int32_t* labels) {
  const size_t classes = own_classes();
  for (size_t row = 0; row < rows; ++row, logits += classes) {
    if (labels[row] != kIgnoredLabel && (labels[row] < 0 || labels[row] >= classes_)) {
      return absl::InvalidArgumentError(
          absl::StrCat("loss: label ", labels[row], " of row ", row, " is none of ", classes_, " classes"));
    }
    float highest = logits[0];
    for (size_t c = 1; c < classes; ++c) highest = logits[c] > highest ? logits[c] : highest;
    highest_[row] = highest;
  }
  return absl::OkStatus();
}

// Replaces logits by their exponentials, as multiples of that of the highest one.
void VocabularyLoss::AddUp(size_t rows, float* logits, const int32_t* labels) {
  const size_t classes = own_classes();
  float *const exponentials = sums_.data(), *const of_label = exponentials + rows,
               *const before = of_label + rows;
  for (size_t row = 0; row < rows; ++row, logits += classes) {
    const float highest = highest_[row];
    const size_t label = ColumnOf(labels[row]);
    of_label[row] = label == SIZE_MAX ? 0 : logits[label] - highest;
    const auto end = static_cast<size_t>(
        std::clamp(labels[row] - place_.ShareOf(classes_).first, 0, static_cast<int>(classes)));
    before[row] = std::find(logits, logits + end, highest) == logits + end ? 0.0f : 1.0f;
    for (size_t c = 0; c < classes; ++c) logits[c] = elementwise::Exp(logits[c] - highest);
    double sum = 0;
    for (size_t c = 0; c < classes; ++c) sum += logits[c];
    exponentials[row] = static_cast<float>(sum);
  }
}

void VocabularyLoss::Finish(size_t rows, float* logits, const int32_t* labels, double* loss_sum,
                            int64_t* correct) const {
  const size_t classes = own_classes();
  const float *const exponentials = sums_.data(), *const of_label = exponentials + rows,
                     *const before = of_label + rows;
  for (size_t row = 0; row < rows; ++row, logits += classes) {
    if (labels[row] == kIgnoredLabel) {
      std::fill_n(logits, classes, 0.0f);
      continue;
    }
    *loss_sum += std::log(double{exponentials[row]}) - of_label[row];
    *correct += of_label[row] == 0 && before[row] == 0;  // the first of the highest ones
    const float inverse = 1.0f / exponentials[row];
    for (size_t c = 0; c < classes; ++c) logits[c] *= inverse;
    const size_t label = ColumnOf(labels[row]);
    if (label != SIZE_MAX) logits[label] -= 1.0f;
  }
}

absl::Status VocabularyLoss::Run(int rows, Span logits, const int32_t* labels, double* loss_sum,
                                 int64_t* correct, Stream& stream) {
  const size_t count = static_cast<size_t>(rows);
  PSRING_CHECK(logits.count == count * own_classes());
  PSRING_RETURN_IF_ERROR(stream.Synchronize());  // earlier work may use the vectors, which may move
  highest_.resize(std::max(highest_.size(), count));
  sums_.resize(std::max(sums_.size(), 3 * count));
  float* const values = logits.floats();
  stream.Run([this, count, values, labels] { return FindHighest(count, values, labels); });
  PSRING_RETURN_IF_ERROR(place_.axis->Highest({highest_.data(), count}, stream));
  stream.Run([this, count, values, labels] {
    AddUp(count, values, labels);
    return absl::OkStatus();
  });
  PSRING_RETURN_IF_ERROR(place_.axis->Sum({sums_.data(), 3 * count}, stream));
  stream.Run([=, this] {
    Finish(count, values, labels, loss_sum, correct);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

}  // namespace psring
