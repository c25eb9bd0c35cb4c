// Text in lines of a width. Pure.
#pragma once

#include <string>

namespace psring {

// `text` broken at spaces into lines of at most `width` characters: `prefix` in front of the first, as many
// spaces in front of the others. Ends with a newline. A word that is longer than a line stands alone.
std::string Wrap(const std::string& text, const std::string& prefix, size_t width = 110);

}  // namespace psring
