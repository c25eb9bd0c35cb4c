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
template <typename Visitor, typename Record>
void VisitBucket(Visitor& visit, Record& bucket) {
  visit("bucket", bucket.bucket);
  visit("ready_ns", bucket.ready_ns);
  visit("begin_ns", bucket.begin_ns);
  visit("end_ns", bucket.end_ns);
  visit("staleness", bucket.staleness);
  visit("staleness_sum", bucket.staleness_sum);
  visit("pushes", bucket.pushes);
}

template <typename Visitor, typename Record>
void VisitStep(Visitor& visit, Record& record) {
  visit("rank", record.rank);
  visit("step", record.step);
  visit("warmup", record.warmup);
  visit("samples", record.samples);
  visit("dropped", record.dropped);
  visit("begin_ns", record.begin_ns);
  visit("step_ms", record.step_ms);
  visit("compute_ms", record.compute_ms);
  visit("delay_ms", record.delay_ms);
  visit("comm_busy_ms", record.comm_busy_ms);
  visit("exposed_comm_ms", record.exposed_comm_ms);
  visit("payload_tx_bytes", record.payload_tx_bytes);
  visit("payload_rx_bytes", record.payload_rx_bytes);
  visit("loss", record.loss);
  visit("weights_hash", record.weights_hash);
  visit.Objects("buckets", record.buckets, [](auto& v, auto& bucket) { VisitBucket(v, bucket); });
}

template <typename Visitor, typename Record>
void VisitCurvePoint(Visitor& visit, Record& point) {
  visit("samples", point.samples);
  visit("updates", point.updates);
  visit("wall_s", point.wall_s);
  visit("train_loss", point.train_loss);
  visit("test_loss", point.test_loss);
  visit("test_accuracy", point.test_accuracy);
}

template <typename Visitor, typename Record>
void VisitDdpFigures(Visitor& visit, Record& figures) {
  visit("bucket_bytes", figures.bucket_bytes);
  visit("has_rebuilt_buckets", figures.has_rebuilt_buckets);
  visit("rebuilt_bucket_bytes", figures.rebuilt_bucket_bytes);
  visit("ready_order", figures.ready_order);
  visit("forward_ms", figures.forward_ms);
  visit("backward_ms", figures.backward_ms);
  visit("comm_ms", figures.comm_ms);
  visit("overlap_ms", figures.overlap_ms);
}

template <typename Visitor, typename Record>
void VisitDataParallel(Visitor& visit, Record& figures) {
  visit("replicas", figures.replicas);
  visit("inputs_bytes", figures.inputs_bytes);
  visit("inputs_ms", figures.inputs_ms);
  visit("weights_bytes", figures.weights_bytes);
  visit("weights_ms", figures.weights_ms);
  visit("output_gradients_bytes", figures.output_gradients_bytes);
  visit("output_gradients_ms", figures.output_gradients_ms);
  visit("outputs_bytes", figures.outputs_bytes);
  visit("outputs_ms", figures.outputs_ms);
  visit("gradients_bytes", figures.gradients_bytes);
  visit("gradients_ms", figures.gradients_ms);
  visit("loss_ms", figures.loss_ms);
  visit("update_ms", figures.update_ms);
  visit("compute_ms", figures.compute_ms);
  visit("device0_extra_mb", figures.device0_extra_mb);
}

template <typename Visitor, typename Record>
void VisitRankResult(Visitor& visit, Record& result) {
  visit("rank", result.rank);
  visit("world_size", result.world_size);
  visit("strategy", result.strategy);
  visit("device", result.device);
  visit("ops", result.ops);
  visit("backend", result.backend);
  visit("algorithm", result.algorithm);
  visit("transport", result.transport);
  visit("payload", result.payload);
  visit("placement", result.placement);
  visit("parameters", result.parameters);
  visit("global_batch", result.global_batch);
  visit("steps", result.steps);
  visit("samples", result.samples);
  visit("wall_s", result.wall_s);
  visit("bucket_elements", result.bucket_elements);
  visit("final_loss", result.final_loss);
  visit("weights_hash", result.weights_hash);
  visit("pushes", result.pushes);
  visit("staleness_sum", result.staleness_sum);
  visit("staleness_max", result.staleness_max);
  visit("dropped_gradients", result.dropped_gradients);
  visit("peak_memory_mb", result.peak_memory_mb);
  visit("wire_tx_bytes", result.wire_tx_bytes);
  visit.Optional("computed_ms", result.computed_ms);
  visit.Optional("update_ms", result.update_ms);
  visit.Optional("run_delay_ms", result.run_delay_ms);
  visit.Optional("probe_ms", result.probe_ms);
  visit.OptionalObject("ddp", result.ddp, [](auto& v, auto& figures) { VisitDdpFigures(v, figures); });
  visit.OptionalObject("data_parallel", result.data_parallel,
                       [](auto& v, auto& figures) { VisitDataParallel(v, figures); });
  visit.Objects("curve", result.curve, [](auto& v, auto& point) { VisitCurvePoint(v, point); });
}

template <typename Visitor, typename Record>
void VisitServerResult(Visitor& visit, Record& result) {
  visit("server", result.server);
  visit("pushes", result.pushes);
  visit("payload_rx_bytes", result.payload_rx_bytes);
  visit("payload_tx_bytes", result.payload_tx_bytes);
  visit("staleness_histogram", result.staleness_histogram);
  visit("dropped_gradients", result.dropped_gradients);
  visit("restarts", result.restarts);
  visit("lost_updates", result.lost_updates);
  visit("lost_workers", result.lost_workers);
  visit("lost_at_step", result.lost_at_step);
  visit("peak_memory_mb", result.peak_memory_mb);
}

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
  void Object(const char* key, const T& value, VisitFields visit_fields) {
    Key(key);
    ObjectWriter fields(text_);
    visit_fields(fields, value);
    fields.Close();
  }

  template <typename T, typename VisitFields>
  void OptionalObject(const char* key, const T& value, VisitFields visit_fields) {
    Object(key, value, visit_fields);
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
  void Object(const char* key, T& value, VisitFields visit_fields) {
    const Json* found = Find(key);
    if (found == nullptr) return;
    ObjectReader fields(*found);
    visit_fields(fields, value);
    if (!fields.problem_.empty()) problem_ = absl::StrCat("in \"", key, "\": ", fields.problem_);
  }

  template <typename T, typename VisitFields>
  void OptionalObject(const char* key, T& value, VisitFields visit_fields) {
    if (problem_.empty() && object_.contains(key)) Object(key, value, visit_fields);
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

constexpr auto kStep = [](auto& visit, auto& record) { VisitStep(visit, record); };
constexpr auto kDdpFigures = [](auto& visit, auto& figures) { VisitDdpFigures(visit, figures); };
constexpr auto kDataParallel = [](auto& visit, auto& figures) { VisitDataParallel(visit, figures); };
constexpr auto kRankResult = [](auto& visit, auto& result) { VisitRankResult(visit, result); };
constexpr auto kServerResult = [](auto& visit, auto& result) { VisitServerResult(visit, result); };

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
