#include "common/io/json_text.h"

#include <algorithm>
#include <array>

namespace psring {

JsonShape ShapeOfJson(absl::string_view text) {
  JsonShape shape;
  std::array<size_t, 1000> fields = {};  // by depth
  size_t depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      i += c == '\\' ? 1 : 0;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      shape.depth = std::max(shape.depth, ++depth);
      if (depth == fields.size()) break;
      fields[depth] = 0;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    } else if (c == ':') {
      shape.fields = std::max(shape.fields, ++fields[depth]);
    }
  }
  return shape;
}

}  // namespace psring
