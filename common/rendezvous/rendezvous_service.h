// The calls of proto/rendezvous.proto, for a store, and what its host and its clients share.
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rendezvous/rendezvous_store.h"
#include "proto/rendezvous.grpc.pb.h"

namespace psring {

inline constexpr char kFromTheStore[] = "psring";  // in a status's details: its message is complete
inline constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 30);
// The time between a member's pings, and the time after which a store that does not answer one is lost.
inline constexpr int kPingMs = 10'000;

// The detail of a process's report that it has another --tls (ReportOtherTls). -1: it has no rank.
inline uint64_t DetailOf(int rank) { return static_cast<uint64_t>(rank + 1); }
inline int RankOf(uint64_t detail) { return detail > Roster::kMaxRanks ? -1 : static_cast<int>(detail) - 1; }

// All calls use gRPC's callback interface; those of Exchange are serialized here.
using RendezvousCallbacks = proto::Rendezvous::WithRawCallbackMethod_Exchange<
    proto::Rendezvous::WithCallbackMethod_Join<proto::Rendezvous::WithCallbackMethod_Attend<
        proto::Rendezvous::WithCallbackMethod_Leave<proto::Rendezvous::WithCallbackMethod_Set<
            proto::Rendezvous::WithCallbackMethod_Get<proto::Rendezvous::WithCallbackMethod_CheckRanks<
                proto::Rendezvous::WithCallbackMethod_ReadClock<proto::Rendezvous::Service>>>>>>>>;

// Thread-safe. A call that waits holds no thread, and ends when its client disconnects. All ranks of an
// exchange are sent the same bytes, so N ranks need the memory of one reply of N values.
class RendezvousService final : public RendezvousCallbacks {
 public:
  explicit RendezvousService(RendezvousStore& store) : store_(store) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context, const proto::JoinRequest* request,
                                 proto::JoinReply* reply) override;
  grpc::ServerReadReactor<proto::AttendRequest>* Attend(grpc::CallbackServerContext* context,
                                                        proto::AttendReply* reply) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context, const proto::LeaveRequest* request,
                                  proto::LeaveReply* reply) override;
  grpc::ServerUnaryReactor* Set(grpc::CallbackServerContext* context, const proto::SetRequest* request,
                                proto::SetReply* reply) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const proto::GetRequest* request,
                                proto::GetReply* reply) override;
  grpc::ServerUnaryReactor* Exchange(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* CheckRanks(grpc::CallbackServerContext* context,
                                       const proto::CheckRanksRequest* request,
                                       proto::CheckRanksReply* reply) override;
  grpc::ServerUnaryReactor* ReadClock(grpc::CallbackServerContext* context,
                                      const proto::ReadClockRequest* request,
                                      proto::ReadClockReply* reply) override;

 private:
  // An ExchangeReply of `values`. The calls of one exchange end one after the other, so the last one is kept.
  grpc::ByteBuffer ReplyOf(const RendezvousStore::Values& values);

  RendezvousStore& store_;
  Mutex mutex_;
  std::weak_ptr<const std::vector<std::string>> last_values_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer last_reply_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace psring
