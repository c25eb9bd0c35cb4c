#include "common/io/json_object.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/io/json_text.h"

namespace psring {
namespace {

using nlohmann::json;

constexpr size_t kDeepest = 32;        // within the document
constexpr size_t kMaxShownBytes = 40;  // of a value or a name in an error

std::string Shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  const bool is_long = value.is_string() && value.get_ref<const std::string&>().size() > kMaxShownBytes;
  if (is_long) return absl::StrCat("a text of ", value.get_ref<const std::string&>().size(), " bytes");
  return AsciiJsonText(value);
}

std::string WholeRange(int64_t least, int64_t most) {
  if (least == std::numeric_limits<int64_t>::min() && most == std::numeric_limits<int64_t>::max()) {
    return "a whole number of 64 bits";
  }
  return absl::StrCat("a whole number from ", least, " to ", most);
}

std::string NumberRange(double least, double most) {
  const bool any =
      least <= std::numeric_limits<double>::lowest() && most >= std::numeric_limits<double>::max();
  return any ? "a number" : absl::StrCat("a number from ", least, " to ", most);
}

std::string TextRange(size_t most_bytes) { return absl::StrCat("a text of at most ", most_bytes, " bytes"); }

std::optional<int64_t> WholeIn(const json& value, int64_t least, int64_t most) {
  if (!value.is_number_integer()) return std::nullopt;
  // Above INT64_MAX it is stored as unsigned, and would come back negative.
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return std::nullopt;
  }
  const int64_t number = value.get<int64_t>();
  return number < least || number > most ? std::nullopt : std::optional(number);
}

std::optional<double> NumberIn(const json& value, double least, double most) {
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  return number >= least && number <= most ? std::optional(number) : std::nullopt;
}

std::optional<std::string> TextIn(const json& value, size_t most_bytes) {
  if (!value.is_string() || value.get_ref<const std::string&>().size() > most_bytes) return std::nullopt;
  return value.get_ref<const std::string&>();
}

}  // namespace

absl::StatusOr<JsonObject> JsonObject::Parse(const std::string& text, size_t most_bytes,
                                             const std::string& name) {
  const std::string begin = name.empty() ? "" : absl::StrCat(name, ": ");
  if (text.size() > most_bytes) {
    return InvalidArgument(begin, text.size(), " bytes are more than ", most_bytes);
  }
  if (ShapeOfJson(text).depth > kDeepest + 1) {
    return InvalidArgument(begin, "nested deeper than ", kDeepest, " levels");
  }
  json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return InvalidArgument(begin, "not a JSON object, or truncated");
  if (!document.is_object()) return InvalidArgument(begin, "not a JSON object");
  return JsonObject(std::make_shared<const json>(std::move(document)), name, "");
}

absl::Status JsonObject::Error(const std::string& key, const std::string& what) const {
  return InvalidArgument(name_, name_.empty() ? "" : ": ", path_, key, ": ", what);
}

absl::Status JsonObject::Wrong(const std::string& key, const std::string& expected, const json& found) const {
  return Error(key, absl::StrCat("expected ", expected, ", found ", Shown(found)));
}

bool JsonObject::Has(const char* key) const { return json_->contains(key); }

std::vector<std::string> JsonObject::Keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json_->items()) keys.push_back(key);
  return keys;
}

absl::Status JsonObject::UnknownField(const std::string& key) const {
  return InvalidArgument(name_, name_.empty() ? "" : ": ", "unknown field ", path_, Shown(key));
}

absl::StatusOr<const json*> JsonObject::Field(const char* key) const {
  const auto found = json_->find(key);
  if (found == json_->end()) return Error(key, "missing");
  return &*found;
}

absl::StatusOr<bool> JsonObject::Bool(const char* key, std::optional<bool> otherwise) const {
  if (otherwise && !Has(key)) return *otherwise;
  PSRING_ASSIGN_OR_RETURN(const json* field, Field(key));
  if (!field->is_boolean()) return Wrong(key, "true or false", *field);
  return field->get<bool>();
}

absl::StatusOr<int64_t> JsonObject::Whole(const char* key, int64_t least, int64_t most) const {
  PSRING_ASSIGN_OR_RETURN(const json* field, Field(key));
  const std::optional<int64_t> value = WholeIn(*field, least, most);
  if (!value) return Wrong(key, WholeRange(least, most), *field);
  return *value;
}

absl::StatusOr<uint64_t> JsonObject::Unsigned(const char* key) const {
  PSRING_ASSIGN_OR_RETURN(const json* field, Field(key));
  if (!field->is_number_unsigned()) return Wrong(key, "an unsigned whole number of 64 bits", *field);
  return field->get<uint64_t>();
}

absl::StatusOr<double> JsonObject::Number(const char* key, double least, double most,
                                          std::optional<double> otherwise) const {
  if (otherwise && !Has(key)) return *otherwise;
  PSRING_ASSIGN_OR_RETURN(const json* field, Field(key));
  const std::optional<double> value = NumberIn(*field, least, most);
  if (!value) return Wrong(key, NumberRange(least, most), *field);
  return *value;
}

absl::StatusOr<double> JsonObject::NumberOrNull(const char* key, double least, double most) const {
  PSRING_ASSIGN_OR_RETURN(const json* field, Field(key));
  if (field->is_null()) return std::numeric_limits<double>::quiet_NaN();
  return Number(key, least, most);
}

absl::StatusOr<std::string> JsonObject::Text(const char* key, size_t most_bytes,
                                             const std::optional<std::string>& otherwise) const {
  if (otherwise && !Has(key)) return *otherwise;
  PSRING_ASSIGN_OR_RETURN(const json* field, Field(key));
  std::optional<std::string> text = TextIn(*field, most_bytes);
  if (!text) return Wrong(key, TextRange(most_bytes), *field);
  return *std::move(text);
}

template <typename T, typename Read>
absl::StatusOr<std::vector<T>> JsonObject::List(const char* key, size_t most_count, const std::string& what,
                                                const Read& read) const {
  PSRING_ASSIGN_OR_RETURN(const json* field, Field(key));
  if (!field->is_array()) return Wrong(key, "a list", *field);
  if (field->size() > most_count) {
    return Error(key, absl::StrCat("expected at most ", most_count, " elements, found ", field->size()));
  }
  std::vector<T> values;
  values.reserve(field->size());
  for (const json& element : *field) {
    std::optional<T> value = read(element);
    if (!value) return Wrong(absl::StrCat(key, "[", values.size(), "]"), what, element);
    values.push_back(*std::move(value));
  }
  return values;
}

absl::StatusOr<std::vector<std::string>> JsonObject::Texts(const char* key, size_t most_count,
                                                           size_t most_bytes) const {
  return List<std::string>(key, most_count, TextRange(most_bytes),
                           [&](const json& element) { return TextIn(element, most_bytes); });
}

absl::StatusOr<std::vector<int64_t>> JsonObject::WholeNumbers(const char* key, size_t most_count,
                                                              int64_t least, int64_t most) const {
  return List<int64_t>(key, most_count, WholeRange(least, most),
                       [&](const json& element) { return WholeIn(element, least, most); });
}

absl::StatusOr<std::vector<double>> JsonObject::Numbers(const char* key, size_t most_count, double least,
                                                        double most) const {
  return List<double>(key, most_count, NumberRange(least, most),
                      [&](const json& element) { return NumberIn(element, least, most); });
}

absl::StatusOr<JsonObject> JsonObject::Object(const char* key) const {
  PSRING_ASSIGN_OR_RETURN(const json* field, Field(key));
  if (!field->is_object()) return Wrong(key, "an object", *field);
  return JsonObject(Json(json_, field), name_, absl::StrCat(path_, key, "."));
}

absl::StatusOr<std::vector<JsonObject>> JsonObject::Objects(const char* key, size_t most_count) const {
  size_t index = 0;
  return List<JsonObject>(key, most_count, "an object",
                          [&](const json& element) -> std::optional<JsonObject> {
                            if (!element.is_object()) return std::nullopt;
                            const std::string path = absl::StrCat(path_, key, "[", index++, "].");
                            return JsonObject(Json(json_, &element), name_, path);
                          });
}

}  // namespace psring
