#include "common/measure/records.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/read_file.h"
#include "common/io/json_object.h"
#include "common/io/json_text.h"
#include "common/text/units.h"
#include "nlohmann/json.hpp"

namespace psring {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxElements = 1 << 24, kMaxFieldBytes = 64 << 10;
// Sums and differences of a few of them do not overflow.
constexpr int64_t kMaxWhole = int64_t{1} << 60;
constexpr double kMaxRecordMs = 1e11;
constexpr int64_t kMaxBucketElements = int64_t{1} << 40;

// The fields of each record, listed once: both writer and reader visit them.
#define FIELD(name) visit(#name, record.name)

constexpr auto kBucket = [](auto& visit, auto& record) {
  FIELD(bucket), FIELD(ready_ns), FIELD(begin_ns), FIELD(end_ns), FIELD(staleness), FIELD(staleness_sum),
      FIELD(pushes);
};

constexpr auto kStep = [](auto& visit, auto& record) {
  FIELD(rank), FIELD(step), FIELD(warmup), FIELD(samples), FIELD(dropped), FIELD(begin_ns), FIELD(step_ms),
      FIELD(compute_ms), FIELD(delay_ms), FIELD(comm_busy_ms), FIELD(exposed_comm_ms),
      FIELD(payload_tx_bytes), FIELD(payload_rx_bytes), FIELD(loss), FIELD(weights_hash);
  visit.Objects("buckets", record.buckets, kBucket);
  visit.Optional("bubble_ms", record.bubble_ms);
  visit.Optional("stage_tx_bytes", record.stage_tx_bytes);
  visit.Optional("tensor_tx_bytes", record.tensor_tx_bytes);
  visit.Optional("activation_message_ms", record.activation_message_ms);
  visit.Optional("gradient_message_ms", record.gradient_message_ms);
  visit.Optional("sequence_tx_bytes", record.sequence_tx_bytes);
};

constexpr auto kCurvePoint = [](auto& visit, auto& record) {
  FIELD(samples), FIELD(updates), FIELD(wall_s), FIELD(train_loss), FIELD(test_loss), FIELD(test_accuracy);
};

constexpr auto kDdpFigures = [](auto& visit, auto& record) {
  FIELD(bucket_bytes), FIELD(has_rebuilt_buckets), FIELD(rebuilt_bucket_bytes), FIELD(ready_order),
      FIELD(forward_ms), FIELD(backward_ms), FIELD(comm_ms), FIELD(overlap_ms);
};

constexpr auto kDataParallel = [](auto& visit, auto& record) {
  FIELD(replicas), FIELD(inputs_bytes), FIELD(inputs_ms), FIELD(weights_bytes), FIELD(weights_ms),
      FIELD(output_gradients_bytes), FIELD(output_gradients_ms), FIELD(outputs_bytes), FIELD(outputs_ms),
      FIELD(gradients_bytes), FIELD(gradients_ms), FIELD(loss_ms), FIELD(update_ms), FIELD(compute_ms),
      FIELD(device0_extra_mb);
};

constexpr auto kRows = [](auto& visit, auto& record) {
  FIELD(gathered_bytes), FIELD(reduced_bytes), FIELD(pushed_bytes), FIELD(asked_bytes), FIELD(pulled_bytes);
};

constexpr auto kMemory = [](auto& visit, auto& record) {
  FIELD(params_mb), FIELD(grads_mb), FIELD(optimizer_mb), FIELD(activations_mb);
};

constexpr auto kRankResult = [](auto& visit, auto& record) {
  FIELD(rank), FIELD(world_size), FIELD(strategy), FIELD(device), FIELD(ops), FIELD(backend),
      FIELD(algorithm), FIELD(transport), FIELD(payload), FIELD(placement), FIELD(parameters),
      FIELD(global_batch), FIELD(steps), FIELD(samples), FIELD(wall_s), FIELD(bucket_elements),
      FIELD(final_loss), FIELD(weights_hash), FIELD(pushes), FIELD(staleness_sum), FIELD(staleness_max),
      FIELD(dropped_gradients), FIELD(peak_memory_mb), FIELD(wire_tx_bytes);
  visit.Optional("computed_ms", record.computed_ms);
  visit.Optional("update_ms", record.update_ms);
  visit.Optional("run_delay_ms", record.run_delay_ms);
  visit.Optional("probe_ms", record.probe_ms);
  visit.Optional("flags", record.flags);
  visit.Optional("optimizer", record.optimizer);
  visit.Optional("lr", record.lr);
  visit.Optional("wires", record.wires);
  visit.Optional("host", record.host);
  visit.OptionalObject("ddp", record.ddp, kDdpFigures);
  visit.OptionalObject("data_parallel", record.data_parallel, kDataParallel);
  visit.OptionalObject("rows", record.rows, kRows);
  visit.OptionalObject("memory", record.memory, kMemory);
  visit.OptionalObject("predicted_memory", record.predicted_memory, kMemory);
  visit.Optional("gathered_elements", record.gathered_elements);
  visit.Optional("tied_elements", record.tied_elements);
  visit.Objects("curve", record.curve, kCurvePoint);
};

constexpr auto kServerResult = [](auto& visit, auto& record) {
  FIELD(server), FIELD(pushes), FIELD(payload_rx_bytes), FIELD(payload_tx_bytes), FIELD(staleness_histogram),
      FIELD(dropped_gradients), FIELD(restarts), FIELD(lost_updates), FIELD(lost_workers),
      FIELD(lost_at_step), FIELD(peak_memory_mb);
};

#undef FIELD

// One JSON object on one line. Written directly rather than through a document, because a step record is
// written in every step and must not slow down the run.
class ObjectWriter {
 public:
  explicit ObjectWriter(std::string& text) : text_(text) { text_ += '{'; }
  void Close() { text_ += '}'; }

  template <typename T>
  void operator()(const char* key, const T& value) {
    Key(key);
    Value(value);
  }
  template <typename T>
  void Optional(const char* key, const T& value) {
    (*this)(key, value);
  }

  template <typename T, typename VisitFields>
  void OptionalObject(const char* key, const T& value, VisitFields visit_fields) {
    Key(key);
    ObjectWriter fields(text_);
    visit_fields(fields, value);
    fields.Close();
  }

  template <typename T, typename VisitElement>
  void Objects(const char* key, const std::vector<T>& values, VisitElement visit_element) {
    Key(key);
    text_ += '[';
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) text_ += ',';
      ObjectWriter element(text_);
      visit_element(element, values[i]);
      element.Close();
    }
    text_ += ']';
  }

 private:
  void Key(const char* key) {
    if (!first_) text_ += ',';
    first_ = false;
    text_ += '"';
    text_ += key;
    text_ += "\":";
  }

  void Value(bool value) { text_ += value ? "true" : "false"; }
  void Value(double value) {
    // JSON has neither infinity nor NaN, and a diverged loss is one of them.
    if (std::isfinite(value)) {
      text_ += ShortestText(value);
    } else {
      text_ += "null";
    }
  }
  template <std::integral T>
  void Value(T value) {
    text_ += ShortestText(value);
  }
  void Value(const std::string& value) { text_ += JsonText(Json(value)); }
  template <typename T>
  void Value(const std::vector<T>& values) {
    text_ += '[';
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) text_ += ',';
      Value(values[i]);
    }
    text_ += ']';
  }

  std::string& text_;
  bool first_ = true;
};

// Reads the fields of one JSON object and keeps the first error.
class ObjectReader {
 public:
  explicit ObjectReader(const JsonObject& object) : object_(object) {}

  template <typename T>
  void operator()(const char* key, T& value) {
    if (status_.ok()) Read(key, value);
  }
  // Fields that earlier versions did not write keep their defaults.
  template <typename T>
  void Optional(const char* key, T& value) {
    if (object_.Has(key)) (*this)(key, value);
  }

  template <typename T, typename VisitFields>
  void OptionalObject(const char* key, T& value, VisitFields visit_fields) {
    if (!status_.ok() || !object_.Has(key)) return;
    const absl::StatusOr<JsonObject> object = object_.Object(key);
    status_ = object.ok() ? ReadAll(*object, value, visit_fields) : object.status();
  }

  template <typename T, typename VisitElement>
  void Objects(const char* key, std::vector<T>& values, VisitElement visit_element) {
    if (!status_.ok()) return;
    const absl::StatusOr<std::vector<JsonObject>> objects = object_.Objects(key, kMaxElements);
    status_ = objects.status();
    if (!status_.ok()) return;
    values.clear();
    for (const JsonObject& object : *objects) {
      status_ = ReadAll(object, values.emplace_back(), visit_element);
      if (!status_.ok()) return;
    }
  }

  template <typename T, typename VisitFields>
  static absl::Status ReadAll(const JsonObject& object, T& value, VisitFields visit_fields) {
    ObjectReader fields(object);
    visit_fields(fields, value);
    return fields.status_;
  }

 private:
  template <typename T>
  void Keep(absl::StatusOr<T> read, T& value) {
    status_ = read.status();
    if (read.ok()) value = *std::move(read);
  }
  void Read(const char* key, std::string& value) { Keep(object_.Text(key, kMaxFieldBytes), value); }
  void Read(const char* key, bool& value) { Keep(object_.Bool(key), value); }
  void Read(const char* key, double& value) {
    // As nanoseconds, times fit into an int64_t.
    const double most = absl::EndsWith(key, "_ms") ? kMaxRecordMs : std::numeric_limits<double>::max();
    Keep(object_.NumberOrNull(key, -most, most), value);
  }
  template <std::integral T>
  void Read(const char* key, T& value) {
    using Limits = std::numeric_limits<T>;
    const auto least = static_cast<T>(std::is_signed_v<T> ? std::max<int64_t>(Limits::min(), -kMaxWhole) : 0);
    const auto most = static_cast<T>(std::min<uint64_t>(Limits::max(), kMaxWhole));
    Keep(object_.WholeNumber<T>(key, least, most), value);
  }
  void Read(const char* key, std::vector<int64_t>& values) {
    Keep(object_.WholeNumbers(key, kMaxElements, -kMaxWhole, kMaxWhole), values);
  }
  void Read(const char* key, std::vector<std::string>& values) {
    Keep(object_.Texts(key, kMaxElements, kMaxFieldBytes), values);
  }

  const JsonObject& object_;
  absl::Status status_;
};

template <typename Visit, typename Record>
std::string Write(const Record& record, Visit visit, size_t size_hint) {
  std::string text;
  text.reserve(size_hint);
  ObjectWriter writer(text);
  visit(writer, record);
  writer.Close();
  return text;
}

template <typename Record, typename Visit>
absl::StatusOr<Record> Read(const std::string& text, const char* what, Visit visit) {
  PSRING_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::Parse(text, kMaxRecordBytes, what));
  Record record;
  PSRING_RETURN_IF_ERROR(ObjectReader::ReadAll(json, record, visit));
  return record;
}

}  // namespace

std::string ToJson(const StepRecord& record) {
  return Write(record, kStep, 512 + 160 * record.buckets.size());
}
absl::StatusOr<StepRecord> StepRecordFromJson(const std::string& line) {
  return Read<StepRecord>(line, "step record", kStep);
}
std::string ToJson(const DdpFigures& figures) { return Write(figures, kDdpFigures, 1024); }
std::string ToJson(const DataParallelFigures& figures) { return Write(figures, kDataParallel, 512); }
std::string ToJson(const RankResult& result) { return Write(result, kRankResult, 1024); }
absl::StatusOr<RankResult> RankResultFromJson(const std::string& text) {
  absl::StatusOr<RankResult> result = Read<RankResult>(text, "rank result", kRankResult);
  if (!result.ok()) return result;
  for (const int64_t elements : result->bucket_elements) {
    if (elements >= 0 && elements <= kMaxBucketElements) continue;
    return InvalidArgument("rank result: bucket_elements: expected from 0 to ", kMaxBucketElements,
                           ", found ", elements);
  }
  return result;
}
std::string ToJson(const ServerResult& result) { return Write(result, kServerResult, 1024); }
absl::StatusOr<ServerResult> ServerResultFromJson(const std::string& text) {
  return Read<ServerResult>(text, "server result", kServerResult);
}

double PeakMemoryMb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::strtod(line.c_str() + 6, nullptr) / 1024;  // in KiB
  }
  return 0;
}

}  // namespace psring
