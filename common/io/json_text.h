// The text of a JSON value (nlohmann::json or ordered_json). Invalid UTF-8, such as in a path, is replaced;
// dump() without this option throws.
#pragma once

#include <string>

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

}  // namespace psring
