// Text that may contain what another process, a file or its name supplied, for a message or a terminal. What
// could control the terminal, imitate lines of psring or change how a line reads becomes "\x1b": control
// characters, separators of lines, marks of the direction of writing, invisible tags, and bytes that are not
// UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace psring {

inline constexpr size_t kMaxPeerTextBytes = 1024;

// One line of at most `most_bytes`, at least 3; a longer one ends with "...".
std::string PeerText(std::string_view text, size_t most_bytes = kMaxPeerTextBytes);
// One line of any length; the control characters in `kept` remain.
std::string OneLine(std::string_view text, std::string_view kept = "");
// A message: one line, and below it lines that psring adds: "  | " quotes a log, "--resume " is a hint. Other
// newlines are escaped.
std::string MessageText(std::string_view text);

}  // namespace psring
