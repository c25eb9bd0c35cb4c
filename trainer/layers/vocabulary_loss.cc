#include "trainer/layers/vocabulary_loss.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/kernels/elementwise_math.h"
#include "common/kernels/sixteen_bits.h"
#include "common/ops/layer_ops.h"

namespace psring {

size_t VocabularyLoss::ColumnOf(int32_t label) const {
  const TensorPlace::Share share = place_.ShareOf(classes_);
  const int column = label - share.first;
  return column >= 0 && column < share.count ? static_cast<size_t>(column) : SIZE_MAX;
}

template <typename T>
absl::Status VocabularyLoss::FindHighest(size_t rows, const T* logits, const int32_t* labels) {
  const size_t classes = own_classes();
  for (size_t row = 0; row < rows; ++row, logits += classes) {
    if (labels[row] != kIgnoredLabel && (labels[row] < 0 || labels[row] >= classes_)) {
      return InvalidArgument("loss: label ", labels[row], " of row ", row, " is none of ", classes_,
                             " classes");
    }
    float highest = elementwise::Load(logits[0]);
    for (size_t c = 1; c < classes; ++c)
      highest = elementwise::Load(logits[c]) > highest ? elementwise::Load(logits[c]) : highest;
    highest_[row] = highest;
  }
  return absl::OkStatus();
}

// Exponentials are multiples of that of the highest logit. They are computed in blocks, for vectors, and
// again by Finish, because 16 bits would round them twice.
template <typename T>
void VocabularyLoss::AddUp(size_t rows, const T* logits, const int32_t* labels) {
  constexpr size_t kBlock = 64;
  const size_t classes = own_classes();
  float *const exponentials = sums_.data(), *const of_label = exponentials + rows,
               *const before = of_label + rows;
  for (size_t row = 0; row < rows; ++row, logits += classes) {
    const float highest = highest_[row];
    const size_t label = ColumnOf(labels[row]);
    of_label[row] = label == SIZE_MAX ? 0 : elementwise::Load(logits[label]) - highest;
    const auto end = static_cast<size_t>(
        std::clamp(labels[row] - place_.ShareOf(classes_).first, 0, static_cast<int>(classes)));
    before[row] =
        std::any_of(logits, logits + end, [highest](T logit) { return elementwise::Load(logit) == highest; })
            ? 1.0f
            : 0.0f;
    double sum = 0;
    for (size_t first = 0; first < classes; first += kBlock) {
      float block[kBlock];
      const size_t count = std::min(kBlock, classes - first);
      for (size_t c = 0; c < count; ++c)
        block[c] = elementwise::Exp(elementwise::Load(logits[first + c]) - highest);
      for (size_t c = 0; c < count; ++c) sum += block[c];
    }
    exponentials[row] = static_cast<float>(sum);
  }
}

template <typename T>
void VocabularyLoss::Finish(size_t rows, T* logits, const int32_t* labels, double* loss_sum,
                            int64_t* correct) const {
  const size_t classes = own_classes();
  const float *const exponentials = sums_.data(), *const of_label = exponentials + rows,
                     *const before = of_label + rows;
  for (size_t row = 0; row < rows; ++row, logits += classes) {
    if (labels[row] == kIgnoredLabel) {
      std::fill_n(logits, classes, T{});
      continue;
    }
    *loss_sum += std::log(double{exponentials[row]}) - of_label[row];
    *correct += of_label[row] == 0 && before[row] == 0;  // the first of the highest ones
    const float inverse = 1.0f / exponentials[row], highest = highest_[row];
    for (size_t c = 0; c < classes; ++c)
      logits[c] = elementwise::Store<T>(elementwise::Exp(elementwise::Load(logits[c]) - highest) * inverse);
    const size_t label = ColumnOf(labels[row]);
    if (label != SIZE_MAX)
      logits[label] = elementwise::Store<T>(elementwise::Exp(of_label[row]) * inverse - 1.0f);
  }
}

template <typename T>
absl::Status VocabularyLoss::RunOn(size_t rows, T* logits, const int32_t* labels, double* loss_sum,
                                   int64_t* correct, Stream& stream) {
  stream.Run([this, rows, logits, labels] { return FindHighest(rows, logits, labels); });
  PSRING_RETURN_IF_ERROR(place_.axis->Highest({highest_.data(), rows}, stream));
  stream.Run([this, rows, logits, labels] {
    AddUp(rows, logits, labels);
    return absl::OkStatus();
  });
  PSRING_RETURN_IF_ERROR(place_.axis->Sum({sums_.data(), 3 * rows}, stream));
  stream.Run([=, this] {
    Finish(rows, logits, labels, loss_sum, correct);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status VocabularyLoss::Run(int rows, Span logits, const int32_t* labels, double* loss_sum,
                                 int64_t* correct, Stream& stream) {
  const size_t count = static_cast<size_t>(rows);
  PSRING_CHECK(logits.count == count * own_classes());
  PSRING_RETURN_IF_ERROR(stream.Synchronize());  // earlier work may use the vectors, which may move
  highest_.resize(std::max(highest_.size(), count));
  sums_.resize(std::max(sums_.size(), 3 * count));
  if (logits.type == DType::kFloat32) {
    return RunOn(count, logits.floats(), labels, loss_sum, correct, stream);
  }
  return RunOn(count, static_cast<elementwise::BFloat16*>(logits.data), labels, loss_sum, correct, stream);
}

}  // namespace psring
