#include "ps_server/wire/wire.h"

#include <grpc/grpc.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/net/grpc_polling.h"
#include "common/reduce/reduce.h"
#include "proto/parameter_server.pb.h"

namespace psring {
namespace {

// Protocol Buffers' encoding: a field is a varint of (number << 3 | type), then a varint (type 0) or a length
// and as many bytes (type 2).
constexpr uint32_t kVarint = 0;
constexpr uint32_t kBytes = 2;
constexpr uint32_t kPayloadField = proto::Chunk::kPayloadFieldNumber;
// Eighteen fields of at most two bytes of tag and ten of value.
constexpr size_t kMaxHeaderBytes = 18 * 12;
class HeaderWriter {
 public:
  void Field(uint32_t number, int64_t value) {
    if (value == 0) return;  // proto3's default is not written
    Varint(number << 3 | kVarint);
    Varint(static_cast<uint64_t>(value));
  }
  void BytesField(uint32_t number, size_t length) {
    Varint(number << 3 | kBytes);
    Varint(length);
  }
  grpc::Slice slice() const { return grpc::Slice(data_, size_); }

 private:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) data_[size_++] = static_cast<uint8_t>(value | 0x80);
    data_[size_++] = static_cast<uint8_t>(value);
  }
  uint8_t data_[kMaxHeaderBytes];
  size_t size_ = 0;
};

class HeaderReader {
 public:
  HeaderReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool Varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (position_ == size_) return false;
      const uint8_t byte = data_[position_++];
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }
  size_t position() const { return position_; }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t position_ = 0;
};

// The fields of proto::Chunk but the payload.
struct Fields {
  int kind = proto::Chunk::UNKNOWN;
  int bucket = 0;
  uint64_t offset = 0;
  int64_t step = 0;
  int64_t samples = 0;
  int64_t version = 0;
  int64_t staleness = 0;
  bool dropped = false;
  bool shared = false;
  uint64_t shared_bytes = 0;
  uint64_t gradient_at = 0;
  uint64_t weights_at = 0;
  int64_t complete = 0;
  double sum_of_squares = 0;
  uint64_t incarnation = 0;
  uint64_t resets = 0;
  int64_t patience_ms = 0;
};

bool SetField(uint64_t number, uint64_t value, Fields& fields) {
  switch (number) {
    case proto::Chunk::kKindFieldNumber:
      fields.kind = static_cast<int>(value);
      return value >= 1 && value <= static_cast<uint64_t>(proto::Chunk::Kind_MAX);
    case proto::Chunk::kBucketFieldNumber:
      fields.bucket = static_cast<int>(value);
      return true;
    case proto::Chunk::kOffsetFieldNumber:
      fields.offset = value;
      return true;
    case proto::Chunk::kStepFieldNumber:
      fields.step = static_cast<int64_t>(value);
      return true;
    case proto::Chunk::kSamplesFieldNumber:
      fields.samples = static_cast<int64_t>(value);
      return true;
    case proto::Chunk::kVersionFieldNumber:
      fields.version = static_cast<int64_t>(value);
      return true;
    case proto::Chunk::kStalenessFieldNumber:
      fields.staleness = static_cast<int64_t>(value);
      return true;
    case proto::Chunk::kDroppedFieldNumber:
      fields.dropped = value != 0;
      return true;
    case proto::Chunk::kSharedFieldNumber:
      fields.shared = value != 0;
      return true;
    case proto::Chunk::kSharedBytesFieldNumber:
      fields.shared_bytes = value;
      return true;
    case proto::Chunk::kGradientAtFieldNumber:
      fields.gradient_at = value;
      return true;
    case proto::Chunk::kWeightsAtFieldNumber:
      fields.weights_at = value;
      return true;
    case proto::Chunk::kCompleteFieldNumber:
      fields.complete = static_cast<int64_t>(value);
      return true;
    case proto::Chunk::kSumOfSquaresFieldNumber:
      fields.sum_of_squares = std::bit_cast<double>(value);
      return true;
    case proto::Chunk::kIncarnationFieldNumber:
      fields.incarnation = value;
      return true;
    case proto::Chunk::kResetsFieldNumber:
      fields.resets = value;
      return true;
    case proto::Chunk::kPatienceMsFieldNumber:
      fields.patience_ms = static_cast<int64_t>(value);
      return true;
    default:
      return false;
  }
}

Fields FieldsOf(const message::Join&) { return {.kind = proto::Chunk::JOIN}; }
Fields FieldsOf(const message::InitialWeights& from) {
  return {.kind = proto::Chunk::WEIGHTS, .bucket = from.bucket, .offset = from.offset, .step = from.slot};
}
Fields FieldsOf(const message::Gradient& from) {
  Fields fields{.kind = proto::Chunk::EXCHANGE,
                .bucket = from.bucket,
                .offset = from.offset,
                .step = from.step,
                .samples = from.samples,
                .incarnation = from.incarnation,
                .resets = from.resets};
  if (from.shared.has_value()) {
    fields.shared = true;
    fields.shared_bytes = from.shared->bytes;
    fields.gradient_at = from.shared->gradient_at;
    fields.weights_at = from.shared->weights_at;
  }
  return fields;
}
Fields FieldsOf(const message::Announcement& from) {
  return {.kind = proto::Chunk::ANNOUNCE,
          .step = from.step,
          .version = from.version,
          .dropped = from.dropped,
          .complete = from.complete,
          .incarnation = from.incarnation};
}
Fields FieldsOf(const message::NormTotal& from) {
  return {.kind = proto::Chunk::NORM, .step = from.step, .sum_of_squares = from.sum_of_squares};
}
Fields FieldsOf(const message::Fetch& from) { return {.kind = proto::Chunk::FETCH, .step = from.slot}; }
Fields FieldsOf(const message::Barrier& from) { return {.kind = proto::Chunk::BARRIER, .step = from.number}; }
Fields FieldsOf(const message::Rewind& from) {
  return {.kind = proto::Chunk::REWIND, .step = from.step, .version = from.epoch};
}
Fields FieldsOf(const message::Leave&) { return {.kind = proto::Chunk::LEAVE}; }

Fields FieldsOf(const message::Welcome& from) {
  return {.kind = proto::Chunk::JOIN,
          .step = from.step,
          .version = from.epoch,
          .dropped = from.went_back,
          .incarnation = from.incarnation,
          .patience_ms = from.patience_ms};
}
Fields FieldsOf(const message::Weights& from) {
  return {.kind = proto::Chunk::WEIGHTS, .bucket = from.bucket, .offset = from.offset};
}
Fields FieldsOf(const message::Answer& from) {
  Fields fields{.kind = proto::Chunk::EXCHANGE,
                .bucket = from.bucket,
                .offset = from.offset,
                .step = from.step,
                .version = from.version,
                .staleness = from.staleness,
                .dropped = from.dropped};
  if (from.shared.has_value()) {
    fields.shared = true;
    fields.shared_bytes = from.shared->bytes;
    fields.weights_at = from.shared->at;
  }
  return fields;
}
Fields FieldsOf(const message::Admitted& from) {
  return {.kind = proto::Chunk::ANNOUNCE, .step = from.step, .complete = from.complete};
}
Fields FieldsOf(const message::NormPart& from) {
  return {.kind = proto::Chunk::NORM, .step = from.step, .sum_of_squares = from.sum_of_squares};
}
Fields FieldsOf(const message::Reset& from) {
  return {.kind = proto::Chunk::RESET, .bucket = from.bucket, .resets = from.resets};
}
Fields FieldsOf(const message::FetchDone&) { return {.kind = proto::Chunk::FETCH}; }
Fields FieldsOf(const message::BarrierPassed& from) {
  return {.kind = proto::Chunk::BARRIER, .step = from.number};
}
Fields FieldsOf(const message::Left& from) {
  return {.kind = proto::Chunk::LEAVE, .version = from.version, .complete = from.complete};
}

absl::Status Malformed() {
  return absl::InvalidArgumentError("a message that is not a chunk of a parameter server");
}

// Bounds all counts at once, so that no sum or product of them overflows. A step of -1 has a meaning.
absl::Status CheckCounts(const Fields& from) {
  for (const auto& [name, value] :
       {std::pair("step", from.step), std::pair("samples", from.samples), std::pair("version", from.version),
        std::pair("complete", from.complete)}) {
    if (value >= -1 && value <= kMostCount) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, " ", value, "; the most is ", kMostCount));
  }
  return absl::OkStatus();
}

absl::Status Convert(const Fields& from, message::ToServer& to) {
  PSRING_RETURN_IF_ERROR(CheckCounts(from));
  if (from.shared && from.kind != proto::Chunk::EXCHANGE) return Malformed();
  switch (from.kind) {
    case proto::Chunk::JOIN:
      to = message::Join{};
      return absl::OkStatus();
    case proto::Chunk::WEIGHTS:
      to = message::InitialWeights{.bucket = from.bucket, .offset = from.offset, .slot = from.step};
      return absl::OkStatus();
    case proto::Chunk::EXCHANGE: {
      message::Gradient gradient{.bucket = from.bucket,
                                 .offset = from.offset,
                                 .step = from.step,
                                 .samples = from.samples,
                                 .incarnation = from.incarnation,
                                 .resets = from.resets};
      if (from.shared) {
        gradient.shared = message::SharedPlaces{
            .bytes = from.shared_bytes, .gradient_at = from.gradient_at, .weights_at = from.weights_at};
      }
      to = gradient;
      return absl::OkStatus();
    }
    case proto::Chunk::FETCH:
      to = message::Fetch{.slot = from.step};
      return absl::OkStatus();
    case proto::Chunk::LEAVE:
      to = message::Leave{};
      return absl::OkStatus();
    case proto::Chunk::ANNOUNCE:
      to = message::Announcement{.step = from.step,
                                 .incarnation = from.incarnation,
                                 .dropped = from.dropped,
                                 .version = from.version,
                                 .complete = from.complete};
      return absl::OkStatus();
    case proto::Chunk::NORM:
      to = message::NormTotal{.step = from.step, .sum_of_squares = from.sum_of_squares};
      return absl::OkStatus();
    case proto::Chunk::BARRIER:
      to = message::Barrier{.number = from.step};
      return absl::OkStatus();
    case proto::Chunk::REWIND:
      to = message::Rewind{.step = from.step, .epoch = from.version};
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a message of kind ", from.kind, ", which only servers send"));
  }
}

absl::Status Convert(const Fields& from, message::ToWorker& to) {
  if (from.shared && from.kind != proto::Chunk::EXCHANGE) return Malformed();
  switch (from.kind) {
    case proto::Chunk::JOIN:
      to = message::Welcome{.step = from.step,
                            .epoch = from.version,
                            .incarnation = from.incarnation,
                            .patience_ms = from.patience_ms,
                            .went_back = from.dropped};
      return absl::OkStatus();
    case proto::Chunk::WEIGHTS:
      to = message::Weights{.bucket = from.bucket, .offset = from.offset};
      return absl::OkStatus();
    case proto::Chunk::EXCHANGE: {
      message::Answer answer{.bucket = from.bucket,
                             .offset = from.offset,
                             .step = from.step,
                             .version = from.version,
                             .staleness = from.staleness,
                             .dropped = from.dropped};
      if (from.shared)
        answer.shared = message::WeightsPlace{.bytes = from.shared_bytes, .at = from.weights_at};
      to = answer;
      return absl::OkStatus();
    }
    case proto::Chunk::FETCH:
      to = message::FetchDone{};
      return absl::OkStatus();
    case proto::Chunk::LEAVE:
      to = message::Left{.version = from.version, .complete = from.complete};
      return absl::OkStatus();
    case proto::Chunk::ANNOUNCE:
      to = message::Admitted{.step = from.step, .complete = from.complete};
      return absl::OkStatus();
    case proto::Chunk::NORM:
      to = message::NormPart{.step = from.step, .sum_of_squares = from.sum_of_squares};
      return absl::OkStatus();
    case proto::Chunk::RESET:
      to = message::Reset{.bucket = from.bucket, .resets = from.resets};
      return absl::OkStatus();
    case proto::Chunk::BARRIER:
      to = message::BarrierPassed{.number = from.step};
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a message of kind ", from.kind, ", which only workers send"));
  }
}

grpc::ByteBuffer EncodeFields(const Fields& fields, Bytes payload, std::shared_ptr<const void> keep) {
  HeaderWriter writer;
  writer.Field(proto::Chunk::kKindFieldNumber, fields.kind);
  writer.Field(proto::Chunk::kBucketFieldNumber, fields.bucket);
  writer.Field(proto::Chunk::kOffsetFieldNumber, static_cast<int64_t>(fields.offset));
  writer.Field(proto::Chunk::kStepFieldNumber, fields.step);
  writer.Field(proto::Chunk::kSamplesFieldNumber, fields.samples);
  writer.Field(proto::Chunk::kVersionFieldNumber, fields.version);
  writer.Field(proto::Chunk::kStalenessFieldNumber, fields.staleness);
  writer.Field(proto::Chunk::kDroppedFieldNumber, fields.dropped ? 1 : 0);
  writer.Field(proto::Chunk::kSharedFieldNumber, fields.shared ? 1 : 0);
  writer.Field(proto::Chunk::kSharedBytesFieldNumber, static_cast<int64_t>(fields.shared_bytes));
  writer.Field(proto::Chunk::kGradientAtFieldNumber, static_cast<int64_t>(fields.gradient_at));
  writer.Field(proto::Chunk::kWeightsAtFieldNumber, static_cast<int64_t>(fields.weights_at));
  writer.Field(proto::Chunk::kCompleteFieldNumber, fields.complete);
  writer.Field(proto::Chunk::kSumOfSquaresFieldNumber, std::bit_cast<int64_t>(fields.sum_of_squares));
  writer.Field(proto::Chunk::kIncarnationFieldNumber, static_cast<int64_t>(fields.incarnation));
  writer.Field(proto::Chunk::kResetsFieldNumber, static_cast<int64_t>(fields.resets));
  writer.Field(proto::Chunk::kPatienceMsFieldNumber, fields.patience_ms);
  if (payload.empty()) {
    const grpc::Slice slice = writer.slice();
    return grpc::ByteBuffer(&slice, 1);
  }
  writer.BytesField(kPayloadField, payload.size());
  using Keep = std::shared_ptr<const void>;
  const grpc::Slice slices[] = {
      writer.slice(), grpc::Slice(
                          const_cast<std::byte*>(payload.data()), payload.size(),
                          [](void* held) { delete static_cast<Keep*>(held); }, new Keep(std::move(keep)))};
  return grpc::ByteBuffer(slices, 2);
}

// Where the payload begins; nothing unless `slices` are a chunk.
std::optional<size_t> DecodeFields(const std::vector<grpc::Slice>& slices, Fields& fields) {
  // The fields may be split between slices, so they are read from a copy.
  uint8_t head[kMaxHeaderBytes];
  size_t head_bytes = 0, total = 0;
  for (const grpc::Slice& slice : slices) {
    const size_t copied = std::min(slice.size(), sizeof(head) - head_bytes);
    std::memcpy(head + head_bytes, slice.begin(), copied);
    head_bytes += copied;
    total += slice.size();
  }
  HeaderReader reader(head, head_bytes);
  size_t payload_at = total;
  while (reader.position() < total) {
    uint64_t tag = 0, value = 0;
    if (!reader.Varint(tag) || !reader.Varint(value)) return std::nullopt;
    if (tag == (kPayloadField << 3 | kBytes)) {
      payload_at = reader.position();
      if (value != total - payload_at) return std::nullopt;
      break;
    }
    if ((tag & 7) != kVarint || !SetField(tag >> 3, value, fields)) return std::nullopt;
  }
  if (fields.kind == proto::Chunk::UNKNOWN) return std::nullopt;
  return payload_at;
}

}  // namespace

grpc::ByteBuffer Encode(const message::ToServer& message, Bytes payload, std::shared_ptr<const void> keep) {
  return EncodeFields(std::visit([](const auto& kind) { return FieldsOf(kind); }, message), payload,
                      std::move(keep));
}

grpc::ByteBuffer Encode(const message::ToWorker& message, Bytes payload, std::shared_ptr<const void> keep) {
  return EncodeFields(std::visit([](const auto& kind) { return FieldsOf(kind); }, message), payload,
                      std::move(keep));
}

template <typename Message>
void Received<Message>::Clear() {
  pieces_.clear();
  slices_.clear();
}

template <typename Message>
absl::Status Received<Message>::Decode(grpc::ByteBuffer& bytes) {
  Clear();
  const bool readable = bytes.Dump(&slices_).ok();
  bytes.Clear();
  if (!readable) return Malformed();
  Fields fields;
  const std::optional<size_t> payload_at = DecodeFields(slices_, fields);
  if (!payload_at.has_value()) return Malformed();
  PSRING_RETURN_IF_ERROR(Convert(fields, message_));
  size_t skip = *payload_at;
  for (const grpc::Slice& slice : slices_) {
    const size_t skipped = std::min(skip, slice.size());
    skip -= skipped;
    if (skipped == slice.size()) continue;
    pieces_.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()) + skipped, slice.size() - skipped);
  }
  return absl::OkStatus();
}

template class Received<message::ToServer>;
template class Received<message::ToWorker>;

void KeepGrpcRunning() {
  static const bool running = [] {
    ChooseGrpcPolling();
    grpc_init();
    return true;
  }();
  (void)running;
}

}  // namespace psring
