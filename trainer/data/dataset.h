// Samples: what a batch contains, and where it comes from.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/base/parameters.h"

namespace psring {

enum class TensorKind : uint8_t {
  kPicture,  // float32 [height][width][channels]
  kTokens,   // int32, at least 0 and below `range`
  kNumbers,  // float32
  kRows,     // int32, at least 0 and below `range`: rows of tables
};
constexpr bool IsFloat(TensorKind kind) {
  return kind == TensorKind::kPicture || kind == TensorKind::kNumbers;
}

// One input of a sample. Elements have 4 bytes.
struct TensorSpec {
  std::string name;
  TensorKind kind;
  std::vector<int> shape;
  int range = 0;                  // of tokens and rows
  std::vector<int> lookups = {};  // of rows: how many of them, in order, belong to each table

  size_t count() const;
};

constexpr size_t kMaxSampleInputs = 4;

// What a sample consists of.
struct SampleSpec {
  std::vector<TensorSpec> inputs;  // at most kMaxSampleInputs
  int labels = 1;                  // predictions per sample: 1, or one for each token of a text
  int classes = 0;                 // labels are at least 0 and below it
};

// That of Dataset::Positions with so many of them.
SampleSpec OfPositions(SampleSpec text, int count);

// A fixed list of samples. Thread-safe.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual int64_t count() const = 0;
  // Writes sample `index`: inputs[i] receives the input i of the spec, `labels` its labels.
  virtual void Read(int64_t index, absl::Span<void* const> inputs, int32_t* labels) const = 0;
  // Of all samples' content.
  virtual std::string Hash() const = 0;
};

// Some or all samples of a source. Copies share the source.
class Dataset {
 public:
  Dataset() = default;
  Dataset(SampleSpec spec, std::shared_ptr<const SampleSource> source)
      : spec_(std::move(spec)), source_(std::move(source)) {}

  const SampleSpec& spec() const { return spec_; }
  int64_t count() const;
  // What budgets, throughput, loss and accuracy count: samples, or tokens of a text.
  int64_t predictions() const { return count() * spec_.labels; }
  // Samples `indices`, one after the other in each tensor.
  void Gather(const std::vector<int64_t>& indices, absl::Span<void* const> inputs, int32_t* labels) const;
  // Only the samples `indices`.
  Dataset Part(const std::vector<int64_t>& indices) const;
  // Of texts: only these ranges of each sample's tokens and labels, one after the other.
  Dataset Positions(const std::vector<ReadyRange>& ranges) const;
  std::string Hash() const;

 private:
  // Of source_; of a text only positions_.
  void Read(int64_t index, absl::Span<void* const> inputs, int32_t* labels) const;

  SampleSpec spec_;
  std::shared_ptr<const SampleSource> source_;          // null: no samples
  std::shared_ptr<const std::vector<int64_t>> chosen_;  // null: all
  std::vector<ReadyRange> positions_;                   // empty: all, which are whole_labels_
  int whole_labels_ = 0;
};

// In memory of the host, or of a device.
struct Batch {
  int size = 0;                                           // samples
  std::array<const void*, kMaxSampleInputs> inputs = {};  // by SampleSpec::inputs, each [size][shape]
  const int32_t* labels = nullptr;                        // [size][SampleSpec::labels]
};

struct DataSplits {
  std::string name;
  Dataset train, test;
};

}  // namespace psring
