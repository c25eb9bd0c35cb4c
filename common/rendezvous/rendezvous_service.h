// The calls of proto/rendezvous.proto, for a store. Used by rendezvous.cc, which listens.
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/time/time.h"
#include "common/rendezvous/rendezvous_store.h"
#include "proto/rendezvous.grpc.pb.h"

namespace psring {

inline constexpr char kFromTheStore[] = "psring";  // in a status's details: its message is complete
inline constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 30);

// Thread-safe. Each pending call holds a gRPC thread until it returns or its client disconnects: simple, and
// sufficient for hundreds of ranks.
class RendezvousService final : public proto::Rendezvous::Service {
 public:
  explicit RendezvousService(RendezvousStore& store) : store_(store) {}

  grpc::Status Join(grpc::ServerContext* context, const proto::JoinRequest* request,
                    proto::JoinReply* reply) override;
  grpc::Status Attend(grpc::ServerContext* context, grpc::ServerReader<proto::AttendRequest>* reader,
                      proto::AttendReply* reply) override;
  grpc::Status Leave(grpc::ServerContext* context, const proto::LeaveRequest* request,
                     proto::LeaveReply* reply) override;
  grpc::Status Set(grpc::ServerContext* context, const proto::SetRequest* request,
                   proto::SetReply* reply) override;
  grpc::Status Get(grpc::ServerContext* context, const proto::GetRequest* request,
                   proto::GetReply* reply) override;
  grpc::Status Exchange(grpc::ServerContext* context, const proto::ExchangeRequest* request,
                        proto::ExchangeReply* reply) override;
  grpc::Status CheckRanks(grpc::ServerContext* context, const proto::CheckRanksRequest* request,
                          proto::CheckRanksReply* reply) override;
  grpc::Status ReadClock(grpc::ServerContext* context, const proto::ReadClockRequest* request,
                         proto::ReadClockReply* reply) override;

 private:
  RendezvousStore& store_;
};

}  // namespace psring
