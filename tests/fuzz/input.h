// What the fuzz targets share. libFuzzer calls LLVMFuzzerTestOneInput with many inputs in one process; a
// crash, a sanitizer's finding, a timeout or too much memory is a failure.
#pragma once

#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace psring {

inline std::string TextOf(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A folder of this process, removed at its end.
class FuzzFolder {
 public:
  FuzzFolder() {
    std::string name = std::filesystem::temp_directory_path() / "psring-fuzz-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) abort();
    path_ = name;
  }
  ~FuzzFolder() { std::filesystem::remove_all(path_); }

  std::string path() const { return path_; }
  void Put(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary | std::ios::trunc) << bytes;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace psring
