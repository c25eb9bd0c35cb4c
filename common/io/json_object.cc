#include "common/io/json_object.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace psring {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 32;

absl::Status Wrong(const char* key, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is not ", what));
}

}  // namespace

absl::StatusOr<JsonObject> JsonObject::Parse(const std::string& text, size_t most_bytes) {
  if (text.size() > most_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(text.size(), " bytes are more than ", most_bytes));
  }
  bool too_deep = false;
  const auto limit_depth = [&too_deep](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kDeepest;
    return !too_deep;
  };
  Json json = Json::parse(text, limit_depth, /*allow_exceptions=*/false);
  if (too_deep) return absl::InvalidArgumentError(absl::StrCat("nested deeper than ", kDeepest, " levels"));
  if (!json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  return JsonObject(std::make_shared<const Json>(std::move(json)));
}

absl::StatusOr<const Json*> JsonObject::Field(const char* key) const {
  const auto found = json_->find(key);
  if (found == json_->end()) return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is missing"));
  return &*found;
}

absl::StatusOr<bool> JsonObject::Bool(const char* key) const {
  PSRING_ASSIGN_OR_RETURN(const Json* field, Field(key));
  if (!field->is_boolean()) return Wrong(key, "true or false");
  return field->get<bool>();
}

absl::StatusOr<int64_t> JsonObject::WholeNumber(const char* key, int64_t least, int64_t most) const {
  PSRING_ASSIGN_OR_RETURN(const Json* field, Field(key));
  const std::string range = absl::StrCat("a whole number from ", least, " to ", most);
  if (!field->is_number_integer()) return Wrong(key, range);
  // Above INT64_MAX it is stored as unsigned, and would come back negative.
  if (field->is_number_unsigned() && field->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return Wrong(key, range);
  }
  const int64_t value = field->get<int64_t>();
  if (value < least || value > most) return Wrong(key, range);
  return value;
}

absl::StatusOr<double> JsonObject::Number(const char* key, double least, double most) const {
  PSRING_ASSIGN_OR_RETURN(const Json* field, Field(key));
  const std::string range = absl::StrCat("a number from ", least, " to ", most);
  if (!field->is_number()) return Wrong(key, range);
  const double value = field->get<double>();
  if (!(value >= least && value <= most)) return Wrong(key, range);
  return value;
}

absl::StatusOr<std::string> JsonObject::Text(const char* key, size_t most_bytes) const {
  PSRING_ASSIGN_OR_RETURN(const Json* field, Field(key));
  if (!field->is_string() || field->get_ref<const std::string&>().size() > most_bytes) {
    return Wrong(key, absl::StrCat("a text of at most ", most_bytes, " bytes"));
  }
  return field->get_ref<const std::string&>();
}

absl::StatusOr<std::vector<std::string>> JsonObject::Texts(const char* key, size_t most_count,
                                                           size_t most_bytes) const {
  PSRING_ASSIGN_OR_RETURN(const Json* field, Field(key));
  const std::string what =
      absl::StrCat("a list of at most ", most_count, " texts of at most ", most_bytes, " bytes");
  if (!field->is_array() || field->size() > most_count) return Wrong(key, what);
  std::vector<std::string> texts;
  for (const Json& element : *field) {
    if (!element.is_string() || element.get_ref<const std::string&>().size() > most_bytes) {
      return Wrong(key, what);
    }
    texts.push_back(element.get_ref<const std::string&>());
  }
  return texts;
}

}  // namespace psring
