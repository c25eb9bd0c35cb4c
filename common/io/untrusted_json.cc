#include "common/io/untrusted_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/io/json_text.h"

namespace psring {
namespace {

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxFields = 4096;  // of an object: finding one takes linear time

}  // namespace

UntrustedJson ParseUntrusted(absl::string_view text) {
  const JsonShape shape = ShapeOfJson(text);
  if (shape.depth > kMaxDepth || shape.fields > kMaxFields) {
    return UntrustedJson(UntrustedJson::value_t::discarded);
  }
  return UntrustedJson::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

bool TakeElements(absl::string_view text, absl::string_view field,
                  const std::function<void(UntrustedJson& element)>& take) {
  absl::string_view key;                     // the last string at depth 1
  size_t depth = 0, begin = 0, element = 0;  // begin: of the field's elements
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      const size_t start = at + 1;
      for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
      if (depth == 1) key = text.substr(start, std::min(at, text.size()) - start);
    } else if (c == '[' || c == '{') {
      if (++depth == 2 && c == '[' && key == field && begin == 0) begin = element = at + 1;
    } else if (depth == 2 && begin > 0 && (c == ',' || c == ']')) {
      const absl::string_view found = absl::StripAsciiWhitespace(text.substr(element, at - element));
      const bool is_empty = c == ']' && element == begin && found.empty();
      if (!is_empty) {
        UntrustedJson json = ParseUntrusted(found);
        if (json.is_discarded()) return false;
        take(json);
      }
      element = at + 1;
      // Without its elements, the text must be an object.
      if (c == ']') return ParseUntrusted(absl::StrCat(text.substr(0, begin), text.substr(at))).is_object();
    } else if (c == ']' || c == '}') {
      depth -= depth > 0 ? 1 : 0;
    }
  }
  return false;
}

std::string DumpUntrusted(const UntrustedJson& json) { return JsonText(json); }

const UntrustedJson& FieldAt(const UntrustedJson& json, const char* key) {
  static const UntrustedJson* const none = new UntrustedJson();
  const auto found = json.find(key);
  return found == json.end() ? *none : *found;
}

const UntrustedJson& ListAt(const UntrustedJson& json, const char* key) {
  static const UntrustedJson* const none = new UntrustedJson(UntrustedJson::array());
  const UntrustedJson& field = FieldAt(json, key);
  return field.is_array() ? field : *none;
}

double NumberAt(const UntrustedJson& json, const char* key, double otherwise) {
  const UntrustedJson& field = FieldAt(json, key);
  return field.is_number() ? field.get<double>() : otherwise;
}

int64_t CountAt(const UntrustedJson& json, const char* key, int64_t otherwise) {
  constexpr double kMax = 9e15;  // doubles hold whole numbers up to here
  const double number = NumberAt(json, key, static_cast<double>(otherwise));
  return number >= -kMax && number <= kMax ? static_cast<int64_t>(number) : otherwise;
}

std::string TextAt(const UntrustedJson& json, const char* key) {
  const UntrustedJson& field = FieldAt(json, key);
  return field.is_string() ? field.get<std::string>() : "";
}

}  // namespace psring
