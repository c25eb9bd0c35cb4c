// Tensors in a file that others can read: the safetensors format (huggingface/safetensors). Eight bytes of
// length, little-endian; a JSON header that names every tensor with its type, shape and place; the data, in
// the order of their places, without holes. Float32 alone is written and read. Pure; files are the caller's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace psring {

struct NamedTensor {
  std::string name;  // "fc1.weight"
  std::vector<int64_t> shape;
  std::vector<float> values;  // row-major
};

// `metadata` goes into the header's "__metadata__". Names are distinct; values fit their shapes.
std::string EncodeSafetensors(const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

// Any bytes are taken: DataLoss says in one line what is wrong with them (it ends early, no JSON, a place
// outside of the file, a shape that does not fit, two tensors in one place), Unimplemented names a tensor of
// another type. Ordered by place.
absl::StatusOr<std::vector<NamedTensor>> DecodeSafetensors(std::string_view bytes);

}  // namespace psring
