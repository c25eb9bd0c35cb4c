// Parses JSON from untrusted sources without exceptions.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace psring {

using UntrustedJson = nlohmann::ordered_json;

// is_discarded() if `text` is not JSON, is nested deeper than 32 levels, or an object has too many fields.
UntrustedJson ParseUntrusted(absl::string_view text);

// The same for an object with a long array in `field`: calls `take` with each element, so that memory does
// not depend on the length of the array. False: the text is no such object; some elements may have been taken
// before that was found.
bool TakeElements(absl::string_view text, absl::string_view field,
                  const std::function<void(UntrustedJson& element)>& take);

// Replaces invalid UTF-8.
std::string DumpUntrusted(const UntrustedJson& json);

// Null if `json` is not an object or has no such field.
const UntrustedJson& FieldAt(const UntrustedJson& json, const char* key);
// The same for an array; empty if there is none.
const UntrustedJson& ListAt(const UntrustedJson& json, const char* key);
// `otherwise` if `json` is not an object or has no such number.
double NumberAt(const UntrustedJson& json, const char* key, double otherwise);
// The same for a whole number; `otherwise` also if an int64_t cannot hold it.
int64_t CountAt(const UntrustedJson& json, const char* key, int64_t otherwise);
// Empty if `json` is not an object or has no such string.
std::string TextAt(const UntrustedJson& json, const char* key);

}  // namespace psring
