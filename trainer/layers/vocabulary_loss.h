// Softmax cross-entropy of classes that the ranks of an axis divide, such as a vocabulary: no rank has all
// logits of a prediction (Shoeybi et al. 2019, section 3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/device/device.h"
#include "trainer/layers/tensor_axis.h"

namespace psring {

// In memory of the CPU; logits of any type of activations. One thread.
class VocabularyLoss {
 public:
  // `classes`: of all ranks.
  VocabularyLoss(const TensorPlace& place, int classes) : place_(place), classes_(classes) {}

  // `logits` [rows][share of the classes], which their gradients replace, and `labels` [rows]. Otherwise
  // LossOps::SoftmaxCrossEntropy, with equal results on every rank. The ranks exchange, for each row, first
  // the highest logit, then sums: of the exponentials, of the label's logit, which one rank has, and of the
  // ranks where a class before the label has the highest logit.
  absl::Status Run(int rows, Span logits, const int32_t* labels, double* loss_sum, int64_t* correct,
                   Stream& stream);
  // The values, in float32, that a rank sends for so many rows, on average over the ranks.
  double SentFor(int rows) const { return 2 * place_.SentByHalf(4 * static_cast<size_t>(rows)); }

 private:
  template <typename T>
  absl::Status RunOn(size_t rows, T* logits, const int32_t* labels, double* loss_sum, int64_t* correct,
                     Stream& stream);
  template <typename T>
  absl::Status FindHighest(size_t rows, const T* logits, const int32_t* labels);
  template <typename T>
  void AddUp(size_t rows, const T* logits, const int32_t* labels);
  template <typename T>
  void Finish(size_t rows, T* logits, const int32_t* labels, double* loss_sum, int64_t* correct) const;
  size_t own_classes() const { return static_cast<size_t>(place_.ShareOf(classes_).count); }
  // Of a label, in a row of logits; SIZE_MAX: another rank has it.
  size_t ColumnOf(int32_t label) const;

  const TensorPlace place_;
  const int classes_;
  // By row, in the stream's order: the highest logit; and [3][rows], what is added up.
  std::vector<float> highest_, sums_;
};

}  // namespace psring
