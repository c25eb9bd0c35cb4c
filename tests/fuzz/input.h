// What the fuzz targets share. libFuzzer calls LLVMFuzzerTestOneInput with many inputs in one process; a
// crash, a sanitizer's finding, a timeout or too much memory is a failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace psring {

inline std::string TextOf(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace psring
