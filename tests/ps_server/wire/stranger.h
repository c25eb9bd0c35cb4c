// Somebody who talks to a parameter server over gRPC, and says what he likes.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "proto/parameter_server.grpc.pb.h"
#include "ps_server/wire/wire.h"
#include "tests/ps_server/test_job.h"

namespace psring {

constexpr size_t kTail = 400;  // bytes of the second chunk of a stranger's bucket 1

struct Words {
  ChunkHeader header;
  std::string payload;
};
inline std::string RandomBytes(int seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::string bytes(random() % 5000, 0);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}
inline grpc::ByteBuffer Rubbish(int seed) {
  const grpc::Slice slice(RandomBytes(seed));
  return grpc::ByteBuffer(&slice, 1);
}
inline Bytes AsBytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// One conversation with the server, in words of its own.
class Stranger {
 public:
  explicit Stranger(const std::string& address)
      : channel_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())) {
    context_.set_deadline(absl::ToChronoTime(Soon()));
    stream_.reset(Streams::Create(
        channel_.get(),
        grpc::internal::RpcMethod(kExchangeMethod, grpc::internal::RpcMethod::BIDI_STREAMING, channel_),
        &context_));
  }
  ~Stranger() {
    context_.TryCancel();
    if (!finished_) LastWords();
  }

  void Say(const Words& words) { SayBytes(EncodeChunk(words.header, AsBytes(words.payload), nullptr)); }
  void SayBytes(const grpc::ByteBuffer& bytes) { stream_->Write(bytes); }
  void SayJoin(int worker, const ServerJob& job, const std::function<void(proto::Join&)>& change = {}) {
    proto::Join join;
    join.ParseFromString(EncodeJoin({.worker = worker, .job = job, .session = 77}));
    if (change) change(join);
    Say({{.kind = MessageKind::kJoin}, join.SerializeAsString()});
  }
  // Until it is told that it may begin; false: it was not let in.
  bool IsWelcome() {
    ReceivedChunk chunk;
    for (grpc::ByteBuffer bytes; stream_->Read(&bytes);) {
      if (!chunk.Decode(bytes).ok()) return false;
      if (chunk.header().kind == MessageKind::kReset) resets_[chunk.header().bucket] = chunk.header().resets;
      if (chunk.header().kind != MessageKind::kJoin) continue;
      step_ = chunk.header().step;
      incarnation_ = chunk.header().incarnation;
      return true;
    }
    return false;
  }
  // Until the first of its pushes is answered; false: it never is.
  bool IsAnswered() {
    ReceivedChunk chunk;
    for (grpc::ByteBuffer bytes; stream_->Read(&bytes);) {
      if (chunk.Decode(bytes).ok() && chunk.header().kind == MessageKind::kExchange) return true;
    }
    return false;
  }
  // The first chunk of its gradient of bucket 1, as it should be; the second one.
  Words First() const {
    const auto reset = resets_.find(1);
    return {{.kind = MessageKind::kExchange,
             .bucket = 1,
             .step = step_,
             .samples = 16,
             .incarnation = incarnation_,
             .resets = reset == resets_.end() ? 0 : reset->second},
            std::string(kChunkBytes, 1)};
  }
  Words Second() const {
    Words words = First();
    words.header.offset = kChunkBytes;
    words.payload.resize(kTail);
    return words;
  }
  int64_t step() const { return step_; }
  void Cut() { context_.TryCancel(); }
  // What the server ends the conversation with.
  std::string LastWords() {
    for (grpc::ByteBuffer bytes; stream_->Read(&bytes);) {
    }
    finished_ = true;
    return stream_->Finish().error_message();
  }

 private:
  using Streams = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream_;
  std::map<int, uint64_t> resets_;
  int64_t step_ = -1;
  uint64_t incarnation_ = 0;
  bool finished_ = false;
};

}  // namespace psring
