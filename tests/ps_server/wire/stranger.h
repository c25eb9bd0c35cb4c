// A member of the job that sends a parameter server arbitrary messages over gRPC.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>

#include "common/net/grpc_waiting.h"
#include "proto/parameter_server.grpc.pb.h"
#include "ps_server/wire/own_sockets.h"
#include "ps_server/wire/wire.h"
#include "tests/ps_server/test_job.h"
#include "tests/test_secret.h"

namespace psring {

constexpr size_t kTail = 400;  // bytes of the second chunk of bucket 1

struct Sent {
  message::ToServer message;
  std::string payload;

  message::Gradient& gradient() { return std::get<message::Gradient>(message); }
};
inline std::string RandomBytes(int seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::string bytes(random() % 5000, 0);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}
inline grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}
inline Bytes AsBytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// One conversation with the server.
class Stranger {
 public:
  explicit Stranger(const std::string& address) : channel_(*OpenChannel(address, TestSecret(), {}, Soon())) {
    context_.set_deadline(GrpcDeadline(Soon()));
    stream_.reset(Streams::Create(
        channel_.get(),
        grpc::internal::RpcMethod(kExchangeMethod, grpc::internal::RpcMethod::BIDI_STREAMING, channel_),
        &context_));
  }
  ~Stranger() {
    context_.TryCancel();
    if (!finished_) End();
  }

  // The server's offer to share memory.
  std::string Offer() {
    stream_->WaitForInitialMetadata();
    const auto offer = context_.GetServerInitialMetadata().find(kOfferKey);
    return offer == context_.GetServerInitialMetadata().end()
               ? ""
               : std::string(offer->second.data(), offer->second.size());
  }
  void Send(const Sent& sent) { SendBytes(Encode(sent.message, AsBytes(sent.payload), nullptr)); }
  void SendBytes(const grpc::ByteBuffer& bytes) { stream_->Write(bytes); }
  void SendJoin(int worker, const ServerJob& job, const std::function<void(proto::Join&)>& change = {}) {
    proto::Join join;
    join.ParseFromString(EncodeJoin({.worker = worker, .job = job, .session = 77}));
    if (change) change(join);
    Send({message::Join{}, join.SerializeAsString()});
  }
  // Waits for the Welcome; false: the stream has ended.
  bool IsWelcome() {
    Received<message::ToWorker> received;
    for (grpc::ByteBuffer bytes; stream_->Read(&bytes);) {
      if (!received.Decode(bytes).ok()) return false;
      if (const auto* reset = std::get_if<message::Reset>(&received.message())) {
        resets_[reset->bucket] = reset->resets;
      }
      const auto* welcome = std::get_if<message::Welcome>(&received.message());
      if (welcome == nullptr) continue;
      step_ = welcome->step;
      incarnation_ = welcome->incarnation;
      return true;
    }
    return false;
  }
  // Waits for the first answer to a push; false: the stream has ended.
  bool IsAnswered() { return Await<message::Answer>().has_value(); }
  template <typename Kind>
  std::optional<Kind> Await() {
    Received<message::ToWorker> received;
    for (grpc::ByteBuffer bytes; stream_->Read(&bytes);) {
      if (!received.Decode(bytes).ok()) continue;
      if (const auto* found = std::get_if<Kind>(&received.message())) return *found;
    }
    return std::nullopt;
  }
  // The first chunk of its gradient of bucket 1, valid; the second one.
  Sent First() const {
    const auto reset = resets_.find(1);
    return {message::Gradient{.bucket = 1,
                              .step = step_,
                              .samples = 16,
                              .incarnation = incarnation_,
                              .resets = reset == resets_.end() ? 0 : reset->second},
            std::string(kChunkBytes, 1)};
  }
  Sent Second() const {
    Sent sent = First();
    sent.gradient().offset = kChunkBytes;
    sent.payload.resize(kTail);
    return sent;
  }
  int64_t step() const { return step_; }
  void Cut() { context_.TryCancel(); }
  // The error with which the server ends the conversation.
  std::string End() {
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
