// Breaks text into lines. Pure, except for the default width.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/cli/command_line.h"

namespace psring {

// Terminal columns that `text` (UTF-8) takes: two for each Chinese character, else one.
size_t TextColumns(const std::string& text);

// Pads `text` with spaces to `columns`.
std::string PadRight(const std::string& text, size_t columns);  // text on the left
std::string PadLeft(const std::string& text, size_t columns);   // text on the right

// The cells of each line, padded to the widest of their column, with `gap` between columns. `right`: whether
// a column's text is on the right. Lines end with a newline, without spaces before it.
std::vector<std::string> AlignedLines(const std::vector<std::vector<std::string>>& lines,
                                      const std::string& gap,
                                      const std::function<bool(size_t column)>& right);

// The longest beginning of `text` that takes at most `columns`.
std::string Clipped(const std::string& text, size_t columns);

// Breaks `text` at spaces and between Chinese characters into lines of at most `width` columns. The first
// line begins with `prefix`, the others with as many spaces. Ends with a newline. A word longer than
// `width` is not broken.
std::string Wrap(const std::string& text, const std::string& prefix, size_t width = OutputColumns());

}  // namespace psring
