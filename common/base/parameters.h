// Flat parameters and the buckets in which they are synchronised. Pure.
//
// All weights of a model stand in one flat buffer, in forward order; all gradients in another of the same
// shape. Backward mostly finishes the last layer first, so buckets are planned from the end: bucket 0 is the
// tail of the buffer and the first to be ready. Where it turns out to be otherwise they are planned anew.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace psring {

// What the inputs of one output are where they are a picture, or a filter's part of one: channels stand
// innermost with us.
struct PictureShape {
  int height = 0, width = 0, channels = 0;
  size_t count() const { return size_t{1} * height * width * channels; }
};

struct Tensor {
  std::string name;        // "fc1.weight"
  std::vector<int> shape;  // [outputs][inputs]; of a convolution [outputs][height][width][channels]
  size_t first = 0;        // offset in the flat buffer, in elements
  size_t count = 0;
  PictureShape picture = {};  // behind each output; count() 0: none
};

class ParameterLayout {
 public:
  // Appends a tensor behind the last; returns its index.
  int Add(std::string name, std::vector<int> shape, PictureShape picture = {});

  const std::vector<Tensor>& tensors() const { return tensors_; }
  size_t count() const { return count_; }  // elements in all

 private:
  std::vector<Tensor> tensors_;
  size_t count_ = 0;
};

// A contiguous slice of the flat buffers, in elements.
struct Bucket {
  int index = 0;
  size_t first = 0;
  size_t count = 0;
};

// A contiguous slice as well: what is ready at once.
struct ReadyRange {
  size_t first = 0;
  size_t count = 0;
};

struct BucketSizes {
  double first_mb = 1;    // MiB; small, so that communication starts early
  double others_mb = 25;  // MiB
};

// Buckets in the order in which backward finishes them. Whole tensors are added, last tensor first, until the
// bucket has reached its size (PyTorch DDP's rule, so a bucket may exceed it by one tensor). Covers every
// element exactly once.
std::vector<Bucket> PlanBuckets(const ParameterLayout& layout, const BucketSizes& sizes);

// The same for gradients that become ready in the order `ready` (the layout's tensors by index, each once).
// Tensors are added in that order until they reach a bucket's size, and then travel as one bucket where they
// stand side by side, else as one for each run of neighbours: nothing is copied together. The order in which
// the last of each run's tensors is ready is that of the buckets.
std::vector<Bucket> PlanBuckets(const ParameterLayout& layout, const std::vector<int>& ready,
                                const BucketSizes& sizes);

// The tensors in the order of the ranges in which they became ready, which hold each of them whole, once;
// within a range from the last. Where the ranges are from the last tensor to the first it is the order that
// the other PlanBuckets expects.
std::vector<int> TensorsInOrder(const ParameterLayout& layout, const std::vector<ReadyRange>& ranges);

}  // namespace psring
