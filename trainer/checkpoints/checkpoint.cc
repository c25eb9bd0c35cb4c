#include "trainer/checkpoints/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "common/io/hash.h"
#include "common/io/json_text.h"
#include "common/io/safetensors.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// PyTorch's shape of a tensor.
std::vector<int64_t> PyTorchShape(const Tensor& tensor) {
  const std::vector<int>& shape = tensor.shape;
  if (shape.size() != 4) return {shape.begin(), shape.end()};
  return {shape[0], shape[3], shape[1], shape[2]};
}

// Calls `move` with each element's index in psring's and in PyTorch's order.
template <typename Move>
void ForEachElement(const Tensor& tensor, const Move& move) {
  const ImageShape& image = tensor.image;
  const size_t row = image.count() > 0 ? image.count() : tensor.count;
  const size_t pixels = image.count() > 0 ? size_t{1} * image.height * image.width : row;
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

// Reads `tensors`, named with `prefix`, into a flat buffer of `count` elements, and removes them from
// `unused`.
absl::Status FromPyTorch(const std::string& prefix, const std::vector<Tensor>& tensors, size_t count,
                         std::map<std::string, const NamedTensor*>& unused, std::vector<float>& flat) {
  flat.resize(count);
  for (const Tensor& tensor : tensors) {
    const auto found = unused.find(prefix + tensor.name);
    if (found == unused.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("it is of another model: it has no ", prefix, tensor.name));
    }
    const NamedTensor& stored = *found->second;
    if (stored.shape != PyTorchShape(tensor)) {
      return absl::InvalidArgumentError(absl::StrCat("it is of another model: ", prefix, tensor.name, " is ",
                                                     ShapeText(stored.shape), ", but here ",
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

absl::StatusOr<CheckpointBytes> ReadFolder(const std::string& path) {
  CheckpointBytes bytes{.path = path, .folder = path, .has_optimizer = true};
  PSRING_ASSIGN_OR_RETURN(bytes.position, ReadFile(absl::StrCat(path, "/", kPositionFile)));
  const auto checked = [&]() -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(auto hashes, HashesIn(bytes.position));
    for (const char* name : {kModelFile, kOptimizerFile}) hashes.try_emplace(name, "none");
    for (const auto& [name, hash] : hashes) {
      PSRING_ASSIGN_OR_RETURN(std::string text, ReadFile(absl::StrCat(path, "/", name), MostWeightsBytes(),
                                                         SymbolicLinks::kReject));
      if (HashBytes(text.data(), text.size()) != hash) {
        return absl::DataLossError(absl::StrCat("the hash of ", name, " differs"));
      }
      if (name == kModelFile) bytes.model = std::move(text);
      if (name == kOptimizerFile) bytes.optimizer = std::move(text);
      if (name == WorkerFile(0)) bytes.residual = std::move(text);
    }
    return absl::OkStatus();
  }();
  if (!checked.ok()) return At(path, checked);
  return bytes;
}

}  // namespace

CheckpointFiles EncodeCheckpoint(const TrainingCheckpoint& checkpoint, const ParameterLayout& layout) {
  const TrainingPosition& position = checkpoint.position;
  const std::vector<std::string>& slots = OptimizerSlots(position.optimizer.kind);
  PSRING_CHECK(checkpoint.weights.size() == layout.count() && checkpoint.slots.size() == slots.size());
  PSRING_CHECK(checkpoint.buffers.size() == layout.initial_buffers().size());
  std::vector<NamedTensor> model, optimizer;
  for (const Tensor& tensor : layout.tensors()) {
    model.push_back(ToPyTorch(tensor.name, tensor, checkpoint.weights));
    for (size_t i = 0; i < slots.size(); ++i) {
      optimizer.push_back(ToPyTorch(absl::StrCat(slots[i], ".", tensor.name), tensor, checkpoint.slots[i]));
    }
  }
  for (const Tensor& buffer : layout.buffers()) {
    model.push_back(ToPyTorch(buffer.name, buffer, checkpoint.buffers));
  }
  const std::map<std::string, std::string> metadata = {
      {"format", "pt"}, {"model", position.model}, {"step", absl::StrCat(position.step)}};
  CheckpointFiles files = {{kModelFile, EncodeSafetensors(model, metadata)},
                           {kOptimizerFile, EncodeSafetensors(optimizer, metadata)}};
  files.insert(files.end(), checkpoint.worker_files.begin(), checkpoint.worker_files.end());
  files.emplace_back(kPositionFile, EncodePosition(position, files));
  return files;
}

std::string EncodeResidual(ConstSpan residual, const ParameterLayout& layout) {
  PSRING_CHECK(residual.count == layout.count());
  const std::vector<float> flat(residual.floats(), residual.floats() + residual.count);
  std::vector<NamedTensor> tensors;
  for (const Tensor& tensor : layout.tensors()) {
    tensors.push_back(ToPyTorch(absl::StrCat("residual.", tensor.name), tensor, flat));
  }
  return EncodeSafetensors(tensors, {{"format", "pt"}});
}

absl::StatusOr<CheckpointBytes> LoadCheckpoint(const std::string& path, std::vector<std::string>& notes) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    if (fs::exists(fs::path(path) / kPositionFile, error)) return ReadFolder(path);
    const std::vector<CheckpointPath> there = ListCheckpoints(path);
    if (there.empty()) {
      return absl::NotFoundError(absl::StrCat(path, " contains no checkpoint: no step<N>/", kPositionFile));
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
      notes.push_back(absl::StrCat(first_damage.message(), "; ", newest->path, " is used instead"));
    return *std::move(newest);
  }
  if (!fs::exists(path, error)) return absl::NotFoundError(absl::StrCat(path, " does not exist"));
  const fs::path beside = fs::path(path).parent_path();
  const std::string name = fs::path(path).filename();
  if ((name == kModelFile || name == kOptimizerFile || name == kPositionFile) &&
      fs::exists(beside / kPositionFile, error)) {
    return ReadFolder(beside.empty() ? "." : beside.string());
  }
  CheckpointBytes weights{.path = path};
  PSRING_ASSIGN_OR_RETURN(weights.model, ReadFile(path, MostWeightsBytes()));
  return weights;
}

absl::StatusOr<TrainingPosition> DecodePosition(const CheckpointBytes& bytes) {
  if (bytes.position.empty()) return TrainingPosition();
  const absl::StatusOr<TrainingPosition> decoded = ParsePosition(bytes.position);
  if (!decoded.ok()) return At(bytes.path, decoded.status());
  return decoded;
}

absl::Status DecodeResidual(const CheckpointBytes& bytes, const ParameterLayout& layout,
                            std::vector<float>& residual) {
  if (bytes.residual.empty()) return absl::OkStatus();
  const auto decoded = [&]() -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const std::vector<NamedTensor> tensors, DecodeSafetensors(bytes.residual));
    std::map<std::string, const NamedTensor*> unused;
    for (const NamedTensor& tensor : tensors) unused[tensor.name] = &tensor;
    return FromPyTorch("residual.", layout.tensors(), layout.count(), unused, residual);
  }();
  return decoded.ok() ? decoded : At(bytes.path, decoded);
}

absl::StatusOr<TrainingCheckpoint> DecodeCheckpoint(const CheckpointBytes& bytes,
                                                    const ParameterLayout& layout) {
  TrainingCheckpoint checkpoint;
  PSRING_ASSIGN_OR_RETURN(checkpoint.position, DecodePosition(bytes));
  const auto decoded = [&]() -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(const std::vector<NamedTensor> model, DecodeSafetensors(bytes.model));
    std::map<std::string, const NamedTensor*> unused;
    for (const NamedTensor& tensor : model) unused[tensor.name] = &tensor;
    PSRING_RETURN_IF_ERROR(FromPyTorch("", layout.tensors(), layout.count(), unused, checkpoint.weights));
    PSRING_RETURN_IF_ERROR(
        FromPyTorch("", layout.buffers(), layout.initial_buffers().size(), unused, checkpoint.buffers));
    if (!unused.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("it is of another model: it has a ", AsciiJsonText(Json(unused.begin()->first))));
    }
    if (!bytes.has_optimizer) return absl::OkStatus();
    PSRING_ASSIGN_OR_RETURN(const std::vector<NamedTensor> state, DecodeSafetensors(bytes.optimizer));
    for (const NamedTensor& tensor : state) unused[tensor.name] = &tensor;
    for (const std::string& slot : OptimizerSlots(checkpoint.position.optimizer.kind)) {
      PSRING_RETURN_IF_ERROR(FromPyTorch(absl::StrCat(slot, "."), layout.tensors(), layout.count(), unused,
                                         checkpoint.slots.emplace_back()));
    }
    return absl::OkStatus();
  }();
  if (!decoded.ok()) return At(bytes.path, decoded);
  return checkpoint;
}

}  // namespace psring
