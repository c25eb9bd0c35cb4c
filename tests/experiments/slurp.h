#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace psring {

// The contents of a file, also in /proc; empty if it does not exist.
inline std::string Slurp(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace psring
