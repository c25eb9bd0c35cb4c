#include "common/measure/arrivals.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace psring {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr char kFormat[] = "psring arrivals 1";

constexpr uint64_t kMostWorkers = 1 << 16;  // an update has at most two bytes

size_t Width(int workers) { return workers > 256 ? 2 : 1; }

bool IsText(const OrderedJson& json, const char* key) { return json.contains(key) && json[key].is_string(); }

}  // namespace

std::string ToBytes(const Arrivals& arrivals) {
  OrderedJson counts = OrderedJson::array();
  for (const auto& bucket : arrivals.updates) counts.push_back(bucket.size());
  std::string bytes = OrderedJson{{"format", kFormat},
                                  {"consistency", arrivals.consistency},
                                  {"workers", arrivals.workers},
                                  {"updates", counts}}
                          .dump() +
                      "\n";
  const bool wide = Width(arrivals.workers) == 2;
  for (const auto& bucket : arrivals.updates) {
    for (const uint16_t worker : bucket) {
      bytes.push_back(static_cast<char>(worker & 0xff));
      if (wide) bytes.push_back(static_cast<char>(worker >> 8));
    }
  }
  return bytes;
}

absl::StatusOr<Arrivals> ArrivalsFromBytes(const std::string& bytes) {
  const size_t end = bytes.find('\n');
  const OrderedJson json = OrderedJson::parse(bytes.substr(0, end), nullptr, /*allow_exceptions=*/false);
  if (end == std::string::npos || !json.is_object() || !IsText(json, "format") || json["format"] != kFormat ||
      !json.contains("updates") || !json["updates"].is_array()) {
    return absl::InvalidArgumentError(absl::StrCat("this is not a record of arrivals (\"", kFormat, "\")"));
  }
  if (!IsText(json, "consistency")) {
    return absl::InvalidArgumentError("the record of arrivals has no text \"consistency\"");
  }
  const bool has_count = json.contains("workers") && json["workers"].is_number_unsigned();
  const uint64_t workers = has_count ? json["workers"].get<uint64_t>() : 0;
  if (workers < 1 || workers > kMostWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("the record of arrivals must have 1 to ", kMostWorkers, " \"workers\""));
  }
  Arrivals arrivals{.consistency = json["consistency"], .workers = static_cast<int>(workers)};
  const size_t width = Width(arrivals.workers);
  size_t at = end + 1;
  for (const OrderedJson& count : json["updates"]) {
    const size_t updates = count.is_number_unsigned() ? count.get<size_t>() : SIZE_MAX;
    if (updates > (bytes.size() - at) / width) {
      return absl::InvalidArgumentError("the record of arrivals is truncated");
    }
    auto& bucket = arrivals.updates.emplace_back();
    bucket.reserve(updates);
    for (size_t i = 0; i < updates; ++i, at += width) {
      int worker = static_cast<unsigned char>(bytes[at]);
      if (width == 2) worker |= static_cast<unsigned char>(bytes[at + 1]) << 8;
      if (worker >= arrivals.workers) {
        return absl::InvalidArgumentError(
            absl::StrCat("the record of arrivals names worker ", worker, " of ", arrivals.workers));
      }
      bucket.push_back(static_cast<uint16_t>(worker));
    }
  }
  if (at != bytes.size()) return absl::InvalidArgumentError("the record of arrivals is too long");
  return arrivals;
}

}  // namespace psring
