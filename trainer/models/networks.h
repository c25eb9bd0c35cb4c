// Makers of networks, each in the file that its comment names. `dropout`: 0 unless the row has dropout.
#pragma once

#include "trainer/layers/sequence_axis.h"
#include "trainer/layers/tensor_axis.h"
#include "trainer/models/model.h"

namespace psring {

// gpt.cc: GPT-2 (Radford et al. 2019) for any size, as nanoGPT builds it, with its names and shapes of
// tensors; weights of attention are not dropped. All sizes are given. `dropout`: the probability of dropping
// elements of the embedding's sum and of what each block adds. InvalidArgument: the width is not a multiple
// of the heads, or the samples are not texts of this context.
ModelRow::Make Gpt(const ModelSize& size, double dropout);
// Of a rank that divides the matrices with others (--tp), whose number divides the heads, or the sequences
// (--cp): the samples have its positions only. InvalidArgument: there are fewer tokens in the vocabulary than
// ranks, or these do not divide the rows (--sequence_parallel).
ModelRow::Make GptPart(const ModelSize& size, double dropout, const TensorPlace& place,
                       const SequencePlace& sequence);

// resnet.cc: residual networks (He et al. 2016) for small pictures, with the names and initial weights of
// torchvision's: a 3x3 convolution with stride 1 and no pooling come first, as usual for CIFAR.
ModelRow::Make ResNet18(const ModelSize& size, double dropout);
ModelRow::Make ResNet50(const ModelSize& size, double dropout);

// recommend.cc: models that look rows up in tables.
//
// DLRM (Naumov et al. 2019). The numbers of a sample pass an MLP, each table's rows are added up, and the
// products of all pairs of these vectors, with the MLP's output, pass another MLP. `size.width`: of rows.
ModelRow::Make Dlrm(const ModelSize& size, double dropout);
// Skip-grams with negative sampling (Mikolov et al. 2013): the product of a word's vector and another vector
// of each target is the logit of their being near.
ModelRow::Make SkipGram(const ModelSize& size, double dropout);

}  // namespace psring
