#include "trainer/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/command_line.h"
#include "common/records.h"
#include "common/safetensors.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "psring checkpoint";
constexpr int kFormatVersion = 1;

// PyTorch's shape of a tensor of ours.
std::vector<int64_t> PyTorchShape(const Tensor& tensor) {
  const std::vector<int>& shape = tensor.shape;
  if (shape.size() != 4) return {shape.begin(), shape.end()};
  return {shape[0], shape[3], shape[1], shape[2]};
}

// Calls `move(ours, PyTorch's)` for each element's index in the tensor, in both orders.
template <typename Move>
void ForEachElement(const Tensor& tensor, const Move& move) {
  const PictureShape& picture = tensor.picture;
  const size_t row = picture.count() > 0 ? picture.count() : tensor.count;
  const size_t pixels = picture.count() > 0 ? size_t{1} * picture.height * picture.width : row;
  const size_t channels = row / std::max<size_t>(1, pixels);
  for (size_t first = 0; first < tensor.count; first += row) {
    for (size_t pixel = 0; pixel < pixels; ++pixel) {
      for (size_t channel = 0; channel < channels; ++channel) {
        move(first + pixel * channels + channel, first + channel * pixels + pixel);
      }
    }
  }
}

NamedTensor ToPyTorch(const std::string& name, const Tensor& tensor, const std::vector<float>& flat) {
  NamedTensor out{.name = name, .shape = PyTorchShape(tensor), .values = std::vector<float>(tensor.count)};
  const float* from = flat.data() + tensor.first;
  ForEachElement(tensor, [&](size_t ours, size_t theirs) { out.values[theirs] = from[ours]; });
  return out;
}

std::string ShapeText(const std::vector<int64_t>& shape) { return Json(shape).dump(); }

// Every tensor of the layout, under `prefix`, out of what a file holds. `unused` loses those that were found.
absl::Status FromPyTorch(const std::string& prefix, const ParameterLayout& layout,
                         std::map<std::string, const NamedTensor*>& unused, std::vector<float>& flat) {
  flat.resize(layout.count());
  for (const Tensor& tensor : layout.tensors()) {
    const auto found = unused.find(prefix + tensor.name);
    if (found == unused.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("it is of another model: there is no ", prefix, tensor.name, " in it"));
    }
    const NamedTensor& stored = *found->second;
    if (stored.shape != PyTorchShape(tensor)) {
      return absl::InvalidArgumentError(absl::StrCat("it is of another model: ", prefix, tensor.name, " is ",
                                                     ShapeText(stored.shape), ", and here ",
                                                     ShapeText(PyTorchShape(tensor))));
    }
    float* to = flat.data() + tensor.first;
    ForEachElement(tensor, [&](size_t ours, size_t theirs) { to[ours] = stored.values[theirs]; });
    unused.erase(found);
  }
  return absl::OkStatus();
}

absl::Status At(const std::string& path, const absl::Status& status) {
  const bool damaged = absl::IsDataLoss(status);
  return absl::Status(status.code(), absl::StrCat(path, damaged ? " is damaged: " : ": ", status.message()));
}

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
      {"random",
       "SplitMix64 of seed and epoch (order of samples), of seed, worker and step (delays): no other state"},
      {"optimizer",
       {{"name", OptimizerName(p.optimizer.kind)},
        {"momentum", p.optimizer.momentum},
        {"beta1", p.optimizer.beta1},
        {"beta2", p.optimizer.beta2},
        {"epsilon", p.optimizer.epsilon}}},
      {"learning_rate", LearningRate(p.schedule, p.samples)},
      {"schedule",
       {{"decay", p.schedule.decay == LrDecay::kLinear ? "linear" : "constant"},
        {"base", p.schedule.base},
        {"scale", p.schedule.scale},
        {"warmup_samples", p.schedule.warmup_samples},
        {"total_samples", p.schedule.total_samples}}},
      {"flags", p.flags}};
}

// Fields of a file that may hold anything; the first that is missing or of another type is remembered.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}

  void operator()(const char* name, int64_t& value) {
    const Json* field = Find(name);
    if (field == nullptr) return;
    if (!field->is_number_integer() || (field->is_number_unsigned() && field->get<uint64_t>() > INT64_MAX) ||
        field->get<int64_t>() < 0) {
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

// Of all but itself.
std::string HashOfPosition(Json json) {
  if (const auto hashes = json.find("hashes"); hashes != json.end() && hashes->is_object()) {
    hashes->erase(kPositionFile);
  }
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return HashBytes(text.data(), text.size());
}

// Whether the file's hash is the one that was noted.
absl::Status CheckHash(const Json& json, const char* file, const std::string& hash) {
  const auto hashes = json.find("hashes");
  const bool sound =
      hashes != json.end() && hashes->is_object() && hashes->contains(file) && (*hashes)[file] == hash;
  return sound ? absl::OkStatus() : absl::DataLossError(absl::StrCat("the hash of ", file, " differs"));
}

absl::StatusOr<Json> ParsePosition(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("format", Json()) != kFormat || !json.contains("version") ||
      !json["version"].is_number_integer()) {
    return absl::DataLossError(absl::StrCat(kPositionFile, " is none of psring's, or ends early"));
  }
  if (json["version"] > kFormatVersion) {
    return absl::UnimplementedError(absl::StrCat("it is of a newer psring: its format is version ",
                                                 json["version"].dump(), ", and this psring reads ",
                                                 kFormatVersion));
  }
  PSRING_RETURN_IF_ERROR(CheckHash(json, kPositionFile, HashOfPosition(json)));
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
  Fields schedule = fields.Inside("schedule");
  std::string decay;
  schedule("decay", decay);
  schedule("base", p.schedule.base);
  schedule("scale", p.schedule.scale);
  schedule("warmup_samples", p.schedule.warmup_samples);
  schedule("total_samples", p.schedule.total_samples);
  p.schedule.decay = decay == "linear" ? LrDecay::kLinear : LrDecay::kConstant;
  const absl::StatusOr<OptimizerKind> parsed = ParseOptimizer(kind);
  if (parsed.ok()) {
    p.optimizer.kind = *parsed;
  } else {
    optimizer.Wrong("optimizer");
  }
  for (const Fields* part : {&fields, &sampler, &optimizer, &schedule}) {
    if (part->wrong().empty()) continue;
    return absl::DataLossError(absl::StrCat(kPositionFile, " has no sound \"", part->wrong(), "\""));
  }
  // A step is multiplied by workers and samples.
  if (p.step > INT64_MAX / 65536 || p.epoch > INT64_MAX / 65536) {
    return absl::DataLossError(absl::StrCat(kPositionFile, " has no sound \"step\""));
  }
  return p;
}

absl::StatusOr<CheckpointBytes> ReadFolder(const std::string& path) {
  CheckpointBytes bytes{.path = path, .has_optimizer = true};
  for (const auto& [name, text] : {std::pair{kPositionFile, &bytes.position},
                                   {kModelFile, &bytes.model},
                                   {kOptimizerFile, &bytes.optimizer}}) {
    PSRING_ASSIGN_OR_RETURN(*text, ReadFile(absl::StrCat(path, "/", name)));
  }
  const auto checked = [&]() -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const Json json, ParsePosition(bytes.position));
    PSRING_RETURN_IF_ERROR(CheckHash(json, kModelFile, HashBytes(bytes.model.data(), bytes.model.size())));
    return CheckHash(json, kOptimizerFile, HashBytes(bytes.optimizer.data(), bytes.optimizer.size()));
  }();
  if (!checked.ok()) return At(path, checked);
  return bytes;
}

}  // namespace

CheckpointFiles EncodeCheckpoint(const TrainingCheckpoint& checkpoint, const ParameterLayout& layout) {
  const TrainingPosition& position = checkpoint.position;
  const std::vector<std::string>& slots = OptimizerSlots(position.optimizer.kind);
  PSRING_CHECK(checkpoint.weights.size() == layout.count() && checkpoint.slots.size() == slots.size());
  std::vector<NamedTensor> model, optimizer;
  for (const Tensor& tensor : layout.tensors()) {
    model.push_back(ToPyTorch(tensor.name, tensor, checkpoint.weights));
    for (size_t i = 0; i < slots.size(); ++i) {
      optimizer.push_back(ToPyTorch(absl::StrCat(slots[i], ".", tensor.name), tensor, checkpoint.slots[i]));
    }
  }
  const std::map<std::string, std::string> metadata = {
      {"format", "pt"}, {"model", position.model}, {"step", absl::StrCat(position.step)}};
  CheckpointFiles files = {{kModelFile, EncodeSafetensors(model, metadata)},
                           {kOptimizerFile, EncodeSafetensors(optimizer, metadata)}};
  Json json = ToJson(position);
  for (const auto& [name, bytes] : files) json["hashes"][name] = HashBytes(bytes.data(), bytes.size());
  json["hashes"][kPositionFile] = HashOfPosition(json);
  files.emplace_back(kPositionFile, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  return files;
}

absl::StatusOr<CheckpointBytes> LoadCheckpoint(const std::string& path, std::vector<std::string>& notes) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    if (fs::exists(fs::path(path) / kPositionFile, error)) return ReadFolder(path);
    const std::vector<CheckpointPath> there = ListCheckpoints(path);
    if (there.empty()) {
      return absl::NotFoundError(
          absl::StrCat(path, " holds no checkpoint: there is no step<N>/", kPositionFile, " in it"));
    }
    absl::Status first_damage;
    std::optional<CheckpointBytes> newest;
    for (const CheckpointPath& one : there) {
      if (newest.has_value() && one.sequence >= 0) continue;
      absl::StatusOr<CheckpointBytes> bytes = ReadFolder(one.path);
      if (bytes.ok()) {
        newest = *std::move(bytes);
        continue;
      }
      if (absl::IsUnimplemented(bytes.status())) return bytes.status();
      if (first_damage.ok()) first_damage = bytes.status();
    }
    if (!newest.has_value()) return first_damage;
    newest->sequence = there.front().sequence;
    if (!first_damage.ok())
      notes.push_back(absl::StrCat(first_damage.message(), "; ", newest->path, " is taken"));
    return *std::move(newest);
  }
  if (!fs::exists(path, error)) return absl::NotFoundError(absl::StrCat("there is no ", path));
  const fs::path beside = fs::path(path).parent_path();
  const std::string name = fs::path(path).filename();
  if ((name == kModelFile || name == kOptimizerFile || name == kPositionFile) &&
      fs::exists(beside / kPositionFile, error)) {
    return ReadFolder(beside.empty() ? "." : beside.string());
  }
  CheckpointBytes weights{.path = path};
  PSRING_ASSIGN_OR_RETURN(weights.model, ReadFile(path));
  return weights;
}

absl::StatusOr<TrainingPosition> DecodePosition(const CheckpointBytes& bytes) {
  if (bytes.position.empty()) return TrainingPosition();
  const auto decoded = [&]() -> absl::StatusOr<TrainingPosition> {
    PSRING_ASSIGN_OR_RETURN(const Json json, ParsePosition(bytes.position));
    return PositionOf(json);
  }();
  if (!decoded.ok()) return At(bytes.path, decoded.status());
  return decoded;
}

absl::StatusOr<TrainingCheckpoint> DecodeCheckpoint(const CheckpointBytes& bytes,
                                                    const ParameterLayout& layout) {
  TrainingCheckpoint checkpoint;
  PSRING_ASSIGN_OR_RETURN(checkpoint.position, DecodePosition(bytes));
  const auto decoded = [&]() -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const std::vector<NamedTensor> model, DecodeSafetensors(bytes.model));
    std::map<std::string, const NamedTensor*> unused;
    for (const NamedTensor& tensor : model) unused[tensor.name] = &tensor;
    PSRING_RETURN_IF_ERROR(FromPyTorch("", layout, unused, checkpoint.weights));
    if (!unused.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "it is of another model: there is a ",
          Json(unused.begin()->first).dump(-1, ' ', true, Json::error_handler_t::replace), " in it"));
    }
    if (!bytes.has_optimizer) return absl::OkStatus();
    PSRING_ASSIGN_OR_RETURN(const std::vector<NamedTensor> state, DecodeSafetensors(bytes.optimizer));
    for (const NamedTensor& tensor : state) unused[tensor.name] = &tensor;
    for (const std::string& slot : OptimizerSlots(checkpoint.position.optimizer.kind)) {
      PSRING_RETURN_IF_ERROR(
          FromPyTorch(absl::StrCat(slot, "."), layout, unused, checkpoint.slots.emplace_back()));
    }
    return absl::OkStatus();
  }();
  if (!decoded.ok()) return At(bytes.path, decoded);
  return checkpoint;
}

}  // namespace psring
