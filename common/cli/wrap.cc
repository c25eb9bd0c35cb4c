#include "common/cli/wrap.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace psring {
namespace {

// Length of the character that begins at `at`, and whether it takes two columns.
struct Character {
  size_t bytes = 1;
  bool wide = false;
};
Character CharacterAt(const std::string& text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  size_t bytes = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  bytes = std::min(bytes, text.size() - at);
  // U+2E80 and above: Chinese, its punctuation, full-width forms.
  const bool wide =
      bytes == 4 ||
      (bytes == 3 && (lead > 0xe2 || (lead == 0xe2 && static_cast<unsigned char>(text[at + 1]) >= 0xba)));
  return {bytes, wide};
}

// Punctuation that must not begin a line.
bool IsClosingPunctuation(const std::string& character) {
  return absl::StrContains("，。；：、）”？！", character);
}

// Text without a possible line break.
struct Piece {
  std::string text;
  bool space_before = false;
};

std::vector<Piece> PiecesOf(const std::string& text) {
  std::vector<Piece> pieces(1);
  bool after_wide = false;
  for (size_t at = 0; at < text.size();) {
    const Character character = CharacterAt(text, at);
    const std::string bytes = text.substr(at, character.bytes);
    at += character.bytes;
    if (bytes == " ") {
      pieces.push_back({.space_before = true});
      after_wide = false;
      continue;
    }
    const bool may_break =
        (character.wide || after_wide) && !pieces.back().text.empty() && !IsClosingPunctuation(bytes);
    if (may_break) pieces.push_back({});
    pieces.back().text += bytes;
    after_wide = character.wide;
  }
  return pieces;
}

}  // namespace

size_t TextColumns(const std::string& text) {
  size_t columns = 0;
  for (size_t at = 0; at < text.size();) {
    const Character character = CharacterAt(text, at);
    columns += character.wide ? 2 : 1;
    at += character.bytes;
  }
  return columns;
}

std::string PadRight(const std::string& text, size_t columns) {
  return text + std::string(columns - std::min(columns, TextColumns(text)), ' ');
}

std::string PadLeft(const std::string& text, size_t columns) {
  return std::string(columns - std::min(columns, TextColumns(text)), ' ') + text;
}

std::vector<std::string> AlignedLines(const std::vector<std::vector<std::string>>& lines,
                                      const std::string& gap,
                                      const std::function<bool(size_t column)>& right) {
  std::vector<size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], TextColumns(line[i]));
  }
  std::vector<std::string> aligned;
  for (const auto& line : lines) {
    std::string& text = aligned.emplace_back();
    for (size_t i = 0; i < line.size(); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : gap, (right(i) ? PadLeft : PadRight)(line[i], widths[i]));
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return aligned;
}

std::string Clipped(const std::string& text, size_t columns) {
  size_t at = 0;
  for (size_t used = 0; at < text.size();) {
    const Character character = CharacterAt(text, at);
    used += character.wide ? 2 : 1;
    if (used > columns) break;
    at += character.bytes;
  }
  return text.substr(0, at);
}

std::string Wrap(const std::string& text, const std::string& prefix, size_t width) {
  std::string lines = prefix;
  const size_t indent = TextColumns(prefix);
  size_t used = indent;
  for (const Piece& piece : PiecesOf(text)) {
    const bool first = used == indent;
    const size_t space = piece.space_before && !first ? 1 : 0, columns = TextColumns(piece.text);
    if (!first && used + space + columns > width) {
      absl::StrAppend(&lines, "\n", std::string(indent, ' '), piece.text);
      used = indent + columns;
    } else {
      absl::StrAppend(&lines, space > 0 ? " " : "", piece.text);
      used += space + columns;
    }
  }
  absl::StrAppend(&lines, "\n");
  return lines;
}

}  // namespace psring
