// Chunks as gRPC carries them: proto/parameter_server.proto's encoding, written and read by hand around the
// payload, so that a megabyte of floats is never copied for the sake of its envelope.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps_server/protocol/messages.h"
#include "ps_server/protocol/server_job.h"

namespace psring {

namespace proto {
class Job;
}

// A message that refers to `payload` without copying it. gRPC may hold it for longer than the write takes:
// the memory must stay readable until `keep` is released, from whatever thread.
grpc::ByteBuffer EncodeChunk(const ChunkHeader& header, Bytes payload, std::shared_ptr<const void> keep);

// A received message, taken apart in place.
class ReceivedChunk {
 public:
  // Replaces what was there. InvalidArgument unless the message is a chunk. Clears `message`.
  absl::Status Decode(grpc::ByteBuffer& message);

  const ChunkHeader& header() const { return header_; }
  Pieces payload() const { return pieces_; }  // until the next Decode or Clear
  void Clear();

 private:
  ChunkHeader header_;
  std::vector<grpc::Slice> slices_;
  std::vector<Bytes> pieces_;
};

// The payload of a Join.
struct JoinRequest {
  int worker = 0;
  ServerJob job;
  std::string memory;  // the token of the memory that it shares; empty: none
  uint64_t session = 0;
  bool again = false;
  int64_t epoch = 0;
};
std::string EncodeJoin(const JoinRequest& request);
absl::StatusOr<JoinRequest> DecodeJoin(Pieces payload);

void EncodeJob(const ServerJob& from, proto::Job& to);
absl::StatusOr<ServerJob> DecodeJob(const proto::Job& job);

inline constexpr char kExchangeMethod[] = "/psring.proto.ParameterServer/Exchange";
// Trailing metadata by which a client tells the server's own words from those of its gRPC library.
inline constexpr char kServerSaysKey[] = "psring-server-says";
// Initial metadata by which a server offers to share memory.
inline constexpr char kOfferKey[] = "psring-shared-memory";
inline constexpr int kMaxMessageBytes = 2 * static_cast<int>(kChunkBytes);

// Keeps the gRPC library up until the process ends. It shuts down with its last user otherwise, and where a
// large write was cut short that takes up to ten seconds, in which nobody hears of the error.
void KeepGrpcRunning();

}  // namespace psring
