#pragma once

namespace psring {

// "1.2.3": the version in the top-level CMakeLists.txt.
extern const char* const kVersion;

}  // namespace psring
