#include "trainer/checkpoints/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
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

// The tensors of a file that have not been read yet, by name.
struct TensorFile {
  FileContent content;
  std::map<std::string, StoredTensor> unused = {};
};

absl::StatusOr<TensorFile> OpenTensors(const FileContent& content) {
  TensorFile file{.content = content};
  PSRING_ASSIGN_OR_RETURN(const std::vector<StoredTensor> tensors, FindTensors(content));
  for (const StoredTensor& tensor : tensors) file.unused[tensor.name] = tensor;
  return file;
}

// Removes what PyTorch's wrappers put before the names of a model: DistributedDataParallel "module.",
// torch.compile "_orig_mod.", in any order. InvalidArgument if it is before some of the names only.
absl::Status RemoveWrappers(TensorFile& file) {
  for (bool found = true; found;) {
    found = false;
    for (const absl::string_view prefix : {"module.", "_orig_mod."}) {
      const auto has_prefix = [&](const auto& entry) { return absl::StartsWith(entry.first, prefix); };
      const auto count = static_cast<size_t>(std::ranges::count_if(file.unused, has_prefix));
      if (count == 0) continue;
      if (count < file.unused.size()) {
        return InvalidArgument("the names of ", count, " of ", file.unused.size(), " tensors begin with \"",
                               prefix, "\", but not ",
                               AsciiJsonText(Json(std::ranges::find_if_not(file.unused, has_prefix)->first)));
      }
      std::map<std::string, StoredTensor> without;
      for (auto& [name, tensor] : file.unused) without[name.substr(prefix.size())] = std::move(tensor);
      file.unused = std::move(without);
      found = true;
    }
  }
  return absl::OkStatus();
}

// Where the values of a tensor of this shape begin; removes it from `unused`.
absl::StatusOr<uint64_t> Take(const std::string& name, const std::vector<int64_t>& shape, TensorFile& file) {
  const auto found = file.unused.find(name);
  if (found == file.unused.end()) return InvalidArgument("it is of another model: it has no ", name);
  const StoredTensor stored = found->second;
  if (stored.shape != shape) {
    return InvalidArgument("it is of another model: ", name, " is ", ShapeText(stored.shape), ", but here ",
                           ShapeText(shape));
  }
  file.unused.erase(found);
  return stored.at;
}

// Reads `tensors`, named with `prefix`, into a flat buffer of `count` elements.
absl::Status FromPyTorch(const std::string& prefix, const std::vector<Tensor>& tensors, size_t count,
                         TensorFile& file, std::vector<float>& flat) {
  flat.resize(count);
  std::vector<float> stored;
  for (const Tensor& tensor : tensors) {
    PSRING_ASSIGN_OR_RETURN(const uint64_t at, Take(prefix + tensor.name, PyTorchShape(tensor), file));
    stored.resize(tensor.count);
    PSRING_RETURN_IF_ERROR(file.content.Read(at, stored.size() * sizeof(float), stored.data()));
    float* to = flat.data() + tensor.first;
    ForEachElement(tensor, [&](size_t ours, size_t theirs) { to[ours] = stored[theirs]; });
  }
  return absl::OkStatus();
}

// Of all tables: where the values of one of their arrays begin.
absl::StatusOr<std::vector<uint64_t>> TakeTables(const std::string& prefix, const ParameterLayout& layout,
                                                 TensorFile& file) {
  std::vector<uint64_t> places;
  for (const Table& table : layout.tables()) {
    PSRING_ASSIGN_OR_RETURN(const uint64_t at, Take(prefix + table.name, {table.rows, table.width}, file));
    places.push_back(at);
  }
  return places;
}

absl::Status At(const std::string& path, const absl::Status& status) {
  const bool damaged = absl::IsDataLoss(status);
  return Prefixed(status, path, damaged ? " is damaged: " : ": ");
}

// Where a checkpoint has its tables.
struct TablePlaces {
  std::string path;
  FileContent model, optimizer;
  std::vector<std::vector<uint64_t>> at = {};  // by array, by table: of the first row
  std::vector<uint64_t> widths = {};           // by table

  absl::Status Read(const RowRange& range, float* to) const {
    const size_t array = static_cast<size_t>(range.array), table = static_cast<size_t>(range.table);
    PSRING_CHECK(array < at.size() && table < widths.size());
    const uint64_t row_bytes = widths[table] * sizeof(float);
    const absl::Status read = (array == 0 ? model : optimizer)
                                  .Read(at[array][table] + static_cast<uint64_t>(range.first) * row_bytes,
                                        static_cast<size_t>(range.count) * row_bytes, to);
    return At(path, read);
  }
};

absl::StatusOr<CheckpointBytes> ReadFolder(const std::string& path) {
  CheckpointBytes bytes{.path = path, .folder = path, .has_optimizer = true};
  PSRING_ASSIGN_OR_RETURN(bytes.position, ReadFile(absl::StrCat(path, "/", kPositionFile)));
  const auto checked = [&]() -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(auto hashes, HashesIn(bytes.position));
    for (const char* name : {kModelFile, kOptimizerFile}) hashes.try_emplace(name, "none");
    for (const auto& [name, hash] : hashes) {
      PSRING_ASSIGN_OR_RETURN(const FileContent content,
                              FileContent::Open(absl::StrCat(path, "/", name), SymbolicLinks::kReject));
      PSRING_ASSIGN_OR_RETURN(const std::string found, content.Hash());
      if (found != hash) return DataLoss("the hash of ", name, " differs");
      if (name == kModelFile) bytes.model = content;
      if (name == kOptimizerFile) bytes.optimizer = content;
      if (name == WorkerFile(0)) bytes.residual = content;
    }
    return absl::OkStatus();
  }();
  PSRING_RETURN_IF_ERROR(At(path, checked));
  return bytes;
}

// One file on its way to a sink, and its hash.
class HashedFile {
 public:
  HashedFile(const char* name, CheckpointSink& sink) : name_(name), sink_(sink) {}
  absl::Status Append(std::string_view piece) {
    hasher_.Add(piece.data(), piece.size());
    return sink_.Append(name_, piece);
  }
  absl::Status Append(const std::vector<float>& values) {
    return Append(
        std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  }
  std::string hash() const { return hasher_.Hex(); }

 private:
  const std::string name_;
  CheckpointSink& sink_;
  Hasher hasher_;
};

// A tensor to write: of a flat buffer, or an array of table number `table`.
struct Written {
  TensorShape shape;
  const Tensor* tensor = nullptr;
  const std::vector<float>* flat = nullptr;
  int table = -1, array = 0;
};

absl::Status WriteTensors(const std::vector<Written>& tensors, const ParameterLayout& layout,
                          const ReadRows& rows, const std::map<std::string, std::string>& metadata,
                          HashedFile& file) {
  std::vector<TensorShape> shapes;
  for (const Written& one : tensors) shapes.push_back(one.shape);
  PSRING_RETURN_IF_ERROR(file.Append(SafetensorsHeader(shapes, metadata)));
  std::vector<float> piece;
  for (const Written& one : tensors) {
    if (one.tensor != nullptr) {
      PSRING_RETURN_IF_ERROR(file.Append(ToPyTorch(one.shape.name, *one.tensor, *one.flat).values));
      continue;
    }
    const Table& table = layout.tables()[static_cast<size_t>(one.table)];
    PSRING_RETURN_IF_ERROR(ForEachRange(table, one.table, one.array, [&](const RowRange& range) {
      piece.resize(static_cast<size_t>(range.count) * static_cast<size_t>(table.width));
      const absl::Status read = rows(range, piece.data());
      return read.ok() ? file.Append(piece) : read;
    }));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteCheckpoint(const TrainingCheckpoint& checkpoint, const ParameterLayout& layout,
                             CheckpointSink& sink) {
  const TrainingPosition& position = checkpoint.position;
  const std::vector<std::string>& slots = OptimizerSlots(position.optimizer.kind);
  PSRING_CHECK(checkpoint.weights.size() == layout.count() && checkpoint.slots.size() == slots.size());
  PSRING_CHECK(checkpoint.buffers.size() == layout.initial_buffers().size());
  PSRING_CHECK(layout.tables().empty() || checkpoint.rows);
  std::vector<Written> model, optimizer;
  const auto add_slots = [&](const Written& of) {
    for (size_t i = 0; i < slots.size(); ++i) {
      Written& slot = optimizer.emplace_back(of);
      slot.shape.name = absl::StrCat(slots[i], ".", of.shape.name);
      slot.array = static_cast<int>(i) + 1;
      if (of.flat != nullptr) slot.flat = &checkpoint.slots[i];
    }
  };
  for (const Tensor& tensor : layout.tensors()) {
    add_slots(model.emplace_back(Written{
        .shape = {tensor.name, PyTorchShape(tensor)}, .tensor = &tensor, .flat = &checkpoint.weights}));
  }
  for (const Tensor& buffer : layout.buffers()) {
    model.push_back(
        {.shape = {buffer.name, PyTorchShape(buffer)}, .tensor = &buffer, .flat = &checkpoint.buffers});
  }
  for (size_t t = 0; t < layout.tables().size(); ++t) {
    const Table& table = layout.tables()[t];
    add_slots(model.emplace_back(
        Written{.shape = {table.name, {table.rows, table.width}}, .table = static_cast<int>(t)}));
  }
  const std::map<std::string, std::string> metadata = {
      {"format", "pt"}, {"model", position.model}, {"step", absl::StrCat(position.step)}};
  std::map<std::string, std::string> hashes;
  for (const auto& [name, tensors] : {std::pair(kModelFile, &model), std::pair(kOptimizerFile, &optimizer)}) {
    HashedFile file(name, sink);
    PSRING_RETURN_IF_ERROR(WriteTensors(*tensors, layout, checkpoint.rows, metadata, file));
    hashes[name] = file.hash();
  }
  for (const auto& [name, bytes] : checkpoint.worker_files) {
    PSRING_RETURN_IF_ERROR(sink.Append(name, bytes));
    hashes[name] = HashBytes(bytes.data(), bytes.size());
  }
  return sink.Append(kPositionFile, EncodePosition(position, hashes));
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
      return NotFound(path, " contains no checkpoint: no step<N>/", kPositionFile);
    }
    absl::Status first_damage;
    std::optional<CheckpointBytes> newest;
    int64_t step = 0;
    for (const CheckpointPath& one : there) {
      if (newest.has_value() && one.sequence >= 0) continue;
      absl::StatusOr<CheckpointBytes> bytes = ReadFolder(one.path);
      if (bytes.ok()) {
        newest = *std::move(bytes);
        step = one.step;
        continue;
      }
      if (absl::IsUnimplemented(bytes.status())) return bytes.status();
      if (first_damage.ok()) first_damage = bytes.status();
    }
    if (!newest.has_value()) return first_damage;
    newest->sequence = there.front().sequence;
    if (!first_damage.ok())
      notes.push_back(absl::StrCat(first_damage.message(), "; ", newest->path, " is used instead"));
    for (const std::string& incomplete : IncompleteCheckpoints(path, step)) {
      notes.push_back(absl::StrCat(incomplete, " has no ", kPositionFile, " and is skipped"));
    }
    return *std::move(newest);
  }
  if (!fs::exists(path, error)) return NotFound(path, " does not exist");
  const fs::path beside = fs::path(path).parent_path();
  const std::string name = fs::path(path).filename();
  if ((name == kModelFile || name == kOptimizerFile || name == kPositionFile) &&
      fs::exists(beside / kPositionFile, error)) {
    return ReadFolder(beside.empty() ? "." : beside.string());
  }
  CheckpointBytes weights{.path = path};
  PSRING_ASSIGN_OR_RETURN(weights.model, FileContent::Open(path));
  return weights;
}

absl::StatusOr<TrainingPosition> DecodePosition(const CheckpointBytes& bytes) {
  if (bytes.position.empty()) return TrainingPosition();
  absl::StatusOr<TrainingPosition> decoded = ParsePosition(bytes.position);
  PSRING_RETURN_IF_ERROR(At(bytes.path, decoded.status()));
  return decoded;
}

absl::Status DecodeResidual(const CheckpointBytes& bytes, const ParameterLayout& layout,
                            std::vector<float>& residual) {
  if (bytes.residual.empty()) return absl::OkStatus();
  const auto decoded = [&]() -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(TensorFile file, OpenTensors(bytes.residual));
    return FromPyTorch("residual.", layout.tensors(), layout.count(), file, residual);
  }();
  return At(bytes.path, decoded);
}

absl::StatusOr<TrainingCheckpoint> DecodeCheckpoint(const CheckpointBytes& bytes,
                                                    const ParameterLayout& layout) {
  TrainingCheckpoint checkpoint;
  PSRING_ASSIGN_OR_RETURN(checkpoint.position, DecodePosition(bytes));
  const auto decoded = [&]() -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(TensorFile model, OpenTensors(bytes.model));
    PSRING_RETURN_IF_ERROR(RemoveWrappers(model));
    PSRING_RETURN_IF_ERROR(FromPyTorch("", layout.tensors(), layout.count(), model, checkpoint.weights));
    PSRING_RETURN_IF_ERROR(
        FromPyTorch("", layout.buffers(), layout.initial_buffers().size(), model, checkpoint.buffers));
    TablePlaces places{.path = bytes.path, .model = bytes.model, .optimizer = bytes.optimizer};
    PSRING_ASSIGN_OR_RETURN(places.at.emplace_back(), TakeTables("", layout, model));
    if (!model.unused.empty()) {
      return InvalidArgument("it is of another model: it has a ",
                             AsciiJsonText(Json(model.unused.begin()->first)));
    }
    if (bytes.has_optimizer) {
      PSRING_ASSIGN_OR_RETURN(TensorFile state, OpenTensors(bytes.optimizer));
      for (const std::string& slot : OptimizerSlots(checkpoint.position.optimizer.kind)) {
        const std::string prefix = absl::StrCat(slot, ".");
        PSRING_RETURN_IF_ERROR(
            FromPyTorch(prefix, layout.tensors(), layout.count(), state, checkpoint.slots.emplace_back()));
        PSRING_ASSIGN_OR_RETURN(places.at.emplace_back(), TakeTables(prefix, layout, state));
      }
    }
    if (layout.tables().empty()) return absl::OkStatus();
    for (const Table& table : layout.tables()) places.widths.push_back(static_cast<uint64_t>(table.width));
    checkpoint.rows = [places = std::move(places)](const RowRange& range, float* to) {
      return places.Read(range, to);
    };
    return absl::OkStatus();
  }();
  PSRING_RETURN_IF_ERROR(At(bytes.path, decoded));
  return checkpoint;
}

}  // namespace psring
