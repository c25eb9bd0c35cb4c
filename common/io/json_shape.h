// What a JSON text contains, counted in linear time before it is parsed. Copying a value is recursive;
// nlohmann's parser takes quadratic time if it is given a callback, and an ordered object in its fields.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace psring {

struct JsonShape {
  size_t depth = 0;   // of nested objects and arrays
  size_t fields = 0;  // of the object that has the most
};

// Counting ends at a depth of 1000, which no document of ours has.
JsonShape ShapeOfJson(absl::string_view text);

}  // namespace psring
