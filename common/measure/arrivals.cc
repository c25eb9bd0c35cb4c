#include "common/measure/arrivals.h"

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/read_file.h"
#include "common/io/json_object.h"
#include "nlohmann/json.hpp"

namespace psring {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr char kFormat[] = "psring arrivals 1";

constexpr char kNotArrivals[] = "this is not a record of arrivals (\"psring arrivals 1\")";

constexpr int kMaxWorkers = 1 << 16;  // an update has at most two bytes
constexpr size_t kMaxBuckets = 1 << 20, kMaxConsistencyBytes = 64;

size_t Width(int workers) { return workers > 256 ? 2 : 1; }

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
  if (end == std::string::npos) return InvalidArgument(kNotArrivals);
  PSRING_ASSIGN_OR_RETURN(const JsonObject json,
                          JsonObject::Parse(bytes.substr(0, end), kMaxTextBytes, "the record of arrivals"));
  if (json.Text("format", sizeof(kFormat)).value_or("") != kFormat) return InvalidArgument(kNotArrivals);
  Arrivals arrivals;
  PSRING_ASSIGN_OR_RETURN(arrivals.consistency, json.Text("consistency", kMaxConsistencyBytes));
  PSRING_ASSIGN_OR_RETURN(arrivals.workers, json.WholeNumber("workers", 1, kMaxWorkers));
  const size_t width = Width(arrivals.workers);
  size_t at = end + 1;
  PSRING_ASSIGN_OR_RETURN(const std::vector<int64_t> counts,
                          json.WholeNumbers("updates", kMaxBuckets, 0, INT64_MAX));
  for (const int64_t count : counts) {
    const auto updates = static_cast<size_t>(count);
    if (updates > (bytes.size() - at) / width) return InvalidArgument("the record of arrivals is truncated");
    auto& bucket = arrivals.updates.emplace_back();
    bucket.reserve(updates);
    for (size_t i = 0; i < updates; ++i, at += width) {
      int worker = static_cast<unsigned char>(bytes[at]);
      if (width == 2) worker |= static_cast<unsigned char>(bytes[at + 1]) << 8;
      if (worker >= arrivals.workers) {
        return InvalidArgument("the record of arrivals names worker ", worker, " of ", arrivals.workers);
      }
      bucket.push_back(static_cast<uint16_t>(worker));
    }
  }
  if (at != bytes.size()) return InvalidArgument("the record of arrivals is too long");
  return arrivals;
}

}  // namespace psring
