// Text in lines of a width. Pure.
#pragma once

#include <string>

namespace psring {

// How many columns of a terminal `text` (UTF-8) takes: two for each character of Chinese, else one.
size_t TextColumns(const std::string& text);

// `text` broken at spaces, and between characters of Chinese, into lines of at most `width` columns: `prefix`
// in front of the first, as many spaces in front of the others. Ends with a newline. A word that is longer
// than a line stands alone.
std::string Wrap(const std::string& text, const std::string& prefix, size_t width = 110);

}  // namespace psring
