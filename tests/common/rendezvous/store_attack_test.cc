// Strangers at the store's port, and a member that sends too much.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/base/deadline.h"
#include "common/net/authentication.h"
#include "common/net/tcp_socket.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/common/net/flood.h"
#include "tests/common/net/relay.h"
#include "tests/eventually.h"
#include "tests/has.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

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
