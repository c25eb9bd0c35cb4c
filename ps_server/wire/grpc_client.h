// The client over gRPC: one stream, one completion queue, one thread that serves it. Sending and receiving
// are separate operations of the stream, so weights come in while later gradients still go out. Where the
// stream is lost and the server had said that it may be looked for, the same thread opens another one, to
// wherever the server is by then, and the session goes on (messages.h). Private to grpc_client*.cc.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "ps_server/client/client_session.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/wire/borrowers.h"
#include "ps_server/wire/client_memory.h"
#include "ps_server/wire/wire.h"

namespace psring {

class GrpcClient : public PsClient {
 public:
  GrpcClient(const std::string& address, GrpcClientOptions options);
  ~GrpcClient() override;

  std::string payload() const override { return on_gpu_ ? "cuda_ipc" : shares_ ? "shm" : "grpc"; }
  void ShareMemory(const SharedSpan& gradients, const SharedSpan& weights) override;
  absl::Status Start(int worker, const ServerJob& job, Span weights, absl::Time deadline) override;
  int64_t start_step() const override { return session_.start_step(); }
  void PushPull(const Exchange& exchange, Done done) override;
  absl::StatusOr<std::optional<int64_t>> Barrier(int number, absl::Time deadline) override;
  void BeginWith(std::vector<ConstSpan> slots) override { initial_slots_ = std::move(slots); }
  absl::Status Fetch(Span weights, absl::Time deadline) override;
  absl::StatusOr<bool> FetchState(int slot, Span values, absl::Time deadline) override;
  absl::Status Leave(absl::Time deadline) override;
  void Abort(absl::Status why) override { End(why); }
  Traffic traffic() const override { return session_.traffic(); }
  void OnWord(std::function<void(const ChunkHeader&)> heard) override { session_.OnWord(std::move(heard)); }
  void Tell(const ChunkHeader& word) override {
    if (session_.connected()) Enqueue({.header = session_.Addressed(word)});
  }

 private:
  enum Operation : intptr_t { kStarted = 1, kOffered, kRead, kWritten, kFinished };
  static void* TagOf(Operation operation) { return reinterpret_cast<void*>(operation); }
  static Bytes BytesOf(ConstSpan span) { return {static_cast<const std::byte*>(span.data), span.bytes()}; }

  // A bucket or a control message on its way out, chunk by chunk.
  struct Outgoing {
    ChunkHeader header;
    Bytes data;
    std::shared_ptr<const void> keep;
    std::byte* staging = nullptr;  // header.shared: where the server reads it; null: it stands there already
  };

  // grpc_client.cc: what the caller's threads do.
  absl::Status Connect(absl::Time deadline);
  void OpenLocked(std::shared_ptr<grpc::Channel> channel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The token of the memory that the server has taken; empty: there is none in common.
  absl::StatusOr<std::string> HandOver(const std::string& offer, absl::Time deadline);
  // Join, and what follows it.
  void Introduce(const std::string& token);
  absl::Status Ask(const ChunkHeader& request, absl::Time deadline, const std::string& what);
  // From any thread: the conversation is over because of `why`.
  void End(const absl::Status& why);
  // Has the loop end what was asked for too late.
  void Poke();
  void SendGradient(const Exchange& exchange);
  void Enqueue(Outgoing outgoing);
  // False: there is no stream to send it on.
  bool EnqueueLocked(Outgoing outgoing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteSharedLocked(Outgoing& front) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // grpc_client_loop.cc: what the client's thread does.
  void Loop();
  void OnPoked();
  void OnTick();
  void OnWritten(bool ok, bool started);
  void OnOffered();
  void OnRead(bool ok);
  absl::Status Take();
  void OnJoined();
  // Every operation has come back: the stream is gone.
  void OnOver();
  absl::Status WhyOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TryToReconnect();
  absl::Duration Patience() const;
  void StayLost();
  void GiveUp(const absl::Status& why);

  std::string address() const;
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Dial(const std::string& address, absl::Time deadline) const;

  const GrpcClientOptions options_;
  const uint64_t session_id_;
  int worker_ = -1;
  SharedSpan gradients_, weights_;        // the caller's
  Span initial_;                          // worker 0's weights, until Start has returned
  std::vector<ConstSpan> initial_slots_;  // likewise
  std::atomic<bool> shares_{false};
  std::atomic<bool> on_gpu_{false};  // decided by Start
  ClientSession session_;
  Borrowers borrowers_;
  grpc::CompletionQueue queue_;
  std::thread thread_;

  // The loop's own.
  grpc::ByteBuffer incoming_;
  ReceivedChunk chunk_;
  grpc::Status end_;
  absl::Time lost_at_ = absl::InfiniteFuture();  // not lost
  absl::Status why_lost_;
  bool joined_again_ = true;  // since the stream broke last
  int fruitless_ = 0;         // streams in a row on which nothing was answered
  int64_t answers_when_lost_ = 0;
  std::atomic<bool> left_sent_{false};  // a Leave, on some stream

  mutable Mutex mutex_;
  std::string address_ ABSL_GUARDED_BY(mutex_);
  // The payload goes through it. Replaced by the loop, which therefore reads it without the lock.
  std::optional<ClientMemory> memory_;
  absl::Time next_try_ ABSL_GUARDED_BY(mutex_);
  CondVar over_changed_;
  CondVar offered_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;                // for good: the session has failed
  std::optional<std::string> offer_ ABSL_GUARDED_BY(mutex_);  // once the server has spoken
  std::optional<ChunkHeader> asked_ ABSL_GUARDED_BY(mutex_);  // and not answered yet: asked again elsewhere
  bool asked_sent_ ABSL_GUARDED_BY(mutex_) = false;           // on this stream
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_ ABSL_GUARDED_BY(mutex_);
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool reconnecting_ ABSL_GUARDED_BY(mutex_) = false;  // there is no call for the moment
  bool over_ ABSL_GUARDED_BY(mutex_) = true;           // there is no call, and never will be
};

}  // namespace psring
