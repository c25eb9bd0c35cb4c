// One stream of a worker: passes its messages to the server and sends the answers; with it, the worker's
// payload connection, if it has one. Private to the service.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>

#include "common/base/mutex.h"
#include "proto/parameter_server.grpc.pb.h"
#include "ps_server/server/parameter_server.h"
#include "ps_server/wire/payload_streams.h"
#include "ps_server/wire/shared_payload.h"
#include "ps_server/wire/wire.h"

namespace psring {

// The service of the .proto file, with messages as bytes.
using RawService = proto::ParameterServer::WithRawMethod_Exchange<proto::ParameterServer::Service>;

// Exists until its last operation has returned from the completion queue and nothing is delivered to it.
class Connection : public ReplySink,
                   public PayloadStream::Owner,
                   public std::enable_shared_from_this<Connection> {
 public:
  // What a completion queue's tag points to.
  class Tag {
   public:
    using Handler = void (Connection::*)(bool ok, Lane& lane);
    Tag(Connection& connection, Handler handler) : connection_(connection), handler_(handler) {}
    void Complete(bool ok, Lane& lane) { connection_.Complete(handler_, ok, lane); }

   private:
    Connection& connection_;
    Handler handler_;
  };

  // What a connection needs from its service.
  class Host {
   public:
    virtual ~Host() = default;
    virtual void OnAccepted() = 0;  // wait for the next connection
    virtual void OnGone() = 0;      // the connection is about to be destroyed
    virtual PayloadReceiver& receiver() = 0;
    virtual PayloadStreams& streams() = 0;
    virtual grpc::CompletionQueue& queue() = 0;
  };

  Connection(ParameterServer& server, Host& host) : server_(server), host_(host) {}
  ~Connection() override { host_.OnGone(); }

  // Waits for a worker to connect.
  void Accept(RawService& service, grpc::ServerCompletionQueue& queue);

  void Deliver(Reply reply) override;
  void Proceed() override;
  bool TakesParts() const override { return true; }
  std::shared_ptr<const void> Memory() const override { return memory_; }
  Place PlaceOf(int bucket, size_t bytes) override;
  void Abort(const absl::Status& why) override;

  Receipt OnPayload(const message::ToServer& message, uint64_t after, Bytes payload, Lane& lane) override;
  void OnPayloadEnd(const absl::Status& why) override;

 private:
  // Runs the handler of a tag that has returned; releases this connection after the last one.
  void Complete(Tag::Handler handler, bool ok, Lane& lane);
  void OnConnected(bool ok, Lane& lane);
  void OnRead(bool ok, Lane& lane);
  void OnWritten(bool ok, Lane& lane);
  void OnFinished(bool, Lane&) {}
  void OnJoinDue(bool ok, Lane& lane);
  void OnProceed(bool ok, Lane& lane);

  // Handles the message that was read; Forward also repeats one that the server did not take.
  absl::StatusOr<Receipt> Handle(Lane& lane);
  Receipt Forward(Lane& lane);
  void CountTaken();
  absl::Status CheckUnread();
  void Expel(const absl::Status& why);
  absl::Status HandleJoin();
  absl::StatusOr<Receipt> HandleShared(const message::Gradient& gradient, Lane& lane);
  // Reads the next message, or handles this one again when the server has memory for it. Nothing is read
  // until then, so gRPC's flow control delays the sender; an alarm without a deadline is the operation in
  // flight.
  void ContinueLocked(Receipt receipt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the stream: after what is queued if `status` is OK, else without it.
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteOrFinishLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ParameterServer& server_;
  Host& host_;
  grpc::ServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  Tag connected_{*this, &Connection::OnConnected};
  Tag read_{*this, &Connection::OnRead};
  Tag written_{*this, &Connection::OnWritten};
  Tag finished_{*this, &Connection::OnFinished};
  Tag join_due_{*this, &Connection::OnJoinDue};
  Tag proceed_{*this, &Connection::OnProceed};

  // Used only by the thread that handles a read; there is one read at a time.
  grpc::ByteBuffer incoming_;
  Received<message::ToServer> received_;
  int worker_ = -1;                             // until it has joined
  size_t most_unread_ = 0;                      // limit of answers waiting to be written; set before Join
  size_t most_unread_rows_ = 0;                 // of those, rows
  std::shared_ptr<const WorkerMemory> memory_;  // set before Join; null: none in common
  std::shared_ptr<PayloadStream> payload_;      // likewise; null: the payload is on this stream
  std::atomic<uint64_t> taken_{0};              // messages of this stream

  Mutex mutex_;
  std::shared_ptr<Connection> self_ ABSL_GUARDED_BY(mutex_);  // while operations are in flight
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Reply> outgoing_ ABSL_GUARDED_BY(mutex_);      // the first may be sent in part
  std::map<int, uint64_t> places_ ABSL_GUARDED_BY(mutex_);  // of weights, by bucket, for shared pushes
  grpc::Alarm join_alarm_;                                  // for a peer that connects and sends no Join
  grpc::Alarm write_alarm_ ABSL_GUARDED_BY(mutex_);
  grpc::Alarm proceed_alarm_ ABSL_GUARDED_BY(mutex_);
  uint64_t given_ ABSL_GUARDED_BY(mutex_) = 0;        // messages to this stream
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;     // by one of them
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;        // for Proceed
  bool may_proceed_ ABSL_GUARDED_BY(mutex_) = false;  // Proceed came before the wait began
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
