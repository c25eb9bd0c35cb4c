// A folder of a test (the product has a class TemporaryFolder), removed at its end.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace psring {

class TestFolder {
 public:
  TestFolder() {
    std::string name = std::filesystem::temp_directory_path() / "psring-test-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) abort();
    path_ = name;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string path() const { return path_; }
  // The path of the file or folder `name` in it.
  std::string operator/(const std::string& name) const { return path_ / name; }
  // Writes the file, and returns its path.
  std::string Put(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary | std::ios::trunc) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace psring
