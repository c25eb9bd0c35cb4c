// A folder with a /proc and a /sys of its own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace psring {

class FakeRoot : public ::testing::Test {
 protected:
  ~FakeRoot() override { Clear(); }
  void Clear() const { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  const std::string root_ = absl::StrCat(::testing::TempDir(), "/fake-root-", getpid());
};

}  // namespace psring
