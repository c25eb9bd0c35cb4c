#include "ps_server/wire/wire.h"

#include <grpc/grpc.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/string_view.h"
#include "common/base/errors.h"
#include "common/net/grpc_waiting.h"

namespace psring {
namespace {

static_assert(std::endian::native == std::endian::little);  // of fields and payload

// `visit(name, member)` for each field of a message; `name` is empty unless it is a count, which
// kMaxWireCount bounds. Members with the same name mean the same.
template <typename Message, typename Visit>
void ForEachField(Message& m, const Visit& visit) {
  if constexpr (requires { m.bucket; }) visit("", m.bucket);
  if constexpr (requires { m.offset; }) visit("", m.offset);
  if constexpr (requires { m.step; }) visit("step", m.step);
  if constexpr (requires { m.slot; }) visit("slot", m.slot);
  if constexpr (requires { m.number; }) visit("number", m.number);
  if constexpr (requires { m.samples; }) visit("samples", m.samples);
  if constexpr (requires { m.version; }) visit("version", m.version);
  if constexpr (requires { m.epoch; }) visit("epoch", m.epoch);
  if constexpr (requires { m.staleness; }) visit("staleness", m.staleness);
  if constexpr (requires { m.dropped; }) visit("", m.dropped);
  if constexpr (requires { m.went_back; }) visit("", m.went_back);
  if constexpr (requires { m.request; }) visit("request", m.request);
  if constexpr (requires { m.complete; }) visit("complete", m.complete);
  if constexpr (requires { m.sum_of_squares; }) visit("", m.sum_of_squares);
  if constexpr (requires { m.incarnation; }) visit("", m.incarnation);
  if constexpr (requires { m.resets; }) visit("", m.resets);
  if constexpr (requires { m.patience_ms; }) visit("", m.patience_ms);
  if constexpr (requires { m.bytes; }) visit("", m.bytes);
  if constexpr (requires { m.gradient_at; }) visit("", m.gradient_at);
  if constexpr (requires { m.weights_at; }) visit("", m.weights_at);
  if constexpr (requires { m.shared; }) {
    visit("", m.shared);
    if (m.shared.has_value()) ForEachField(*m.shared, visit);
  }
}

template <typename Number>
uint64_t ToField(const Number& member) {
  return static_cast<uint64_t>(member);
}
uint64_t ToField(double member) { return std::bit_cast<uint64_t>(member); }
template <typename Part>
uint64_t ToField(const std::optional<Part>& member) {
  return member.has_value() ? 1 : 0;
}

template <typename Number>
void FromField(uint64_t field, Number& member) {
  member = static_cast<Number>(field);
}
void FromField(uint64_t field, double& member) { member = std::bit_cast<double>(field); }
template <typename Part>
void FromField(uint64_t field, std::optional<Part>& member) {
  if (field != 0) member.emplace();
}

// Also a message of another version of the protocol, whose Join cannot be read.
absl::Status Malformed() {
  return InvalidArgument(
      "a message that is not a chunk of a parameter server; start worker and server from the same psring");
}

// Makes `to` the alternative of this index. Bounds all counts, so that no sum or product of them overflows. A
// step of -1 is valid (Announcement).
template <size_t index, typename Message>
absl::Status Fill(const MessageFields& fields, Message& to) {
  absl::Status status;
  size_t at = 0;
  ForEachField(to.template emplace<index>(), [&](absl::string_view name, auto& member) {
    const uint64_t field = fields.at(++at);
    const auto count = static_cast<int64_t>(field);
    FromField(field, member);
    if (!name.empty() && (count < -1 || count > kMaxWireCount)) {
      status = InvalidArgument(name, " ", count, "; the most is ", kMaxWireCount);
    }
  });
  return status;
}

}  // namespace

template <typename Message>
MessageFields FieldsOf(const Message& message) {
  MessageFields fields = {message.index() + 1};
  size_t at = 0;
  const auto add = [&](absl::string_view, const auto& member) { fields.at(++at) = ToField(member); };
  std::visit([&](const auto& kind) { ForEachField(kind, add); }, message);
  return fields;
}

template <typename Message>
absl::Status FromFields(const MessageFields& fields, Message& to) {
  absl::Status status = Malformed();
  [&]<size_t... index>(std::index_sequence<index...>) {
    ((fields[0] == index + 1 && (status = Fill<index>(fields, to), true)) || ...);
  }
  (std::make_index_sequence<std::variant_size_v<Message>>());
  return status;
}

template <typename Message>
grpc::ByteBuffer Encode(const Message& message, Bytes payload, std::shared_ptr<const void> keep) {
  using Keep = std::shared_ptr<const void>;
  const MessageFields fields = FieldsOf(message);
  grpc::Slice slices[2] = {grpc::Slice(fields.data(), sizeof fields)};
  if (!payload.empty()) {
    slices[1] = grpc::Slice(
        const_cast<std::byte*>(payload.data()), payload.size(),
        [](void* held) { delete static_cast<Keep*>(held); }, new Keep(std::move(keep)));
  }
  return grpc::ByteBuffer(slices, payload.empty() ? 1 : 2);
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
  MessageFields fields;
  size_t read = 0;
  for (const grpc::Slice& slice : slices_) {
    const size_t n = std::min(sizeof fields - read, slice.size());
    std::memcpy(reinterpret_cast<std::byte*>(&fields) + read, slice.begin(), n);
    read += n;
    if (n == slice.size()) continue;
    pieces_.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()) + n, slice.size() - n);
  }
  return read == sizeof fields ? FromFields(fields, message_) : Malformed();
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
