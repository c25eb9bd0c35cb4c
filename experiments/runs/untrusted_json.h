// Parses JSON from untrusted sources without exceptions.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace psring {

using UntrustedJson = nlohmann::ordered_json;

// is_discarded() if `text` is not JSON. Values nested deeper than 32 levels are omitted.
UntrustedJson ParseUntrusted(const std::string& text);

// The same for an object with a long array in `field`: calls `take` with each element, which is then removed,
// so that memory does not depend on the length of the text. False: the text is no such object; some elements
// may have been taken before that was found.
bool TakeElements(const std::string& text, const std::string& field,
                  const std::function<void(UntrustedJson& element)>& take);

// Replaces invalid UTF-8.
std::string DumpUntrusted(const UntrustedJson& json);

// `otherwise` if `json` is not an object or has no such number.
double NumberAt(const UntrustedJson& json, const char* key, double otherwise);
// The same for a whole number; `otherwise` also if an int64_t cannot hold it.
int64_t CountAt(const UntrustedJson& json, const char* key, int64_t otherwise);
// Empty if `json` is not an object or has no such string.
std::string TextAt(const UntrustedJson& json, const char* key);

}  // namespace psring
