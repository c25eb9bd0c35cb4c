#include "trainer/checkpoints/training_position.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/read_file.h"
#include "common/cli/version.h"
#include "common/io/hash.h"
#include "common/io/json_object.h"
#include "common/io/json_text.h"

namespace psring {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "psring checkpoint";
constexpr int kFormatVersion = 1;
constexpr size_t kMaxShownBytes = 100;  // of a name in an error
constexpr size_t kMaxFields = 8192;     // of an object

// Steps are multiplied by workers and samples, which must not overflow.
constexpr int64_t kMaxSteps = INT64_MAX / 65536;
// Other counts are only added.
constexpr int64_t kMaxCounted = int64_t{1} << 60;

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
  return sound ? absl::OkStatus() : DataLoss("the hash of ", kPositionFile, " differs");
}

absl::StatusOr<Json> Parse(const std::string& text) {
  // Copying and hashing it below is recursive.
  if (const auto shallow = JsonObject::Parse(text, kMaxTextBytes); !shallow.ok()) {
    return DataLoss(kPositionFile, ": ", shallow.status().message());
  }
  // Finding a field of an ordered object takes linear time. A file of each worker is the most there can be.
  if (const size_t fields = ShapeOfJson(text).fields; fields > kMaxFields) {
    return DataLoss(kPositionFile, " has ", fields, " fields in one object; the limit is ", kMaxFields);
  }
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.value("format", Json()) != kFormat || !json.contains("version") ||
      !json["version"].is_number_integer()) {
    return DataLoss(kPositionFile, " was not written by psring, or is truncated");
  }
  if (json["version"] > kFormatVersion) {
    return Unimplemented("it is of a newer psring: its format is version ", json["version"].dump(),
                         ", and this psring reads ", kFormatVersion);
  }
  PSRING_RETURN_IF_ERROR(CheckHash(json));
  return json;
}

double Number(const JsonObject& json, const char* key, absl::Status& status) {
  constexpr double kMax = std::numeric_limits<double>::max();
  const absl::StatusOr<double> number = json.Number(key, -kMax, kMax);
  status.Update(number.status());
  return number.value_or(0);
}

int64_t Count(const JsonObject& json, const char* key, absl::Status& status, int64_t most = kMaxCounted) {
  const absl::StatusOr<int64_t> count = json.WholeNumber<int64_t>(key, 0, most);
  status.Update(count.status());
  return count.value_or(0);
}

std::string Text(const JsonObject& json, const char* key, absl::Status& status) {
  const absl::StatusOr<std::string> text = json.Text(key, kMaxTextBytes);
  status.Update(text.status());
  return text.value_or("");
}

absl::StatusOr<TrainingPosition> PositionOf(const JsonObject& json) {
  PSRING_ASSIGN_OR_RETURN(const JsonObject sampler, json.Object("sampler"));
  PSRING_ASSIGN_OR_RETURN(const JsonObject optimizer, json.Object("optimizer"));
  PSRING_ASSIGN_OR_RETURN(const JsonObject schedule, json.Object("schedule"));
  absl::Status status;  // the first error
  TrainingPosition p;
  p.model = Text(json, "model", status);
  p.data = Text(json, "data", status);
  p.strategy = Text(json, "strategy", status);
  p.workers = static_cast<int>(Count(json, "workers", status, INT32_MAX));
  p.wire = Text(json, "wire", status);
  p.sequence = Count(json, "sequence", status);
  p.step = Count(json, "step", status, kMaxSteps);
  p.updates = Count(json, "updates", status);
  p.samples = Count(json, "samples", status);
  p.data_count = Count(sampler, "samples_in_data", status);
  p.drawn_batch = Count(sampler, "samples_a_step", status);
  p.epoch = Count(sampler, "epoch", status, kMaxSteps);
  p.epoch_samples = Count(sampler, "samples_drawn_of_epoch", status);
  p.optimizer.momentum = Number(optimizer, "momentum", status);
  p.optimizer.beta1 = Number(optimizer, "beta1", status);
  p.optimizer.beta2 = Number(optimizer, "beta2", status);
  p.optimizer.epsilon = Number(optimizer, "epsilon", status);
  p.optimizer.weight_decay = Number(optimizer, "weight_decay", status);
  p.schedule.decay = ParseLrDecay(Text(schedule, "decay", status)).value_or(LrDecay::kConstant);
  p.schedule.base = Number(schedule, "base", status);
  p.schedule.scale = Number(schedule, "scale", status);
  p.schedule.warmup_samples = Count(schedule, "warmup_samples", status);
  p.schedule.total_samples = Count(schedule, "total_samples", status);
  PSRING_RETURN_IF_ERROR(status);
  PSRING_ASSIGN_OR_RETURN(p.asynchronous, json.Bool("asynchronous"));
  PSRING_ASSIGN_OR_RETURN(p.seed, sampler.Unsigned("seed"));
  PSRING_ASSIGN_OR_RETURN(p.flags, json.Texts("flags", kMaxTextBytes, kMaxTextBytes));
  PSRING_ASSIGN_OR_RETURN(p.ready_order, json.Texts("ready_order", kMaxTextBytes, kMaxTextBytes));
  if (json.Has("worker_steps")) {
    PSRING_ASSIGN_OR_RETURN(p.worker_steps, json.WholeNumbers("worker_steps", kMaxTextBytes, 0, kMaxSteps));
  }
  PSRING_ASSIGN_OR_RETURN(p.optimizer.kind, ParseOptimizer(Text(optimizer, "name", status)));
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
  PSRING_RETURN_IF_ERROR(Parse(text).status());
  PSRING_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::Parse(text, kMaxTextBytes, kPositionFile));
  absl::StatusOr<TrainingPosition> position = PositionOf(json);
  if (!position.ok()) return absl::DataLossError(position.status().message());
  return position;
}

absl::StatusOr<std::map<std::string, std::string>> HashesIn(const std::string& text) {
  PSRING_ASSIGN_OR_RETURN(const Json json, Parse(text));
  std::map<std::string, std::string> hashes;
  for (const auto& [name, hash] : json["hashes"].items()) {
    if (name == kPositionFile || !hash.is_string()) continue;
    if (name.empty() || name[0] == '.' || name.find_first_of(std::string_view("/\0", 2)) != name.npos) {
      return DataLoss(kPositionFile, " names ", AsciiJsonText(Json(name.substr(0, kMaxShownBytes))),
                      ", which is not a file of the checkpoint");
    }
    hashes[name] = hash.get<std::string>();
  }
  return hashes;
}

}  // namespace psring
