// Messages as they are sent: fields of fixed length, then the payload, which is never copied.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/pieces.h"
#include "ps_server/protocol/server_job.h"

namespace psring {

namespace proto {
class Job;
}

// Encodes a message that refers to `payload` without copying it. gRPC may hold it for longer than the write
// takes: the memory must stay readable until `keep` is released, on any thread. `Message`: message::ToServer
// or message::ToWorker.
template <typename Message>
grpc::ByteBuffer Encode(const Message& message, Bytes payload, std::shared_ptr<const void> keep);

// A received message and its payload, in place.
template <typename Message>
class Received {
 public:
  // Replaces the previous message. InvalidArgument as for FromFields. Clears `bytes`.
  absl::Status Decode(grpc::ByteBuffer& bytes);

  const Message& message() const { return message_; }
  Pieces payload() const { return pieces_; }  // until the next Decode or Clear
  void Clear();

 private:
  Message message_;
  std::vector<grpc::Slice> slices_;
  std::vector<Bytes> pieces_;
};
extern template class Received<message::ToServer>;
extern template class Received<message::ToWorker>;

// A message without its payload: its place among those of its direction, from 1, and its members; a double as
// its bits.
inline constexpr size_t kMessageFields = 12;
using MessageFields = std::array<uint64_t, kMessageFields>;
template <typename Message>
MessageFields FieldsOf(const Message& message);
// InvalidArgument unless they are such a message, with counts within kMaxWireCount.
template <typename Message>
absl::Status FromFields(const MessageFields& fields, Message& to);

std::string EncodeJoin(const Joining& joining);
absl::StatusOr<Joining> DecodeJoin(Pieces payload);

void EncodeJob(const ServerJob& from, proto::Job& to);
absl::StatusOr<ServerJob> DecodeJob(const proto::Job& job);

inline constexpr char kExchangeMethod[] = "/psring.proto.ParameterServer/Exchange";
// Trailing metadata that marks an error from the server, as opposed to one from the gRPC library.
inline constexpr char kServerErrorKey[] = "psring-server-says";
// Initial metadata with the server's offer to share memory.
inline constexpr char kOfferKey[] = "psring-shared-memory";
inline constexpr int kMaxMessageBytes = 2 * static_cast<int>(kChunkBytes);

// Keeps the gRPC library initialized until the process ends. Otherwise it shuts down with its last user;
// after an interrupted large write this takes up to ten seconds, during which the error is not reported.
void KeepGrpcRunning();

}  // namespace psring
