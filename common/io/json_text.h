// Texts of JSON values (nlohmann::json or ordered_json). Invalid UTF-8, such as in a path, is replaced;
// dump() without this option throws.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace psring {

// `indent`: spaces per level; negative: one line.
template <typename Json>
std::string JsonText(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// One line in which all characters but ASCII's are escaped, for messages.
template <typename Json>
std::string AsciiJsonText(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

// What a JSON text contains, counted in linear time before it is parsed. Copying a value is recursive;
// nlohmann's parser takes quadratic time if it is given a callback, and an ordered object in its fields.
struct JsonShape {
  size_t depth = 0;   // of nested objects and arrays
  size_t fields = 0;  // of the object that has the most
};

// Counting ends at a depth of 1000, which no document of ours has.
JsonShape ShapeOfJson(absl::string_view text);

}  // namespace psring
