// The client over gRPC: one stream, one completion queue, one thread that serves it. Sending and receiving
// are separate operations of the stream, so weights arrive while later gradients are still being sent. If the
// stream is lost and the server allows reconnecting (Welcome::patience_ms), the same thread opens another
// one, to the server's current address, and the session continues. Private to grpc_client*.cc.
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
#include <utility>
#include <vector>

#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/measure/wires.h"
#include "ps_server/client/session_client.h"
#include "ps_server/wire/payload_client.h"
#include "ps_server/wire/shared_payload.h"
#include "ps_server/wire/wire.h"

namespace psring {

// Counts the slices of the caller's memory that gRPC still uses. `done` runs only when there are none left.
class Borrowers {
 public:
  // One more, until the last copy of the result is destroyed. `this` outlives it.
  std::shared_ptr<const void> Add() {
    MutexLock lock(mutex_);
    ++count_;
    return std::shared_ptr<const void>(this, [](const void* borrowers) {
      Borrowers& self = *const_cast<Borrowers*>(static_cast<const Borrowers*>(borrowers));
      MutexLock lock(self.mutex_);
      if (--self.count_ == 0) self.none_.NotifyAll();
    });
  }
  // False: some are left at `deadline`.
  bool AwaitNone(MonotonicTime deadline) {
    MutexLock lock(mutex_);
    while (count_ > 0) {
      if (MonotonicNow() >= deadline) return false;
      none_.WaitUntil(mutex_, deadline);
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar none_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

class GrpcClient : public SessionClient, private PayloadClient::User {
 public:
  GrpcClient(const std::string& address, GrpcClientOptions options);
  ~GrpcClient() override;

  absl::Status Start(int worker, const ServerJob& job, const WorkerBuffers& memory,
                     MonotonicTime deadline) override;
  void PushPull(const Exchange& exchange, Done done) override;
  absl::Status Leave(MonotonicTime deadline) override;
  void Abort(absl::Status why) override { End(why); }
  ClientStatus status() const override {
    const ClientSession::State state = session_.state();
    const auto [payload, wire] = on_gpu_                  ? std::pair("cuda_ipc", kCudaIpcWire)
                                 : shares_                ? std::pair("shm", kSharedMemoryWire)
                                 : needs_own_connection() ? std::pair("tcp", kTcpWire)
                                                          : std::pair("grpc", kGrpcWire);
    ClientStatus own = {
        .payload = payload, .wires = {wire}, .start_step = state.start_step, .traffic = state.traffic};
    if (shares_ && needs_own_connection()) own.wires.push_back(kTcpWire);  // rows
    return own;
  }
  void Send(const message::ToServer& message) override {
    if (session_.state().connected) Enqueue({.message = session_.Addressed(message)});
  }

 private:
  // What a completion queue's tag points to. `one_of_call`: counted by operations_.
  struct Tag {
    void (GrpcClient::*handler)(bool ok);
    bool one_of_call = true;
  };
  struct WakeUp : Tag {
    grpc::Alarm alarm = {};
  };
  static Bytes BytesOf(ConstSpan span) { return {static_cast<const std::byte*>(span.data), span.bytes()}; }

  // A bucket or a control message on its way out, chunk by chunk.
  struct Outgoing {
    message::ToServer message;
    Bytes data = {};
    std::shared_ptr<const void> keep = nullptr;
    uint64_t offset = 0;  // of the first byte that is not sent yet
  };

  // grpc_client.cc: what the caller's threads do.
  absl::Status Connect(MonotonicTime deadline);
  void OpenLocked(std::shared_ptr<grpc::Channel> channel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The token of the memory that the server has mapped; empty: none in common.
  absl::StatusOr<std::string> HandOver(const std::string& offer, MonotonicTime deadline);
  // For gradients that are not in shared memory, and for rows.
  bool needs_own_connection() const {
    const ServerJob& job = session_.job();
    return options_.own_connection && (!job.tables.empty() || (!shares_ && job.parameters > 0));
  }
  // Opens the payload connection, if it is needed. Its number for the Join; 0: none.
  absl::StatusOr<uint64_t> OpenPayload(MonotonicTime deadline);
  // Join, and on worker 0 the initial weights.
  void SendJoin(const std::string& token, uint64_t payload);
  absl::Status Ask(Question question, const message::ToServer& message, MonotonicTime deadline,
                   const std::string& whom) override;
  // Ends the session with the error `why`. Any thread.
  void End(const absl::Status& why);
  absl::Status EndIfFailed(const absl::Status& status);  // returns it
  // Ends the stream, as if it had been lost because of `why`.
  void Break(const absl::Status& why);
  // Makes the loop end exchanges that were added too late.
  void WakeLoop();
  void SendGradient(const Exchange& exchange);
  void Enqueue(Outgoing outgoing);
  void SendRows(const RowMessage& rows) override {
    Enqueue({.message = rows.message, .data = std::as_bytes(std::span(*rows.payload)), .keep = rows.payload});
  }
  absl::Status AskForRows(std::vector<RowMessage> parts, MonotonicTime deadline,
                          const std::string& whom) override;
  // False: there is no stream to send it on.
  bool EnqueueLocked(Outgoing outgoing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++operations_;
    call_->Read(&incoming_, &read_);
  }

  // grpc_client_loop.cc: what the client's thread does.
  void Loop();
  void OnWake(bool);
  void OnTick();
  void OnStarted(bool ok);
  void OnWritten(bool ok);
  void OnOffered(bool);
  void OnRead(bool ok);
  void OnFinished(bool) {}
  absl::Status Take();
  // On the payload connection's thread.
  absl::StatusOr<bool> OnPayload(PayloadSocket& socket) override;
  void OnPayloadEnd(const absl::Status& why) override;
  void OnWelcome();
  // Every operation has completed: the stream has ended.
  void OnOver();
  void Reconnect();
  void ScheduleReconnect();
  absl::Duration Patience() const;
  void EndExchanges() {
    MutexLock lock(session_mutex_);
    session_.EndExchanges();
  }
  bool leaves() const {
    MutexLock lock(mutex_);
    return asked_.has_value() && asked_->question == Question::kLeave;
  }
  void Finish(const absl::Status& why);  // no more streams

  // How long this client waits beyond a deadline, so that the server's error, which names the missing worker,
  // arrives first. The server's time begins with the last arrival from any worker.
  absl::Duration Grace() const {
    const bool is_limited = options_.reply_timeout != absl::InfiniteDuration();
    return absl::Milliseconds(kServerErrorGraceMs) +
           (is_limited ? options_.reply_timeout : absl::ZeroDuration());
  }

  std::string address() const;    // "host:port"
  std::string published() const;  // with the server's token
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Dial(const std::string& address,
                                                      MonotonicTime deadline) const;

  const GrpcClientOptions options_;
  const uint64_t session_id_;
  int worker_ = -1;
  WorkerBuffers caller_;             // weights and slots only until Start has returned
  std::atomic<bool> shares_{false};  // the server has mapped the caller's shared memory
  std::atomic<bool> on_gpu_{false};  // decided by Start
  UnixSocket in_use_;                // see HandedOver; of the thread of Start, then of the loop
  Borrowers borrowers_;
  grpc::CompletionQueue queue_;
  std::thread thread_;

  Tag started_{&GrpcClient::OnStarted}, offered_tag_{&GrpcClient::OnOffered}, read_{&GrpcClient::OnRead},
      written_{&GrpcClient::OnWritten}, finished_{&GrpcClient::OnFinished};

  // Used only by the loop.
  grpc::ByteBuffer incoming_;
  Received<message::ToWorker> received_;
  grpc::Status end_;
  MonotonicTime lost_at_ = MonotonicTime::InfiniteFuture();  // infinite: not lost
  absl::Status why_lost_;
  bool joined_again_ = true;  // since the stream broke last
  int failed_streams_ = 0;    // consecutive ones, on which nothing was answered
  int64_t answers_when_lost_ = 0;
  std::atomic<bool> left_sent_{false};  // a Leave, on some stream

  // Held by the two threads while they use what ClientSession reserves for one, and so while `done` runs.
  // Before mutex_.
  Mutex session_mutex_;
  std::vector<std::byte> unused_ ABSL_GUARDED_BY(session_mutex_);  // for answers that are needed no more,
  bool discards_ ABSL_GUARDED_BY(session_mutex_) = false;          // as the frame that is being received is

  mutable Mutex mutex_;
  std::string address_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime next_try_ ABSL_GUARDED_BY(mutex_);
  CondVar over_changed_;
  CondVar offered_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;                // the session has failed
  std::optional<std::string> offer_ ABSL_GUARDED_BY(mutex_);  // the server's, once received
  struct Asked {
    Question question;
    message::ToServer message;
  };
  std::optional<Asked> asked_ ABSL_GUARDED_BY(mutex_);  // not answered yet: asked again after reconnecting
  bool asked_sent_ ABSL_GUARDED_BY(mutex_) = false;     // on this stream
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_ ABSL_GUARDED_BY(mutex_);
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);
  uint64_t enqueued_ ABSL_GUARDED_BY(mutex_) = 0;                   // messages, on this stream
  std::unique_ptr<PayloadClient> payload_ ABSL_GUARDED_BY(mutex_);  // of this stream; null: none
  std::string why_broken_ ABSL_GUARDED_BY(mutex_);                  // see Break
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool reconnecting_ ABSL_GUARDED_BY(mutex_) = false;  // no call at the moment
  bool over_ ABSL_GUARDED_BY(mutex_) = true;           // no call any more
};

}  // namespace psring
