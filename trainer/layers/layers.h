// Makes the layers of networks, each from the file of its name, or op_layers.cc. Those with parameters add
// them to `layout`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/layers/layer.h"
#include "trainer/layers/sequence_axis.h"
#include "trainer/layers/tensor_axis.h"

namespace psring {

// What the ranks of a TensorAxis divide of a linear layer. If they divide rows, too (TensorPlace), kOutputs
// gathers the inputs of all rows, in backward once more, and kInputs leaves each rank the sums of its rows.
enum class LinearDivision : uint8_t {
  kNone,     // nothing: each computes all
  kOutputs,  // each has all inputs; backward adds up their gradients
  kInputs,   // each has a share of the inputs; forward adds up the outputs, backward adds up nothing
};

struct LinearConfig {
  int inputs, outputs;  // of all ranks
  int rows = 1;         // of a sample, such as the tokens of a text, on all ranks
  Activation activation = Activation::kNone;
  bool residual = false;  // the layer has a second input, which it adds to y; only with kNone
  ImageShape image = {};  // the shape of a row of x, if it is an image
  // Above 0: initial weights are normal with this deviation, and biases 0, as in GPT-2. 0: PyTorch's default.
  float deviation = 0;
  TensorPlace place = {};
  LinearDivision division = LinearDivision::kNone;  // not if `deviation` is 0, unless the layer is tied
  int groups = 1;  // of kOutputs: [groups][outputs / groups], of which each is divided
};
// y = activation(x w^T + b) + residual, for each row. The gradient of the residual input is that of y.
std::unique_ptr<Layer> MakeLinear(const std::string& name, const LinearConfig& config,
                                  ParameterLayout& layout);
// Without a bias, and with the weight [outputs][inputs] of another layer, which initializes it (tied
// embeddings: Press & Wolf 2017).
std::unique_ptr<Layer> MakeTiedLinear(const LinearConfig& config, const Tensor& weight);

struct ConvConfig {
  ConvShape shape;  // its batch is ignored
  bool bias = true;
  // Above 0: initial weights are normal with this deviation. 0: PyTorch's default.
  float deviation = 0;
};
// A convolution with the activation of its shape.
std::unique_ptr<Layer> MakeConv(const std::string& name, const ConvConfig& config, ParameterLayout& layout);

// The largest of each 2 x 2 window, per channel. Keeps the index of each maximum. `shape.batch` is ignored.
std::unique_ptr<Layer> MakeMaxPool(const PoolShape& shape);
// The mean over all positions of a picture, per channel. `shape.batch` is ignored.
std::unique_ptr<Layer> MakeAveragePool(const PoolShape& shape);

struct BatchNormConfig {
  int positions;  // of a sample, each with `channels` values
  int channels;
  bool relu = false;
  bool residual = false;  // the layer has a second input, which it adds before ReLU
};
// Normalizes each channel (Ioffe & Szegedy 2015), with a weight, initially 1, and a bias, initially 0.
// Training uses the batch's means and variances and keeps running ones, which evaluation uses; PyTorch's
// momentum, 0.1, and epsilon, 1e-5. The gradient of the residual input is that of y, masked by ReLU. Backward
// only in training mode.
std::unique_ptr<Layer> MakeBatchNorm(const std::string& name, const BatchNormConfig& config,
                                     ParameterLayout& layout);

// Normalizes each row (Ba, Kiros & Hinton 2016), with a weight, initially 1, and a bias, initially 0.
// `rows`: of a sample. If the ranks of `place` divide them, backward adds up the parameters' gradients.
std::unique_ptr<Layer> MakeLayerNorm(const std::string& name, int rows, int width, ParameterLayout& layout,
                                     const TensorPlace& place = {});

// For each token of a sample, the sum of its row of `table` and of its position's row of `positions`.
// Initial weights are normal with this deviation. If the ranks of `place` divide the rows of `table`, they
// add up what each has of y, of which each gets all rows or its own ones. The tokens are those of
// `sequence`'s positions.
std::unique_ptr<Layer> MakeEmbedding(const Tensor& table, const Tensor& positions, float deviation,
                                     const TensorPlace& place = {}, const SequencePlace& sequence = {});

// Causal multi-head self-attention. x: for each token its queries, keys and values [3][heads][head_size];
// y: [heads][head_size]. Keeps only the logarithm of each row's sum of exponentials.
std::unique_ptr<Layer> MakeAttention(int context, int heads, int head_size);
// The same of `place`'s positions, to those of all ranks: x and y are those of a part of each sample. Keys,
// values and their gradients travel in the type of activations.
std::unique_ptr<Layer> MakeRingAttention(int context, int heads, int head_size, const SequencePlace& place);
// The same with kUlysses. Replaces x by queries, keys and values of its share of the heads, and keeps their
// y.
std::unique_ptr<Layer> MakeUlyssesAttention(int context, int heads, int head_size,
                                            const SequencePlace& place);

struct DropoutConfig {
  size_t elements;        // of a sample, on all ranks
  double probability;     // in [0, 1)
  uint32_t number;        // distinguishes the dropout layers of a model
  bool residual = false;  // the layer has a second input, which it adds to y
  TensorPlace place = {};
  // Not if the ranks of `place` divide rows.
  SequencePlace sequence = {};
  int context = 1;  // if sequences are divided: positions, each with as many elements
};
// In training, DropoutOps by LayerPass::sample_seeds. No mask is stored: backward, and a forward pass that is
// computed again, generate the same one.
std::unique_ptr<Layer> MakeDropout(const DropoutConfig& config);

// For each bag of a sample, the sum of its rows of a table: [bags][width]. `tables`, all of the same width,
// read one input of the samples, which is the layer's input and has `lookups`. The tables are not in the flat
// buffers: LayerPass::rows has the values and the gradient of the rows that a step touches.
std::unique_ptr<Layer> MakeBags(const std::vector<Table>& tables, int lookups, ParameterLayout& layout);

// Products of vectors; see DotOps. Inputs: a [width], b [others][width].
std::unique_ptr<Layer> MakeDots(Dots kind, int others, int width);

}  // namespace psring
