#include "trainer/checkpoints/training_position.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/read_file.h"
#include "common/cli/version.h"
#include "common/io/checkpoint_folder.h"
#include "common/io/hash.h"
#include "common/io/json_object.h"
#include "common/io/json_shape.h"
#include "common/io/json_text.h"
#include "common/measure/records.h"

namespace psring {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "psring checkpoint";
constexpr int kFormatVersion = 1;
constexpr size_t kMostShownBytes = 100;  // of a name in an error
constexpr size_t kMostFields = 8192;     // of an object

// Steps are multiplied by workers and samples, which must not overflow.
constexpr int64_t kMostSteps = INT64_MAX / 65536;
// Other counts are only added.
constexpr int64_t kMostCounted = int64_t{1} << 60;

Json ToJson(const TrainingPosition& p) {
  return {
      {"format", kFormat},
      {"version", kFormatVersion},
      {"psring", kVersion},
      {"model", p.model},
      {"data", p.data},
      {"strategy", p.strategy},
      {"asynchronous", p.asynchronous},
      {"workers", p.workers},
      {"wire", p.wire},
      {"sequence", p.sequence},
      {"step", p.step},
      {"updates", p.updates},
      {"samples", p.samples},
      {"sampler",
       {{"seed", p.seed},
        {"samples_in_data", p.data_count},
        {"samples_a_step", p.drawn_batch},
        {"epoch", p.epoch},
        {"samples_drawn_of_epoch", p.epoch_samples}}},
      {"ready_order", p.ready_order},
      {"worker_steps", p.worker_steps},
      {"random",
       "SplitMix64 of seed and epoch (order of samples), of seed, worker and step (delays), and Threefry of "
       "seed, epoch, sample and layer (dropout): no other state"},
      {"optimizer",
       {{"name", OptimizerName(p.optimizer.kind)},
        {"momentum", p.optimizer.momentum},
        {"beta1", p.optimizer.beta1},
        {"beta2", p.optimizer.beta2},
        {"epsilon", p.optimizer.epsilon},
        {"weight_decay", p.optimizer.weight_decay}}},
      {"learning_rate", LearningRate(p.schedule, p.samples)},
      {"schedule",
       {{"decay", LrDecayName(p.schedule.decay)},
        {"base", p.schedule.base},
        {"scale", p.schedule.scale},
        {"warmup_samples", p.schedule.warmup_samples},
        {"total_samples", p.schedule.total_samples}}},
      {"flags", p.flags}};
}

// Reads fields of an untrusted file; remembers the first that is missing or has another type.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}

  void operator()(const char* name, int64_t& value) {
    const Json* field = Find(name);
    if (field == nullptr) return;
    if (!field->is_number_unsigned() || field->get<uint64_t>() > uint64_t{kMostCounted}) {
      return Wrong(name);
    }
    value = field->get<int64_t>();
  }
  void operator()(const char* name, uint64_t& value) {
    const Json* field = Find(name);
    if (field == nullptr) return;
    if (!field->is_number_unsigned()) return Wrong(name);
    value = field->get<uint64_t>();
  }
  void operator()(const char* name, int& value) {
    int64_t wide = value;
    (*this)(name, wide);
    if (wide > INT32_MAX) return Wrong(name);
    value = static_cast<int>(wide);
  }
  void operator()(const char* name, double& value) {
    const Json* field = Find(name);
    if (field == nullptr) return;
    if (!field->is_number()) return Wrong(name);
    value = field->get<double>();
  }
  void operator()(const char* name, bool& value) {
    const Json* field = Find(name);
    if (field == nullptr) return;
    if (!field->is_boolean()) return Wrong(name);
    value = field->get<bool>();
  }
  void operator()(const char* name, std::string& value) {
    const Json* field = Find(name);
    if (field == nullptr) return;
    if (!field->is_string()) return Wrong(name);
    value = field->get<std::string>();
  }
  void operator()(const char* name, std::vector<std::string>& values) {
    const Json* field = Find(name);
    if (field == nullptr) return;
    if (!field->is_array()) return Wrong(name);
    for (const Json& value : *field) {
      if (!value.is_string()) return Wrong(name);
      values.push_back(value.get<std::string>());
    }
  }
  // Stays empty if it is missing.
  void operator()(const char* name, std::vector<int64_t>& values) {
    const auto field = json_.find(name);
    if (field == json_.end()) return;
    if (!field->is_array()) return Wrong(name);
    for (const Json& value : *field) {
      if (!value.is_number_integer() || value < 0 || value > kMostSteps) return Wrong(name);
      values.push_back(value.get<int64_t>());
    }
  }
  // An object's fields.
  Fields Inside(const char* name) {
    static const Json nothing = Json::object();
    const Json* field = Find(name);
    if (field != nullptr && !field->is_object()) Wrong(name);
    return Fields(field != nullptr && field->is_object() ? *field : nothing);
  }
  void Wrong(const std::string& name) {
    if (wrong_.empty()) wrong_ = name;
  }
  const std::string& wrong() const { return wrong_; }

 private:
  const Json* Find(const char* name) {
    const auto found = json_.find(name);
    if (found != json_.end()) return &*found;
    Wrong(name);
    return nullptr;
  }

  const Json& json_;
  std::string wrong_;
};

// The hash of all fields but itself.
std::string HashOfPosition(Json json) {
  if (const auto hashes = json.find("hashes"); hashes != json.end() && hashes->is_object()) {
    hashes->erase(kPositionFile);
  }
  const std::string text = JsonText(json);
  return HashBytes(text.data(), text.size());
}

// DataLoss unless its hash is the recorded one.
absl::Status CheckHash(const Json& json) {
  const auto hashes = json.find("hashes");
  const bool sound = hashes != json.end() && hashes->is_object() && hashes->contains(kPositionFile) &&
                     (*hashes)[kPositionFile] == HashOfPosition(json);
  return sound ? absl::OkStatus()
               : absl::DataLossError(absl::StrCat("the hash of ", kPositionFile, " differs"));
}

absl::StatusOr<Json> Parse(const std::string& text) {
  // Copying and hashing it below is recursive.
  if (const auto shallow = JsonObject::Parse(text, kMostTextBytes); !shallow.ok()) {
    return absl::DataLossError(absl::StrCat(kPositionFile, ": ", shallow.status().message()));
  }
  // Finding a field of an ordered object takes linear time. A file of each worker is the most there can be.
  if (const size_t fields = ShapeOfJson(text).fields; fields > kMostFields) {
    return absl::DataLossError(
        absl::StrCat(kPositionFile, " has ", fields, " fields in one object; the limit is ", kMostFields));
  }
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.value("format", Json()) != kFormat || !json.contains("version") ||
      !json["version"].is_number_integer()) {
    return absl::DataLossError(absl::StrCat(kPositionFile, " was not written by psring, or is truncated"));
  }
  if (json["version"] > kFormatVersion) {
    return absl::UnimplementedError(absl::StrCat("it is of a newer psring: its format is version ",
                                                 json["version"].dump(), ", and this psring reads ",
                                                 kFormatVersion));
  }
  PSRING_RETURN_IF_ERROR(CheckHash(json));
  return json;
}

absl::StatusOr<TrainingPosition> PositionOf(const Json& json) {
  TrainingPosition p;
  Fields fields(json);
  fields("model", p.model);
  fields("data", p.data);
  fields("strategy", p.strategy);
  fields("asynchronous", p.asynchronous);
  fields("workers", p.workers);
  fields("wire", p.wire);
  fields("sequence", p.sequence);
  fields("step", p.step);
  fields("updates", p.updates);
  fields("samples", p.samples);
  fields("flags", p.flags);
  fields("ready_order", p.ready_order);
  fields("worker_steps", p.worker_steps);
  Fields sampler = fields.Inside("sampler");
  sampler("seed", p.seed);
  sampler("samples_in_data", p.data_count);
  sampler("samples_a_step", p.drawn_batch);
  sampler("epoch", p.epoch);
  sampler("samples_drawn_of_epoch", p.epoch_samples);
  Fields optimizer = fields.Inside("optimizer");
  std::string kind;
  optimizer("name", kind);
  optimizer("momentum", p.optimizer.momentum);
  optimizer("beta1", p.optimizer.beta1);
  optimizer("beta2", p.optimizer.beta2);
  optimizer("epsilon", p.optimizer.epsilon);
  optimizer("weight_decay", p.optimizer.weight_decay);
  Fields schedule = fields.Inside("schedule");
  std::string decay;
  schedule("decay", decay);
  schedule("base", p.schedule.base);
  schedule("scale", p.schedule.scale);
  schedule("warmup_samples", p.schedule.warmup_samples);
  schedule("total_samples", p.schedule.total_samples);
  p.schedule.decay = ParseLrDecay(decay).value_or(LrDecay::kConstant);
  const absl::StatusOr<OptimizerKind> parsed = ParseOptimizer(kind);
  if (parsed.ok()) {
    p.optimizer.kind = *parsed;
  } else {
    optimizer.Wrong("optimizer");
  }
  for (const Fields* part : {&fields, &sampler, &optimizer, &schedule}) {
    if (part->wrong().empty()) continue;
    return absl::DataLossError(absl::StrCat(kPositionFile, " has no valid \"", part->wrong(), "\""));
  }
  if (p.step > kMostSteps || p.epoch > kMostSteps) {
    return absl::DataLossError(absl::StrCat(kPositionFile, " has no valid \"step\""));
  }
  return p;
}

}  // namespace

std::string EncodePosition(const TrainingPosition& position,
                           const std::map<std::string, std::string>& hashes) {
  Json json = ToJson(position);
  for (const auto& [name, hash] : hashes) json["hashes"][name] = hash;
  json["hashes"][kPositionFile] = HashOfPosition(json);
  return JsonText(json, 2) + "\n";
}

absl::StatusOr<TrainingPosition> ParsePosition(const std::string& text) {
  PSRING_ASSIGN_OR_RETURN(const Json json, Parse(text));
  return PositionOf(json);
}

absl::StatusOr<std::map<std::string, std::string>> HashesIn(const std::string& text) {
  PSRING_ASSIGN_OR_RETURN(const Json json, Parse(text));
  std::map<std::string, std::string> hashes;
  for (const auto& [name, hash] : json["hashes"].items()) {
    if (name == kPositionFile || !hash.is_string()) continue;
    if (name.empty() || name[0] == '.' || name.find_first_of(std::string_view("/\0", 2)) != name.npos) {
      return absl::DataLossError(absl::StrCat(kPositionFile, " names ",
                                              AsciiJsonText(Json(name.substr(0, kMostShownBytes))),
                                              ", which is not a file of the checkpoint"));
    }
    hashes[name] = hash.get<std::string>();
  }
  return hashes;
}

}  // namespace psring
