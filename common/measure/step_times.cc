#include "common/measure/step_times.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "nlohmann/json.hpp"

namespace psring {
namespace {

using OrderedJson = nlohmann::ordered_json;

absl::Status Read(const OrderedJson& worker, const char* key, std::vector<double>& values) {
  const auto found = worker.find(key);
  if (found == worker.end() || !found->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is missing"));
  }
  for (const OrderedJson& value : *found) {
    if (!value.is_number() || !(value.get<double>() >= 0)) {
      return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" contains a value that is not a time"));
    }
    values.push_back(value.get<double>());
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToJson(const StepTimes& times) {
  OrderedJson workers = OrderedJson::array();
  for (const WorkerTimes& worker : times.workers) {
    workers.push_back({{"compute_ms", worker.compute_ms},
                       {"other_ms", worker.other_ms},
                       {"exchange_ms", worker.exchange_ms}});
  }
  return OrderedJson{{"workers", workers}}.dump() + "\n";
}

absl::StatusOr<StepTimes> StepTimesFromJson(const std::string& text) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("workers") || !json["workers"].is_array() ||
      json["workers"].empty()) {
    return absl::InvalidArgumentError("these are not step times: \"workers\" is missing");
  }
  StepTimes times;
  for (const OrderedJson& worker : json["workers"]) {
    WorkerTimes& read = times.workers.emplace_back();
    if (!worker.is_object()) return absl::InvalidArgumentError("a worker's step times are not an object");
    PSRING_RETURN_IF_ERROR(Read(worker, "compute_ms", read.compute_ms));
    PSRING_RETURN_IF_ERROR(Read(worker, "other_ms", read.other_ms));
    PSRING_RETURN_IF_ERROR(Read(worker, "exchange_ms", read.exchange_ms));
    if (read.steps() == 0 || read.other_ms.size() != read.steps() ||
        read.exchange_ms.size() != read.steps()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "worker ", times.workers.size() - 1, " has no steps, or different numbers of times of each kind"));
    }
  }
  return times;
}

MeasuredStep MeasuredStepFor(const StepTimes& times, int worker, int64_t step) {
  const size_t measured = times.workers.size();
  MeasuredStep found{.worker = static_cast<size_t>(worker) % measured};
  const size_t steps = times.workers[found.worker].steps();
  const size_t turn = static_cast<size_t>(worker) / measured;
  const size_t at = static_cast<size_t>(step);
  if (turn == 0 && at < steps) {
    found.step = at;
    return found;
  }
  const size_t cold = std::min(steps - 1, (steps + 9) / 10);
  const size_t warm = steps - cold;
  // Multiples of the golden ratio spread the offsets of workers that share one worker's times.
  const double turns = static_cast<double>(turn) * 0.6180339887498949;
  const size_t shift = static_cast<size_t>((turns - std::floor(turns)) * static_cast<double>(warm));
  found.step = cold + (turn == 0 ? at - steps : at + shift) % warm;
  return found;
}

}  // namespace psring
