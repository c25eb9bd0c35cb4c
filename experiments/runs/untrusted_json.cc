#include "experiments/runs/untrusted_json.h"

#include <nlohmann/json.hpp>

#include "common/io/json_text.h"

namespace psring {

UntrustedJson ParseUntrusted(const std::string& text) {
  constexpr int kDeepest = 32;
  return UntrustedJson::parse(
      text, [](int depth, UntrustedJson::parse_event_t, UntrustedJson&) { return depth <= kDeepest; }, false);
}

std::string DumpUntrusted(const UntrustedJson& json) { return JsonText(json); }

double NumberAt(const UntrustedJson& json, const char* key, double otherwise) {
  if (!json.is_object()) return otherwise;
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : otherwise;
}

int64_t CountAt(const UntrustedJson& json, const char* key, int64_t otherwise) {
  constexpr double kMost = 9e15;  // doubles hold whole numbers up to here
  const double number = NumberAt(json, key, static_cast<double>(otherwise));
  return number >= -kMost && number <= kMost ? static_cast<int64_t>(number) : otherwise;
}

std::string TextAt(const UntrustedJson& json, const char* key) {
  if (!json.is_object()) return "";
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace psring
