// The safetensors format for tensors in a file (huggingface/safetensors): eight bytes of length,
// little-endian; a JSON header with the name, type, shape and offsets of every tensor; the data in the order
// of the offsets, without gaps. Only float32 is supported.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/file_content.h"

namespace psring {

struct NamedTensor {
  std::string name;  // "fc1.weight"
  std::vector<int64_t> shape;
  std::vector<float> values;  // row-major
};

// `metadata` goes into the header's "__metadata__". Names are distinct; values fit their shapes.
std::string EncodeSafetensors(const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

// The beginning of a file whose data follow: those of each tensor, in this order.
struct TensorShape {
  std::string name;
  std::vector<int64_t> shape;
};
std::string SafetensorsHeader(const std::vector<TensorShape>& tensors,
                              const std::map<std::string, std::string>& metadata);

struct StoredTensor {
  std::string name;
  std::vector<int64_t> shape;
  uint64_t at = 0, end = 0;  // of the bytes of the file that are its values, which fit the shape
};
// Accepts any bytes: DataLoss says in one line what is wrong (truncated, not JSON, an offset outside of the
// file, a shape that does not fit, overlapping tensors), Unimplemented names a tensor of another type.
// Ordered by offset. Tensors named "...num_batches_tracked" are left out.
absl::StatusOr<std::vector<StoredTensor>> FindTensors(const FileContent& file);

}  // namespace psring
