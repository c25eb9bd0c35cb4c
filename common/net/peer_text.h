// Text that another process or a file supplied, for an error message or a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace psring {

inline constexpr size_t kMostPeerTextBytes = 1024;

// `text` as one line of valid UTF-8 of at most `most_bytes`, at least 3: control characters and invalid bytes
// become "\x1b", and a longer text ends with "...".
std::string PeerText(std::string_view text, size_t most_bytes = kMostPeerTextBytes);

}  // namespace psring
