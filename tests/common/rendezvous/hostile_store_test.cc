// A store with the job's secret that does not answer as ours does.
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/net/authentication.h"
#include "common/net/tcp_socket.h"
#include "common/rendezvous/rendezvous.h"
#include "proto/rendezvous.grpc.pb.h"
#include "tests/common/net/flood.h"
#include "tests/common/net/relay.h"
#include "tests/eventually.h"
#include "tests/has.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

class LyingStore final : public proto::Rendezvous::Service {
 public:
  LyingStore() {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    const auto on_member = [this](PendingConnections::Member member) {
      grpc::AddInsecureChannelFromFd(server_.get(), member.socket.TakeDescriptor().release());
    };
    listener_ = *AuthenticatedListener::Start(
        *ListenTcp("127.0.0.1"), {.secret = TestSecret(), .purpose = Purpose::kRendezvous}, on_member);
  }
  ~LyingStore() override {
    listener_.reset();
    server_->Shutdown();
  }
  int port() const { return listener_->port(); }
  void Answer(int values) { values_ = values; }

  grpc::Status Join(grpc::ServerContext*, const proto::JoinRequest*, proto::JoinReply*) override {
    return grpc::Status::OK;
  }
  grpc::Status Attend(grpc::ServerContext*, grpc::ServerReader<proto::AttendRequest>* reader,
                      proto::AttendReply*) override {
    proto::AttendRequest request;
    while (reader->Read(&request)) continue;
    return grpc::Status::OK;
  }
  grpc::Status Leave(grpc::ServerContext*, const proto::LeaveRequest*, proto::LeaveReply*) override {
    return grpc::Status::OK;
  }
  grpc::Status Exchange(grpc::ServerContext*, const proto::ExchangeRequest*,
                        proto::ExchangeReply* reply) override {
    for (int i = 0; i < values_; ++i) reply->add_values("");
    return grpc::Status::OK;
  }

 private:
  std::atomic<int> values_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<AuthenticatedListener> listener_;
};

TEST(LyingRendezvousStoreTest, AnExchangeWithAnotherNumberOfValuesFails) {
  LyingStore store;
  RendezvousOptions options;
  options.rank = 1;
  options.world_size = 2;
  options.host = "127.0.0.1";
  options.port = store.port();
  options.secret = TestSecret();
  const auto rendezvous = Rendezvous::Join(options).value();
  for (const int values : {0, 1, 3}) {
    store.Answer(values);
    EXPECT_EQ(rendezvous->Exchange("x", "").status().message(),
              absl::StrCat("rendezvous store at 127.0.0.1:", store.port(), " answered exchange 'x' with ",
                           values, " values instead of 2"));
  }
  store.Answer(2);
  EXPECT_TRUE(rendezvous->Exchange("x", "").ok());
}

// Strangers at the store's port, and a member that sends too much.

RendezvousOptions At(int port) {
  RendezvousOptions options{
      .host = "127.0.0.1", .port = port, .hosted_elsewhere = true, .secret = TestSecret()};
  options.timeout = absl::Seconds(20);
  return options;
}

class RendezvousStoreAttack : public testing::Test {
 protected:
  std::unique_ptr<RendezvousServer> store_ = *RendezvousServer::Start("127.0.0.1", 0, TestSecret());
};

TEST_F(RendezvousStoreAttack, AFloodOfSilentClientsDelaysNoMember) {
  const Flood flood("127.0.0.1", store_->port());
  ASSERT_TRUE(Eventually([&] { return flood.opened() >= Flood::kOpen; }));
  for (int i = 0; i < 5; ++i) {
    const MonotonicTime begin = MonotonicNow();
    EXPECT_EQ(Rendezvous::Connect(At(store_->port())).value()->Set("key", "value"), absl::OkStatus());
    EXPECT_LT(MonotonicNow() - begin, Flood::kMaxDelay);
  }
}

// It listens where a member tries the store first, such as at another loopback address.
TEST_F(RendezvousStoreAttack, AProcessOfThisHostCannotRelay) {
  Relay relay("127.0.0.2", {"127.0.0.1", store_->port()});
  RendezvousOptions options = At(relay.port());
  options.host = "127.0.0.2";
  EXPECT_EQ(Rendezvous::Connect(options).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(relay.connections(), 1);
  EXPECT_LT(relay.seen().size(), 200u) << "of both directions: no more than the first messages";
}

TEST_F(RendezvousStoreAttack, ARequestThatIsTooLargeIsNotKept) {
  const auto member = Rendezvous::Connect(At(store_->port())).value();
  const absl::Status status = member->Set("key", std::string(60 << 20, 'x'));
  EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, "while setting 'key'"));
  EXPECT_EQ(member->Set("key", std::string(1 << 20, 'x')), absl::OkStatus());
}

}  // namespace
}  // namespace psring
