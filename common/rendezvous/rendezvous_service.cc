#include "common/rendezvous/rendezvous_service.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/base/mutex.h"
#include "common/text/peer_text.h"
#include "proto/rendezvous.grpc.pb.h"

namespace psring {
namespace {

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), std::string(status.message()),
                      kFromTheStore);
}

absl::Duration TimeoutOf(int64_t ms) {
  return std::clamp(absl::Milliseconds(ms), absl::ZeroDuration(), kLongestTimeout);
}

grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// A call of the store that may wait. gRPC calls OnCancel and OnDone only after the method that started the
// call has returned, so that method may set `call`. Deletes itself.
class WaitingCall final : public grpc::ServerUnaryReactor {
 public:
  explicit WaitingCall(RendezvousStore& store) : store_(store) {}
  void set_call(RendezvousStore::CallId call) { call_ = call; }
  void OnCancel() override { store_.Cancel(call_); }
  void OnDone() override { delete this; }

 private:
  RendezvousStore& store_;
  RendezvousStore::CallId call_ = 0;
};

// A member is lost when its call breaks. Deletes itself.
class Attendance final : public grpc::ServerReadReactor<proto::AttendRequest> {
 public:
  explicit Attendance(RendezvousStore& store) : store_(store) { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      if (is_known_) store_.Lose(member_);
      return Finish(grpc::Status::OK);
    }
    if (!is_known_) {
      member_ = request_.member();
      is_known_ = store_.Knows(member_);
      if (!is_known_) return Finish(ToGrpc(FailedPrecondition("no such member")));
    }
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  RendezvousStore& store_;
  proto::AttendRequest request_;
  MemberId member_;
  bool is_known_ = false;
};

// All calls use gRPC's callback interface; those of Exchange are serialized here.
using RendezvousCallbacks = proto::Rendezvous::WithRawCallbackMethod_Exchange<
    proto::Rendezvous::WithCallbackMethod_Join<proto::Rendezvous::WithCallbackMethod_Attend<
        proto::Rendezvous::WithCallbackMethod_Leave<proto::Rendezvous::WithCallbackMethod_Set<
            proto::Rendezvous::WithCallbackMethod_Get<proto::Rendezvous::WithCallbackMethod_CheckRanks<
                proto::Rendezvous::WithCallbackMethod_ReadClock<proto::Rendezvous::Service>>>>>>>>;

class RendezvousService final : public RendezvousCallbacks {
 public:
  explicit RendezvousService(RendezvousStore& store) : store_(store) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context, const proto::JoinRequest* request,
                                 proto::JoinReply* reply) override {
    const absl::StatusOr<MemberId> member = store_.Join(
        {.rank = request->rank(), .world_size = request->world_size(), .name = request->process()});
    if (member.ok()) reply->set_member(*member);
    return Finished(context, member.status());
  }

  grpc::ServerReadReactor<proto::AttendRequest>* Attend(grpc::CallbackServerContext*,
                                                        proto::AttendReply*) override {
    return new Attendance(store_);
  }

  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context, const proto::LeaveRequest* request,
                                  proto::LeaveReply*) override {
    store_.Leave(request->member());
    return Finished(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* Set(grpc::CallbackServerContext* context, const proto::SetRequest* request,
                                proto::SetReply*) override {
    return Finished(context, store_.Set(request->key(), request->value()));
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext*, const proto::GetRequest* request,
                                proto::GetReply* reply) override {
    auto* const call = new WaitingCall(store_);
    call->set_call(store_.Get(request->key(), request->whom(), TimeoutOf(request->timeout_ms()),
                              [call, reply](absl::StatusOr<std::string> value) {
                                if (value.ok()) reply->set_value(*std::move(value));
                                call->Finish(ToGrpc(value.status()));
                              }));
    return call;
  }

  grpc::ServerUnaryReactor* Exchange(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* reply) override {
    proto::ExchangeRequest exchange;
    grpc::ByteBuffer bytes = *request;
    if (!grpc::SerializationTraits<proto::ExchangeRequest>::Deserialize(&bytes, &exchange).ok()) {
      return Finished(context, InvalidArgument("the request of an exchange is not valid"));
    }
    auto* const call = new WaitingCall(store_);
    call->set_call(
        store_.Exchange(exchange.member(), exchange.name(), exchange.value(),
                        TimeoutOf(exchange.timeout_ms()), {exchange.ranks().begin(), exchange.ranks().end()},
                        [this, call, reply](const absl::StatusOr<RendezvousStore::Values>& values) {
                          if (values.ok()) *reply = ReplyOf(*values);
                          call->Finish(ToGrpc(values.status()));
                        }));
    return call;
  }

  grpc::ServerUnaryReactor* CheckRanks(grpc::CallbackServerContext* context,
                                       const proto::CheckRanksRequest* request,
                                       proto::CheckRanksReply*) override {
    return Finished(context, store_.CheckRanks(PeerText(request->where())));
  }

  grpc::ServerUnaryReactor* ReadClock(grpc::CallbackServerContext* context, const proto::ReadClockRequest*,
                                      proto::ReadClockReply* reply) override {
    reply->set_monotonic_ns(MonotonicNanos());
    return Finished(context, absl::OkStatus());
  }

 private:
  // An ExchangeReply of `values`. The calls of one exchange end one after the other, so the last one is kept.
  grpc::ByteBuffer ReplyOf(const RendezvousStore::Values& values) {
    MutexLock lock(mutex_);
    if (last_values_.lock() != values) {
      proto::ExchangeReply reply;
      for (const std::string& value : *values) reply.add_values(value);
      const grpc::Slice slice(reply.SerializeAsString());
      last_values_ = values;
      last_reply_ = grpc::ByteBuffer(&slice, 1);
    }
    return last_reply_;
  }

  RendezvousStore& store_;
  Mutex mutex_;
  std::weak_ptr<const std::vector<std::string>> last_values_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer last_reply_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRendezvousService(RendezvousStore& store) {
  return std::make_unique<RendezvousService>(store);
}

}  // namespace psring
