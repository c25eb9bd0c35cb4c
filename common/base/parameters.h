// Flat parameters and the buckets in which they are synchronized. Pure.
//
// All weights of a model are in one flat buffer, in forward order; all gradients are in another of the same
// shape. Backward mostly finishes the last layer first, so buckets are planned from the end: bucket 0 is the
// tail of the buffer and the first to be ready. If the observed order differs, they are planned again.
//
// A tensor begins at a multiple of 64 bytes, which libraries' fastest kernels need. The elements between two
// tensors are padding: always zero, in weights, gradients and optimizer state. They belong to the bucket of
// the tensor before them, are sent with it, and are neither saved nor counted as parameters.
//
// Tables are trained by rows: a step reads and changes only the rows that its samples look up, so their
// gradients consist of these rows and never have the size of a table. Their values are in a flat buffer of
// their own, without padding, and belong to no bucket.
//
// Buffers are state that is not trained, such as the running statistics of batch normalization. They are in
// one more flat buffer, without padding, and belong to no bucket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace psring {

// The shape of one output's inputs if they form an image, or the part of one that a filter reads; channels
// are the innermost dimension.
struct ImageShape {
  int height = 0, width = 0, channels = 0;
  size_t count() const { return size_t{1} * height * width * channels; }
};

// Which elements of a tensor a rank has, if several ranks divide it: the whole tensor is
// [outer][whole][inner], and the part [outer][count][inner], from `first` on.
struct TensorPart {
  size_t outer = 1, first = 0, count = 0;
  size_t whole = 0;  // 0: the rank has the whole tensor
  // Of the largest part, whose space all have: other tensors are then at the same place on every rank, and in
  // equal buckets, whose sums over replicas have the same bits. 0: `count`.
  size_t most = 0;
};

struct Tensor {
  std::string name;        // "fc1.weight"
  std::vector<int> shape;  // [outputs][inputs]; of a convolution [outputs][height][width][channels]
  size_t first = 0;        // offset in the flat buffer, in elements
  size_t count = 0;
  size_t space = 0;       // until the next tensor: `count` and the padding after it (see TensorPart::most)
  ImageShape image = {};  // the inputs of each output; count() is 0 if they are not an image
  TensorPart part = {};   // of which `shape` and `count` are

  bool is_part() const { return part.whole > 0; }
  // The innermost extent, and the elements of the whole tensor.
  size_t inner() const { return is_part() ? count / (part.outer * part.count) : count; }
  size_t whole_count() const { return is_part() ? part.outer * part.whole * inner() : count; }
};

// A table [rows][width], and the lookups of a sample that read it: `bags` sums of `per_bag` rows each, from
// lookup `first_lookup` of the sample's input `input` on.
struct Table {
  std::string name;
  int rows = 0, width = 0;
  int input = 0, first_lookup = 0, bags = 1, per_bag = 1;
  float bound = 0;   // initial values are uniform in +-bound
  size_t first = 0;  // offset in the flat buffer of all tables, in elements; set by AddTable

  size_t count() const { return size_t{1} * static_cast<size_t>(rows) * static_cast<size_t>(width); }
};

class ParameterLayout {
 public:
  static constexpr size_t kAlignment = 16;  // in elements

  // `alignment` 1: without padding, as recorded gradients are sent.
  explicit ParameterLayout(size_t alignment = kAlignment) : alignment_(alignment) {}

  // Appends a tensor; returns its index. `shape`: of `part`.
  int Add(std::string name, std::vector<int> shape, ImageShape image = {}, TensorPart part = {});

  // Appends a tensor to the buffers; returns its index among them.
  int AddBuffer(std::string name, std::vector<int> shape, float initial);

  // Appends a table, of which each lookup of the samples belongs to at most one; returns its index.
  int AddTable(Table table);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  size_t count() const { return count_; }            // elements of the flat buffer, with padding
  size_t parameters() const { return parameters_; }  // without padding

  const std::vector<Tensor>& buffers() const { return buffers_; }
  const std::vector<float>& initial_buffers() const { return initial_buffers_; }

  const std::vector<Table>& tables() const { return tables_; }
  size_t table_elements() const;

 private:
  size_t alignment_;
  std::vector<Tensor> tensors_, buffers_;
  std::vector<float> initial_buffers_;
  std::vector<Table> tables_;
  size_t count_ = 0, parameters_ = 0;
};

// The initial values of row `row` of table number `table`, which every process that stores it computes.
void InitialRow(const Table& values, int table, int row, uint64_t seed, float* to);

// A contiguous slice of the flat buffers, in elements.
struct Bucket {
  int index = 0;
  size_t first = 0;
  size_t count = 0;
};

// A contiguous slice that becomes ready at once.
struct ReadyRange {
  size_t first = 0;
  size_t count = 0;
};

struct BucketSizes {
  double first_mb = 1;    // MiB; small, so that communication starts early
  double others_mb = 25;  // MiB
};

// Buckets in the order in which backward finishes them. Whole tensors are added, last tensor first, until the
// bucket has reached its size (PyTorch DDP's rule: a bucket may exceed it by one tensor). Covers every
// element exactly once, including padding.
std::vector<Bucket> PlanBuckets(const ParameterLayout& layout, const BucketSizes& sizes);

// The same for gradients that become ready in the order `ready` (indices of the layout's tensors, each once).
// Tensors are added in that order until they reach a bucket's size. If they are adjacent they become one
// bucket, else one bucket per run of adjacent tensors, so that a bucket needs no copies. Buckets are
// ordered by when their last tensor is ready.
std::vector<Bucket> PlanBuckets(const ParameterLayout& layout, const std::vector<int>& ready,
                                const BucketSizes& sizes);

// The tensors in the order in which `ranges` became ready. Each tensor lies entirely in exactly one range.
// Within a range the last tensor comes first. If the ranges go from the last tensor to the first, this is the
// order that PlanBuckets(layout, sizes) assumes.
std::vector<int> TensorsInOrder(const ParameterLayout& layout, const std::vector<ReadyRange>& ranges);

}  // namespace psring
