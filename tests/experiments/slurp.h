#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace psring {

// All of a file, also of one in /proc; empty where there is none.
inline std::string Slurp(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace psring
