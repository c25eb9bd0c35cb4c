// A JSON object whose text comes from another process. Every field is read with its type and bounds, so that
// no text can cause an exception or an allocation beyond the bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// Immutable, and cheap to copy. The readers return InvalidArgument, naming the field, if it is missing, has
// another type or is out of bounds. Unknown fields are ignored, so that later versions can add some.
class JsonObject {
 public:
  // InvalidArgument: the text is longer than `most_bytes`, nested deeper than any of our messages, not JSON
  // or not an object.
  static absl::StatusOr<JsonObject> Parse(const std::string& text, size_t most_bytes);

  absl::StatusOr<bool> Bool(const char* key) const;
  absl::StatusOr<int64_t> WholeNumber(const char* key, int64_t least, int64_t most) const;
  absl::StatusOr<double> Number(const char* key, double least, double most) const;
  absl::StatusOr<std::string> Text(const char* key, size_t most_bytes) const;
  // At most `most_count` texts of at most `most_bytes` each.
  absl::StatusOr<std::vector<std::string>> Texts(const char* key, size_t most_count, size_t most_bytes) const;

 private:
  explicit JsonObject(std::shared_ptr<const nlohmann::json> json) : json_(std::move(json)) {}
  // InvalidArgument if there is no such field.
  absl::StatusOr<const nlohmann::json*> Field(const char* key) const;

  std::shared_ptr<const nlohmann::json> json_;
};

}  // namespace psring
