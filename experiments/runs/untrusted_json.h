// JSON that somebody else may have written: nothing here throws, whatever the text holds.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace psring {

using UntrustedJson = nlohmann::ordered_json;

// Discarded (is_discarded()) where `text` is no JSON; what is nested deeper than anything of ours is left
// out.
UntrustedJson ParseUntrusted(const std::string& text);

// Broken UTF-8 is replaced.
std::string DumpUntrusted(const UntrustedJson& json);

// `otherwise` where `json` is no object, or has no such number.
double NumberAt(const UntrustedJson& json, const char* key, double otherwise);
// Empty likewise.
std::string TextAt(const UntrustedJson& json, const char* key);

}  // namespace psring
