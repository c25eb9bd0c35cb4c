#include "common/base/parameters.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/random.h"

namespace psring {

namespace {

size_t ElementsOf(const std::vector<int>& shape) {
  size_t count = 1;
  for (const int extent : shape) {
    PSRING_CHECK(extent >= 0);
    count *= static_cast<size_t>(extent);
  }
  return count;
}

}  // namespace

int ParameterLayout::Add(std::string name, std::vector<int> shape, ImageShape image, TensorPart part) {
  const size_t count = ElementsOf(shape);
  PSRING_CHECK(part.whole == 0 || (part.outer * part.count > 0 && count % (part.outer * part.count) == 0 &&
                                   part.first + part.count <= part.whole));
  const size_t most = part.whole == 0 ? count : count / part.count * std::max(part.count, part.most);
  const size_t space = (most + alignment_ - 1) / alignment_ * alignment_;
  tensors_.push_back({std::move(name), std::move(shape), count_, count, space, image, part});
  count_ += space;
  parameters_ += count;
  return static_cast<int>(tensors_.size()) - 1;
}

int ParameterLayout::AddBuffer(std::string name, std::vector<int> shape, float initial) {
  const size_t first = initial_buffers_.size(), count = ElementsOf(shape);
  initial_buffers_.resize(first + count, initial);
  buffers_.push_back({std::move(name), std::move(shape), first, count, count});
  return static_cast<int>(buffers_.size()) - 1;
}

int ParameterLayout::AddTable(Table table) {
  PSRING_CHECK(table.rows > 0 && table.width > 0 && table.bags > 0 && table.per_bag > 0);
  table.first = table_elements();
  tables_.push_back(std::move(table));
  return static_cast<int>(tables_.size()) - 1;
}

size_t ParameterLayout::table_elements() const {
  return tables_.empty() ? 0 : tables_.back().first + tables_.back().count();
}

void InitialRow(const Table& values, int table, int row, uint64_t seed, float* to) {
  Random random(seed,
                (uint64_t{1} << 63) + (static_cast<uint64_t>(table) << 32) + static_cast<uint64_t>(row));
  for (int i = 0; i < values.width; ++i) to[i] = random.Uniform(-values.bound, values.bound);
}

namespace {

constexpr double kElementsPerMb = (1 << 20) / sizeof(float);

// A run of adjacent tensors, and when the last of them is ready.
struct Run {
  size_t first, count, ready;
};

// `tensors`: their positions and the order in which they are ready.
std::vector<Run> RunsOf(std::vector<Run> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const Run& a, const Run& b) { return a.first < b.first; });
  std::vector<Run> runs;
  for (const Run& tensor : tensors) {
    if (runs.empty() || runs.back().first + runs.back().count != tensor.first) {
      runs.push_back(tensor);
      continue;
    }
    runs.back().count += tensor.count;
    runs.back().ready = std::max(runs.back().ready, tensor.ready);
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.ready < b.ready; });
  return runs;
}

}  // namespace

std::vector<Bucket> PlanBuckets(const ParameterLayout& layout, const std::vector<int>& ready,
                                const BucketSizes& sizes) {
  PSRING_CHECK(ready.size() == layout.tensors().size());
  std::vector<Bucket> buckets;
  std::vector<Run> together;
  size_t count = 0;
  for (size_t i = 0; i < ready.size(); ++i) {
    const Tensor& tensor = layout.tensors()[static_cast<size_t>(ready[i])];
    if (tensor.count > 0) together.push_back({tensor.first, tensor.space, i});
    count += tensor.is_part() ? tensor.space : tensor.count;
    const double limit = (buckets.empty() ? sizes.first_mb : sizes.others_mb) * kElementsPerMb;
    if (static_cast<double>(count) < limit && i + 1 < ready.size()) continue;
    for (const Run& run : RunsOf(std::move(together))) {
      buckets.push_back({static_cast<int>(buckets.size()), run.first, run.count});
    }
    together.clear();
    count = 0;
  }
  return buckets;
}

std::vector<Bucket> PlanBuckets(const ParameterLayout& layout, const BucketSizes& sizes) {
  return PlanBuckets(layout, TensorsInOrder(layout, {{0, layout.count()}}), sizes);
}

std::vector<int> TensorsInOrder(const ParameterLayout& layout, const std::vector<ReadyRange>& ranges) {
  std::vector<int> order;
  const std::vector<Tensor>& tensors = layout.tensors();
  std::vector<bool> taken(tensors.size());
  const auto take = [&](size_t first, size_t end) {
    for (size_t i = tensors.size(); i-- > 0;) {
      const Tensor& tensor = tensors[i];
      if (taken[i] || tensor.first < first || tensor.first + tensor.count > end) continue;
      taken[i] = true;
      order.push_back(static_cast<int>(i));
    }
  };
  for (const ReadyRange& range : ranges) take(range.first, range.first + range.count);
  take(0, layout.count());  // tensors without elements may lie between two ranges
  PSRING_CHECK(order.size() == tensors.size());
  return order;
}

}  // namespace psring
