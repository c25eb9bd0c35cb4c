#pragma once

namespace psring {

// "1.2.3": the version that the top-level CMakeLists.txt states.
extern const char* const kVersion;

}  // namespace psring
