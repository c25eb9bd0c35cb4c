// A folder with a /proc and a /sys of its own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace psring {

class FakeRoot : public ::testing::Test {
 protected:
  ~FakeRoot() override { Clear(); }
  void Clear() const { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  // "PATH: LINES; ...": several files, below /sys/fs/cgroup if their paths are relative.
  void WriteFiles(const std::string& files) const {
    for (const absl::string_view file : absl::StrSplit(files, "; ", absl::SkipEmpty())) {
      const std::pair<std::string, std::string> content = absl::StrSplit(file, absl::MaxSplits(": ", 1));
      Write(absl::StrCat(content.first[0] == '/' ? "" : "/sys/fs/cgroup/", content.first),
            content.second + "\n");
    }
  }

  const std::string root_ = absl::StrCat(::testing::TempDir(), "/fake-root-", getpid());
};

}  // namespace psring
