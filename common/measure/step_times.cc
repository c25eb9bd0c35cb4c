#include "common/measure/step_times.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/read_file.h"
#include "common/io/json_object.h"
#include "nlohmann/json.hpp"

namespace psring {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxWorkersTimed = 1 << 16, kMaxSteps = 1 << 24;
constexpr double kMaxMs = 1e9;

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
  PSRING_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::Parse(text, kMaxRecordBytes));
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> workers, json.Objects("workers", kMaxWorkersTimed));
  if (workers.empty()) return InvalidArgument("workers: none has step times");
  StepTimes times;
  for (const JsonObject& worker : workers) {
    WorkerTimes& read = times.workers.emplace_back();
    PSRING_ASSIGN_OR_RETURN(read.compute_ms, worker.Numbers("compute_ms", kMaxSteps, 0, kMaxMs));
    PSRING_ASSIGN_OR_RETURN(read.other_ms, worker.Numbers("other_ms", kMaxSteps, 0, kMaxMs));
    PSRING_ASSIGN_OR_RETURN(read.exchange_ms, worker.Numbers("exchange_ms", kMaxSteps, 0, kMaxMs));
    if (read.steps() == 0 || read.other_ms.size() != read.steps() ||
        read.exchange_ms.size() != read.steps()) {
      return InvalidArgument("worker ", times.workers.size() - 1,
                             " has no steps, or different numbers of times of each kind");
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
