#include "common/rendezvous/rendezvous_service.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/measure/trace.h"
#include "common/net/peer_text.h"

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

}  // namespace

grpc::Status RendezvousService::Join(grpc::ServerContext*, const proto::JoinRequest* request,
                                     proto::JoinReply* reply) {
  const absl::StatusOr<MemberId> member =
      store_.Join({.rank = request->rank(), .world_size = request->world_size(), .name = request->process()});
  if (member.ok()) reply->set_member(*member);
  return ToGrpc(member.status());
}

grpc::Status RendezvousService::Attend(grpc::ServerContext*, grpc::ServerReader<proto::AttendRequest>* reader,
                                       proto::AttendReply*) {
  proto::AttendRequest request;
  if (!reader->Read(&request)) return grpc::Status::OK;
  const MemberId member = request.member();
  if (!store_.Knows(member)) return ToGrpc(absl::FailedPreconditionError("no such member"));
  while (reader->Read(&request)) {
  }
  store_.Lose(member);
  return grpc::Status::OK;
}

grpc::Status RendezvousService::Leave(grpc::ServerContext*, const proto::LeaveRequest* request,
                                      proto::LeaveReply*) {
  store_.Leave(request->member());
  return grpc::Status::OK;
}

grpc::Status RendezvousService::Set(grpc::ServerContext*, const proto::SetRequest* request,
                                    proto::SetReply*) {
  return ToGrpc(store_.Set(request->key(), request->value()));
}

grpc::Status RendezvousService::Get(grpc::ServerContext* context, const proto::GetRequest* request,
                                    proto::GetReply* reply) {
  absl::StatusOr<std::string> value =
      store_.Get(request->key(), request->whom(), TimeoutOf(request->timeout_ms()),
                 [context] { return context->IsCancelled(); });
  if (value.ok()) reply->set_value(*std::move(value));
  return ToGrpc(value.status());
}

grpc::Status RendezvousService::Exchange(grpc::ServerContext* context, const proto::ExchangeRequest* request,
                                         proto::ExchangeReply* reply) {
  absl::StatusOr<std::vector<std::string>> values = store_.Exchange(
      request->member(), request->name(), request->value(), TimeoutOf(request->timeout_ms()),
      {request->ranks().begin(), request->ranks().end()}, [context] { return context->IsCancelled(); });
  if (!values.ok()) return ToGrpc(values.status());
  for (std::string& value : *values) reply->add_values(std::move(value));
  return grpc::Status::OK;
}

grpc::Status RendezvousService::CheckRanks(grpc::ServerContext*, const proto::CheckRanksRequest* request,
                                           proto::CheckRanksReply*) {
  return ToGrpc(store_.CheckRanks(PeerText(request->where())));
}

grpc::Status RendezvousService::ReadClock(grpc::ServerContext*, const proto::ReadClockRequest*,
                                          proto::ReadClockReply* reply) {
  reply->set_monotonic_ns(MonotonicNanos());
  return grpc::Status::OK;
}

}  // namespace psring
