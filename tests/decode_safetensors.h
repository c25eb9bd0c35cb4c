// Reads the tensors of a safetensors file with their values.
#pragma once

#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/io/safetensors.h"

namespace psring {

inline absl::StatusOr<std::vector<NamedTensor>> DecodeSafetensors(const std::string& bytes) {
  const FileContent file(bytes);
  PSRING_ASSIGN_OR_RETURN(const std::vector<StoredTensor> stored, FindTensors(file));
  std::vector<NamedTensor> tensors;
  for (const StoredTensor& one : stored) {
    uint64_t count = 1;
    for (const int64_t extent : one.shape) count *= static_cast<uint64_t>(extent);
    tensors.push_back({.name = one.name, .shape = one.shape, .values = std::vector<float>(count)});
    PSRING_RETURN_IF_ERROR(file.Read(one.at, count * sizeof(float), tensors.back().values.data()));
  }
  return tensors;
}

}  // namespace psring
