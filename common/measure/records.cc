#include "common/measure/records.h"

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace psring {
namespace {

using Json = nlohmann::json;

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
  visit.OptionalObject("ddp", record.ddp, kDdpFigures);
  visit.OptionalObject("data_parallel", record.data_parallel, kDataParallel);
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
      Digits(value);
    } else {
      text_ += "null";
    }
  }
  template <std::integral T>
  void Value(T value) {
    Digits(value);
  }
  // The shortest text that reads back as the same value.
  template <typename T>
  void Digits(T value) {
    char digits[32];
    text_.append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
  }
  void Value(const std::string& value) {
    // Bytes that are not UTF-8 (in a path, say) are replaced.
    text_ += Json(value).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
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

// Reads the fields of one JSON object and keeps the first error. Other fields are ignored, so that later
// versions can add some.
class ObjectReader {
 public:
  explicit ObjectReader(const Json& object) : object_(object) {
    if (!object_.is_object()) problem_ = "not a JSON object";
  }

  template <typename T>
  void operator()(const char* key, T& value) {
    const Json* found = Find(key);
    if (found != nullptr && !Read(*found, value)) Wrong(key);
  }
  // Fields that earlier versions did not write keep their defaults.
  template <typename T>
  void Optional(const char* key, T& value) {
    if (problem_.empty() && object_.contains(key)) (*this)(key, value);
  }

  template <typename T, typename VisitFields>
  void OptionalObject(const char* key, T& value, VisitFields visit_fields) {
    if (!problem_.empty() || !object_.contains(key)) return;
    ObjectReader fields(object_[key]);
    visit_fields(fields, value);
    if (!fields.problem_.empty()) problem_ = absl::StrCat("in \"", key, "\": ", fields.problem_);
  }

  template <typename T, typename VisitElement>
  void Objects(const char* key, std::vector<T>& values, VisitElement visit_element) {
    const Json* found = Find(key);
    if (found == nullptr) return;
    if (!found->is_array()) return Wrong(key);
    values.clear();
    for (const Json& json : *found) {
      ObjectReader element(json);
      visit_element(element, values.emplace_back());
      if (!element.problem_.empty()) {
        problem_ = absl::StrCat("in \"", key, "\": ", element.problem_);
        return;
      }
    }
  }

  const std::string& problem() const { return problem_; }

 private:
  const Json* Find(const char* key) {
    if (!problem_.empty()) return nullptr;
    const auto found = object_.find(key);
    if (found != object_.end()) return &*found;
    problem_ = absl::StrCat("\"", key, "\" is missing");
    return nullptr;
  }
  void Wrong(const char* key) { problem_ = absl::StrCat("\"", key, "\" has the wrong type"); }

  static bool Read(const Json& json, std::string& value) {
    if (!json.is_string()) return false;
    value = json.get_ref<const std::string&>();
    return true;
  }
  static bool Read(const Json& json, bool& value) {
    if (!json.is_boolean()) return false;
    value = json.get<bool>();
    return true;
  }
  static bool Read(const Json& json, double& value) {
    if (!json.is_number() && !json.is_null()) return false;
    value = json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
    return true;
  }
  template <std::integral T>
  static bool Read(const Json& json, T& value) {
    if (!json.is_number_integer()) return false;
    value = json.get<T>();
    return true;
  }
  template <typename T>
  static bool Read(const Json& json, std::vector<T>& values) {
    if (!json.is_array()) return false;
    values.clear();
    for (const Json& element : json) {
      if (!Read(element, values.emplace_back())) return false;
    }
    return true;
  }

  const Json& object_;
  std::string problem_;
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
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(what, ": not JSON"));
  Record record;
  ObjectReader reader(json);
  visit(reader, record);
  if (!reader.problem().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", reader.problem()));
  }
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
  return Read<RankResult>(text, "rank result", kRankResult);
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
