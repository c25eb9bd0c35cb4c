#include "ps_server/wire/wire.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpc/grpc.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/net/grpc_waiting.h"
#include "proto/parameter_server.pb.h"

namespace psring {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using proto::Chunk;

// Protocol Buffers' encoding: a field is a varint of (number << 3 | type), then a varint (type 0) or a length
// and as many bytes (type 2).
constexpr uint32_t kVarint = 0;
constexpr uint32_t kBytes = 2;
constexpr uint32_t kPayloadField = Chunk::kPayloadFieldNumber;
// Nineteen fields of at most two bytes of tag and ten of value.
constexpr size_t kMaxHeaderBytes = 19 * 12;

class HeaderWriter {
 public:
  void Field(int number, uint64_t value) {
    if (value == 0) return;  // proto3's default is not written
    Varint(static_cast<uint32_t>(number) << 3 | kVarint);
    Varint(value);
  }
  void BytesField(uint32_t number, size_t length) {
    Varint(number << 3 | kBytes);
    Varint(length);
  }
  grpc::Slice slice() const { return grpc::Slice(data_, static_cast<size_t>(end_ - data_)); }

 private:
  void Varint(uint64_t value) { end_ = CodedOutputStream::WriteVarint64ToArray(value, end_); }
  uint8_t data_[kMaxHeaderBytes];
  uint8_t* end_ = data_;
};

static_assert(kMessageFields == Chunk::kSlotFieldNumber + 1);

// The kind of each alternative, in order.
template <typename Message>
constexpr std::array<Chunk::Kind, std::variant_size_v<Message>> kKinds = {};
template <>
constexpr std::array<Chunk::Kind, 12> kKinds<message::ToServer> = {
    Chunk::JOIN,    Chunk::WEIGHTS, Chunk::EXCHANGE, Chunk::ANNOUNCE,  Chunk::NORM,      Chunk::FETCH,
    Chunk::BARRIER, Chunk::REWIND,  Chunk::LEAVE,    Chunk::PULL_ROWS, Chunk::PUSH_ROWS, Chunk::INITIAL_ROWS};
template <>
constexpr std::array<Chunk::Kind, 10> kKinds<message::ToWorker> = {
    Chunk::JOIN,  Chunk::WEIGHTS, Chunk::EXCHANGE, Chunk::ANNOUNCE, Chunk::NORM,
    Chunk::RESET, Chunk::FETCH,   Chunk::BARRIER,  Chunk::LEAVE,    Chunk::PULL_ROWS};

// `visit(number, member)` for each field of a message. Members with the same name are the same field.
template <typename Message, typename Visit>
void ForEachField(Message& m, const Visit& visit) {
  if constexpr (requires { m.bucket; }) visit(Chunk::kBucketFieldNumber, m.bucket);
  if constexpr (requires { m.offset; }) visit(Chunk::kOffsetFieldNumber, m.offset);
  if constexpr (requires { m.step; }) visit(Chunk::kStepFieldNumber, m.step);
  if constexpr (requires { m.slot; }) visit(Chunk::kSlotFieldNumber, m.slot);
  if constexpr (requires { m.number; }) visit(Chunk::kStepFieldNumber, m.number);
  if constexpr (requires { m.samples; }) visit(Chunk::kSamplesFieldNumber, m.samples);
  if constexpr (requires { m.version; }) visit(Chunk::kVersionFieldNumber, m.version);
  if constexpr (requires { m.epoch; }) visit(Chunk::kVersionFieldNumber, m.epoch);
  if constexpr (requires { m.staleness; }) visit(Chunk::kStalenessFieldNumber, m.staleness);
  if constexpr (requires { m.dropped; }) visit(Chunk::kDroppedFieldNumber, m.dropped);
  if constexpr (requires { m.went_back; }) visit(Chunk::kDroppedFieldNumber, m.went_back);
  if constexpr (requires { m.shared; }) {
    visit(Chunk::kSharedFieldNumber, m.shared);
    if (m.shared.has_value()) ForEachField(*m.shared, visit);
  }
  if constexpr (requires { m.bytes; }) visit(Chunk::kSharedBytesFieldNumber, m.bytes);
  if constexpr (requires { m.gradient_at; }) visit(Chunk::kGradientAtFieldNumber, m.gradient_at);
  if constexpr (requires { m.weights_at; }) visit(Chunk::kWeightsAtFieldNumber, m.weights_at);
  if constexpr (requires { m.request; }) visit(Chunk::kCompleteFieldNumber, m.request);
  if constexpr (requires { m.complete; }) visit(Chunk::kCompleteFieldNumber, m.complete);
  if constexpr (requires { m.sum_of_squares; }) visit(Chunk::kSumOfSquaresFieldNumber, m.sum_of_squares);
  if constexpr (requires { m.incarnation; }) visit(Chunk::kIncarnationFieldNumber, m.incarnation);
  if constexpr (requires { m.resets; }) visit(Chunk::kResetsFieldNumber, m.resets);
  if constexpr (requires { m.patience_ms; }) visit(Chunk::kPatienceMsFieldNumber, m.patience_ms);
}

template <typename Integer>
uint64_t ToVarint(const Integer& member) {
  return static_cast<uint64_t>(member);
}
uint64_t ToVarint(double member) { return std::bit_cast<uint64_t>(member); }
template <typename Part>
uint64_t ToVarint(const std::optional<Part>& member) {
  return member.has_value() ? 1 : 0;
}

template <typename Integer>
void FromVarint(uint64_t value, Integer& member) {
  member = static_cast<Integer>(value);
}
void FromVarint(uint64_t value, double& member) { member = std::bit_cast<double>(value); }
template <typename Part>
void FromVarint(uint64_t value, std::optional<Part>& member) {
  if (value != 0) member.emplace();
}

absl::Status Malformed() { return InvalidArgument("a message that is not a chunk of a parameter server"); }

// Bounds all counts, so that no sum or product of them overflows. A step of -1 is valid (Announcement).
absl::Status CheckCounts(const MessageFields& fields) {
  for (const auto& [name, number] :
       {std::pair("step", Chunk::kStepFieldNumber), std::pair("samples", Chunk::kSamplesFieldNumber),
        std::pair("version", Chunk::kVersionFieldNumber),
        std::pair("staleness", Chunk::kStalenessFieldNumber),
        std::pair("complete", Chunk::kCompleteFieldNumber), std::pair("slot", Chunk::kSlotFieldNumber)}) {
    const auto value = static_cast<int64_t>(fields[number]);
    if (value >= -1 && value <= kMaxWireCount) continue;
    return InvalidArgument(name, " ", value, "; the most is ", kMaxWireCount);
  }
  return absl::OkStatus();
}

// Makes `to` the alternative of this index, with the values of `fields`.
template <size_t index, typename Message>
void Fill(const MessageFields& fields, Message& to) {
  ForEachField(to.template emplace<index>(),
               [&](int number, auto& member) { FromVarint(fields[number], member); });
}

template <typename Message>
absl::Status Convert(const MessageFields& fields, Message& to) {
  constexpr bool to_server = std::is_same_v<Message, message::ToServer>;
  PSRING_RETURN_IF_ERROR(CheckCounts(fields));
  const int kind = static_cast<int>(fields[Chunk::kKindFieldNumber]);
  if (fields[Chunk::kSharedFieldNumber] != 0 && kind != Chunk::EXCHANGE) return Malformed();
  const bool known = [&]<size_t... index>(std::index_sequence<index...>) {
    return ((kind == kKinds<Message>[index] && (Fill<index>(fields, to), true)) || ...);
  }
  (std::make_index_sequence<std::variant_size_v<Message>>());
  if (known) return absl::OkStatus();
  return InvalidArgument("a message of kind ", kind, ", which only ", to_server ? "servers" : "workers",
                         " send");
}

// Where the payload begins; nullopt unless `slices` are a chunk.
std::optional<size_t> DecodeFields(const std::vector<grpc::Slice>& slices, MessageFields& fields) {
  // The fields may be split between slices, so they are read from a copy.
  uint8_t head[kMaxHeaderBytes];
  size_t head_bytes = 0, total = 0;
  for (const grpc::Slice& slice : slices) {
    const size_t copied = std::min(slice.size(), sizeof(head) - head_bytes);
    std::memcpy(head + head_bytes, slice.begin(), copied);
    head_bytes += copied;
    total += slice.size();
  }
  CodedInputStream reader(head, static_cast<int>(head_bytes));
  const auto position = [&reader] { return static_cast<size_t>(reader.CurrentPosition()); };
  size_t payload_at = total;
  while (position() < total) {
    uint64_t tag = 0, value = 0;
    if (!reader.ReadVarint64(&tag) || !reader.ReadVarint64(&value)) return std::nullopt;
    if (tag == (kPayloadField << 3 | kBytes)) {
      payload_at = position();
      if (value != total - payload_at) return std::nullopt;
      break;
    }
    const uint64_t number = tag >> 3;
    if ((tag & 7) != kVarint || number == 0 || number >= fields.size() || number == kPayloadField) {
      return std::nullopt;
    }
    fields[number] = value;
  }
  return payload_at;
}

}  // namespace

template <typename Message>
MessageFields FieldsOf(const Message& message) {
  MessageFields fields = {};
  fields[Chunk::kKindFieldNumber] = kKinds<Message>[message.index()];
  std::visit(
      [&](const auto& kind) {
        ForEachField(kind, [&](int number, const auto& member) { fields[number] = ToVarint(member); });
      },
      message);
  return fields;
}

template <typename Message>
absl::Status FromFields(const MessageFields& fields, Message& to) {
  const uint64_t kind = fields[Chunk::kKindFieldNumber];
  if (kind == Chunk::UNKNOWN || kind > Chunk::Kind_MAX) return Malformed();
  return Convert(fields, to);
}

template <typename Message>
grpc::ByteBuffer Encode(const Message& message, Bytes payload, std::shared_ptr<const void> keep) {
  HeaderWriter writer;
  const MessageFields fields = FieldsOf(message);
  for (size_t number = 1; number < fields.size(); ++number) {
    writer.Field(static_cast<int>(number), fields[number]);
  }
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
  MessageFields fields = {};
  const std::optional<size_t> payload_at = DecodeFields(slices_, fields);
  if (!payload_at.has_value()) return Malformed();
  PSRING_RETURN_IF_ERROR(FromFields(fields, message_));
  size_t skip = *payload_at;
  for (const grpc::Slice& slice : slices_) {
    const size_t skipped = std::min(skip, slice.size());
    skip -= skipped;
    if (skipped == slice.size()) continue;
    pieces_.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()) + skipped, slice.size() - skipped);
  }
  return absl::OkStatus();
}

template MessageFields FieldsOf(const message::ToServer&);
template MessageFields FieldsOf(const message::ToWorker&);
template absl::Status FromFields(const MessageFields&, message::ToServer&);
template absl::Status FromFields(const MessageFields&, message::ToWorker&);
template grpc::ByteBuffer Encode(const message::ToServer&, Bytes, std::shared_ptr<const void>);
template grpc::ByteBuffer Encode(const message::ToWorker&, Bytes, std::shared_ptr<const void>);
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
