// The store's calls over gRPC, by clients that disconnect or send what no client of ours sends.
#include "common/rendezvous/rendezvous_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>

#include "common/base/deadline.h"
#include "common/net/grpc_waiting.h"
#include "proto/rendezvous.grpc.pb.h"
#include "tests/eventually.h"

namespace psring {
namespace {

class RendezvousServiceTest : public testing::Test {
 protected:
  RendezvousServiceTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = proto::Rendezvous::NewStub(server_->InProcessChannel({}));
  }

  grpc::Status Get(grpc::ClientContext& context, int64_t timeout_ms) {
    proto::GetRequest request;
    request.set_key("key");
    request.set_whom("a value");
    request.set_timeout_ms(timeout_ms);
    proto::GetReply reply;
    return stub_->Get(&context, request, &reply);
  }
  grpc::Status Get(int64_t timeout_ms) {
    grpc::ClientContext context;
    return Get(context, timeout_ms);
  }

  RendezvousStore store_{"rank", {.waiting = 1}};
  std::unique_ptr<grpc::Service> service_ = MakeRendezvousService(store_);
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<proto::Rendezvous::Stub> stub_;
};

TEST_F(RendezvousServiceTest, EndsTheCallOfAClientThatDisconnects) {
  grpc::Status status;
  do {  // the store rejects it if it arrives during one of our questions, whether it waits
    grpc::ClientContext context;
    std::atomic<bool> returned = false;
    std::thread waits([&] {
      status = Get(context, 3'600'000);
      returned = true;
    });
    EXPECT_TRUE(
        Eventually([&] { return returned || Get(0).error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED; }));
    context.TryCancel();
    waits.join();
  } while (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return Get(0).error_code() == grpc::StatusCode::DEADLINE_EXCEEDED; }))
      << "the call still counts as waiting";
}

TEST_F(RendezvousServiceTest, TimeoutsAreBounded) {
  EXPECT_EQ(Get(std::numeric_limits<int64_t>::min()).error_message(), "waited 0 s for a value ('key')");
  EXPECT_EQ(Get(-1).error_message(), "waited 0 s for a value ('key')");
  ASSERT_TRUE(store_.Set("key", "value").ok());
  EXPECT_TRUE(Get(std::numeric_limits<int64_t>::max()).ok());
}

TEST_F(RendezvousServiceTest, TheAttendanceOfAnUnknownMemberEndsAtOnce) {
  for (const std::string& id : {std::string(), std::string(16, '\0'), std::string(1 << 20, 'x')}) {
    grpc::ClientContext context;
    context.set_deadline(GrpcDeadline(MonotonicNow() + absl::Seconds(60)));
    proto::AttendReply reply;
    const auto stream = stub_->Attend(&context, &reply);
    proto::AttendRequest request;
    request.set_member(id);
    EXPECT_TRUE(stream->Write(request));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  }
}

}  // namespace
}  // namespace psring
