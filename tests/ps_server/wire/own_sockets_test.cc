// Connections of workers to a server's port, while strangers are at it or at an earlier one.
#include "ps_server/wire/own_sockets.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/net/address.h"
#include "tests/common/net/flood.h"
#include "tests/common/net/relay.h"
#include "tests/eventually.h"
#include "tests/ps_server/test_job.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

// A port of a server that serves nothing.
class ServedPort {
 public:
  ServedPort() {
    TcpListener listener = *ListenTcp("127.0.0.1", 0);
    const std::string token = NewListenerToken();
    address_ = PublishedText({"127.0.0.1", listener.port, token});
    const auto next = [this]() -> grpc::Server& { return *server_; };
    const auto on_payload = [this](uint64_t number, MemberSocket) {
      MutexLock lock(mutex_);
      payloads_.push_back(number);
    };
    port_ = *ServeMembers(std::move(listener), TestSecret(), token, next, nullptr, on_payload);
  }
  ~ServedPort() {
    port_.reset();
    server_->Shutdown();
  }
  const std::string& address() const { return address_; }
  HostPort place() const { return *ParseAddress(address()); }
  // The numbers of payload connections so far.
  std::vector<uint64_t> payloads() {
    MutexLock lock(mutex_);
    return payloads_;
  }

 private:
  std::unique_ptr<grpc::Server> MakeServer() {
    grpc::ServerBuilder builder;
    builder.RegisterAsyncGenericService(&service_);
    queue_ = builder.AddCompletionQueue();
    return builder.BuildAndStart();
  }
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_ = MakeServer();
  std::string address_;
  Mutex mutex_;
  std::vector<uint64_t> payloads_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<AuthenticatedListener> port_;
};

TEST(OwnSockets, AFloodOfSilentClientsDelaysNoWorker) {
  const ServedPort server;
  const Flood flood("127.0.0.1", server.place().port);
  ASSERT_TRUE(Eventually([&] { return flood.opened() >= Flood::kOpen; }));
  for (int i = 0; i < 5; ++i) {
    const MonotonicTime begin = MonotonicNow();
    const auto channel = OpenChannel(server.address(), TestSecret(), {}, Soon());
    EXPECT_TRUE(channel.ok()) << channel.status();
    EXPECT_LT(MonotonicNow() - begin, Flood::kMaxDelay);
  }
}

TEST(OwnSockets, APayloadConnectionNeedsTheSecretAndBringsItsNumber) {
  ServedPort server;
  EXPECT_EQ(ConnectToServer(server.address(), *JobSecret::FromHex("ffeeddccbbaa99887766554433221100"), Soon(),
                            {}, 5)
                .status()
                .code(),
            absl::StatusCode::kPermissionDenied);
  const auto connected = ConnectToServer(server.address(), TestSecret(), Soon(), {}, 7);
  ASSERT_TRUE(connected.ok()) << connected.status();
  EXPECT_TRUE(Eventually([&] { return server.payloads() == std::vector<uint64_t>{7}; }));
}

TEST(OwnSockets, WhoTakesTheOldPortOfARestartedServerCannotRelay) {
  const std::string old_token = ServedPort().place().token;
  const ServedPort restarted;
  EXPECT_NE(restarted.place().token, old_token);
  const Relay relay("127.0.0.1", restarted.place());
  const std::string old = PublishedText({"127.0.0.1", relay.port(), old_token});
  EXPECT_EQ(OpenChannel(old, TestSecret(), {}, Soon()).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(relay.connections(), 1);
  EXPECT_LT(relay.seen().size(), 200u) << "of both directions: no more than the first messages";
  EXPECT_TRUE(OpenChannel(restarted.address(), TestSecret(), {}, Soon()).ok());
}

}  // namespace
}  // namespace psring
