#include "common/io/safetensors.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/read_file.h"
#include "common/io/json_text.h"

namespace psring {
namespace {

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr char kMetadata[] = "__metadata__";
constexpr size_t kMaxNameBytes = 64;  // of a name in an error message

// A tensor's name, which may contain anything.
std::string Quoted(const std::string& name) { return AsciiJsonText(Json(name.substr(0, kMaxNameBytes))); }

std::optional<std::vector<int64_t>> Numbers(const Json& json) {
  if (!json.is_array()) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Json& number : json) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() > uint64_t{INT64_MAX}) return std::nullopt;
    numbers.push_back(static_cast<int64_t>(number.get<uint64_t>()));
  }
  return numbers;
}

// The number of elements; nullopt if they cannot fit into a file of `most` bytes.
std::optional<uint64_t> Elements(const std::vector<int64_t>& shape, uint64_t most) {
  uint64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent == 0) return 0;
    if (count > most / static_cast<uint64_t>(extent)) return std::nullopt;
    count *= static_cast<uint64_t>(extent);
  }
  return count;
}

// PyTorch's BatchNorm counts its batches in an integer, which nothing here reads.
bool IsBatchCounter(const std::string& name) { return name.ends_with("num_batches_tracked"); }

// Its place is that after the header.
absl::StatusOr<StoredTensor> ReadTensor(const std::string& name, const Json& json, uint64_t data_bytes) {
  const auto bad = [&](const std::string& why) { return DataLoss("its tensor ", Quoted(name), " ", why); };
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets") || !json["dtype"].is_string()) {
    return bad("has no dtype, shape and data_offsets");
  }
  const std::string& type = json["dtype"].get_ref<const std::string&>();
  const bool is_counter = type == "I64" && IsBatchCounter(name);
  if (type != "F32" && !is_counter) {
    return Unimplemented("its tensor ", Quoted(name), " is of type ", Quoted(type), "; psring reads F32");
  }
  const std::optional<std::vector<int64_t>> shape = Numbers(json["shape"]);
  const std::optional<std::vector<int64_t>> offsets = Numbers(json["data_offsets"]);
  if (!shape.has_value() || !offsets.has_value() || offsets->size() != 2)
    return bad("has an invalid shape or offsets");
  StoredTensor tensor{.name = name,
                      .shape = *shape,
                      .at = static_cast<uint64_t>((*offsets)[0]),
                      .end = static_cast<uint64_t>((*offsets)[1])};
  if (tensor.at > tensor.end || tensor.end > data_bytes) return bad("is outside the file");
  const std::optional<uint64_t> count = Elements(tensor.shape, data_bytes);
  if (!count.has_value() || tensor.end - tensor.at != *count * (is_counter ? 8 : 4)) {
    return bad("does not have as many values as its shape");
  }
  return tensor;
}

// Ordered by offset, from the JSON header and the number of bytes after it.
absl::StatusOr<std::vector<StoredTensor>> TensorsIn(const std::string& text, uint64_t data_bytes) {
  const Json header = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return DataLoss("its header is not a JSON object");
  std::vector<StoredTensor> tensors;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadata) continue;
    PSRING_ASSIGN_OR_RETURN(tensors.emplace_back(), ReadTensor(name, json, data_bytes));
  }
  std::ranges::sort(tensors, {}, [](const StoredTensor& t) { return std::pair(t.at, t.end); });
  uint64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.at != end) return DataLoss("its tensors overlap or have gaps");
    end = tensor.end;
  }
  if (end < data_bytes) return DataLoss("it has bytes that belong to no tensor");
  return tensors;
}

}  // namespace

std::string SafetensorsHeader(const std::vector<TensorShape>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  uint64_t end = 0;
  for (const TensorShape& tensor : tensors) {
    PSRING_CHECK(!header.contains(tensor.name) && tensor.name != kMetadata);
    const std::optional<uint64_t> count = Elements(tensor.shape, INT64_MAX / sizeof(float));
    PSRING_CHECK(count.has_value());
    const uint64_t bytes = *count * sizeof(float);
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  std::string text = header.dump();
  while (text.size() % 8 != 0) text.push_back(' ');  // the format aligns the data this way
  std::string bytes(kLengthBytes, 0);
  for (size_t i = 0; i < kLengthBytes; ++i) bytes[i] = static_cast<char>(text.size() >> (8 * i));
  return bytes + text;
}

std::string EncodeSafetensors(const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<TensorShape> shapes;
  for (const NamedTensor& tensor : tensors) {
    PSRING_CHECK(Elements(tensor.shape, tensor.values.size()) == tensor.values.size());
    shapes.push_back({tensor.name, tensor.shape});
  }
  std::string bytes = SafetensorsHeader(shapes, metadata);
  for (const NamedTensor& tensor : tensors) {
    bytes.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
  }
  return bytes;
}

absl::StatusOr<std::vector<StoredTensor>> FindTensors(const FileContent& file) {
  std::array<unsigned char, kLengthBytes> length;
  PSRING_RETURN_IF_ERROR(file.Read(0, kLengthBytes, length.data()));
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) header_bytes |= uint64_t{length[i]} << (8 * i);
  const uint64_t rest = file.size() - kLengthBytes;
  if (header_bytes > rest) return DataLoss("it is truncated, or not a safetensors file");
  if (header_bytes > kMaxTextBytes) {
    return DataLoss("its header has ", header_bytes, " bytes; the limit is ", kMaxTextBytes);
  }
  std::string header(static_cast<size_t>(header_bytes), 0);
  PSRING_RETURN_IF_ERROR(file.Read(kLengthBytes, header.size(), header.data()));
  PSRING_ASSIGN_OR_RETURN(std::vector<StoredTensor> tensors, TensorsIn(header, rest - header_bytes));
  std::erase_if(tensors, [](const StoredTensor& tensor) { return IsBatchCounter(tensor.name); });
  for (StoredTensor& tensor : tensors) {
    tensor.at += kLengthBytes + header_bytes;
    tensor.end += kLengthBytes + header_bytes;
  }
  return tensors;
}

}  // namespace psring
