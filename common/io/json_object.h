// A JSON object whose text comes from a file or another process. Every field is read with its type and
// bounds, so that no text can cause an exception or an allocation beyond the bounds.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// Immutable, and cheap to copy. The readers return InvalidArgument if a field is missing, has another type or
// is out of bounds: "cluster.json: nodes[3].gpus: expected a whole number from 1 to 1024, found 4294967297".
// If `otherwise` is set, it is the value of a missing field. Unknown fields are ignored, so that later
// versions can add some.
class JsonObject {
 public:
  // `name`, such as the path of a file, begins every error; it may be empty. InvalidArgument: the text is
  // longer than `most_bytes`, nested deeper than any of our documents, not JSON or not an object.
  static absl::StatusOr<JsonObject> Parse(const std::string& text, size_t most_bytes,
                                          const std::string& name = "");

  bool Has(const char* key) const;

  absl::StatusOr<bool> Bool(const char* key, std::optional<bool> otherwise = {}) const;
  template <std::integral T>
  absl::StatusOr<T> WholeNumber(const char* key, T least, std::type_identity_t<T> most,
                                std::type_identity_t<std::optional<T>> otherwise = {}) const {
    if (otherwise && !Has(key)) return *otherwise;
    const absl::StatusOr<int64_t> value = Whole(key, least, most);
    if (!value.ok()) return value.status();
    return static_cast<T>(*value);
  }
  // Of 64 bits.
  absl::StatusOr<uint64_t> Unsigned(const char* key) const;
  absl::StatusOr<double> Number(const char* key, double least, double most,
                                std::optional<double> otherwise = {}) const;
  // The same, but null is NaN.
  absl::StatusOr<double> NumberOrNull(const char* key, double least, double most) const;
  absl::StatusOr<std::string> Text(const char* key, size_t most_bytes,
                                   const std::optional<std::string>& otherwise = {}) const;

  // Lists of at most `most_count` elements.
  absl::StatusOr<std::vector<std::string>> Texts(const char* key, size_t most_count, size_t most_bytes) const;
  absl::StatusOr<std::vector<int64_t>> WholeNumbers(const char* key, size_t most_count, int64_t least,
                                                    int64_t most) const;
  absl::StatusOr<std::vector<double>> Numbers(const char* key, size_t most_count, double least,
                                              double most) const;

  absl::StatusOr<JsonObject> Object(const char* key) const;
  absl::StatusOr<std::vector<JsonObject>> Objects(const char* key, size_t most_count) const;
  // The names of an object's fields.
  std::vector<std::string> Keys() const;

  // "NAME: KEY: WHAT", for a check of several fields.
  absl::Status Error(const std::string& key, const std::string& what) const;
  // "NAME: unknown field KEY".
  absl::Status UnknownField(const std::string& key) const;

 private:
  using Json = std::shared_ptr<const nlohmann::json>;

  JsonObject(Json json, std::string name, std::string path)
      : json_(std::move(json)), name_(std::move(name)), path_(std::move(path)) {}

  absl::Status Wrong(const std::string& key, const std::string& expected, const nlohmann::json& found) const;
  absl::StatusOr<const nlohmann::json*> Field(const char* key) const;
  absl::StatusOr<int64_t> Whole(const char* key, int64_t least, int64_t most) const;
  // The elements of a list, each of which `read` accepts; `what` describes one.
  template <typename T, typename Read>
  absl::StatusOr<std::vector<T>> List(const char* key, size_t most_count, const std::string& what,
                                      const Read& read) const;

  Json json_;
  std::string name_;  // of the document
  std::string path_;  // of this object within it: "nodes[3]."
};

}  // namespace psring
