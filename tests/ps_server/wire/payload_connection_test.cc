// Payload connections and members that misuse them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/device_factory/make_device.h"
#include "common/net/tcp_socket.h"
#include "common/net/tls.h"
#include "ps_server/protocol/row_messages.h"
#include "ps_server/wire/payload_socket.h"
#include "ps_server/wire/payload_streams.h"
#include "ps_server/wire/service.h"
#include "tests/eventually.h"
#include "tests/ps_server/test_job.h"
#include "tests/ps_server/wire/stranger.h"
#include "tests/test_secret.h"
#include "tests/write_all.h"

namespace psring {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kNumber = 7;

// A job of one member, which has a payload connection.
class PayloadConnectionTest : public ::testing::Test {
 protected:
  void Serve(const JobSecret& secret = TestSecret()) {
    service_.reset();
    server_ = std::make_unique<ParameterServer>(*device_, ServerOptions{.timeout = absl::Seconds(30)});
    service_ = *Service::Start(*server_, {.secret = secret, .threads = 1});
  }
  void TearDown() override { service_.reset(); }

  FileDescriptor Open(uint64_t number = kNumber) {
    FileDescriptor socket =
        ConnectToServer(service_->address(), TestSecret(), Soon(), {}, number)->TakeDescriptor();
    char accepted = 0;
    EXPECT_EQ(AwaitSocket(socket.get(), POLLIN, Soon(), ""), absl::OkStatus());
    EXPECT_EQ(recv(socket.get(), &accepted, 1, MSG_DONTWAIT), 1);
    return socket;
  }
  // A member that has joined with the connection kNumber.
  std::unique_ptr<Stranger> Joined() {
    auto member = std::make_unique<Stranger>(service_->address());
    member->SendJoin(0, job_, [](proto::Join& join) { join.set_payload(kNumber); });
    member->Send({message::InitialWeights{}, std::string(BytesOfJob(), 0)});
    EXPECT_TRUE(member->IsWelcome());
    return member;
  }
  size_t BytesOfJob() const { return static_cast<size_t>(job_.parameters) * sizeof(float); }
  message::Gradient GradientOf(Stranger& member) const {
    return {.samples = 16, .incarnation = member.First().gradient().incarnation};
  }
  static void SendFrame(const FileDescriptor& socket, const message::ToServer& message,
                        const std::string& payload, uint64_t after = 0, uint32_t more_bytes = 0) {
    const PayloadHeader header{.bytes = static_cast<uint32_t>(payload.size()) + more_bytes,
                               .after = after,
                               .fields = FieldsOf(message)};
    const std::string bytes = std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
    EXPECT_EQ(WriteAll(socket.get(), bytes.data(), bytes.size(), Soon()), absl::OkStatus());
  }

  ServerJob job_ = MakeJob(1, {10}, {.deterministic = true});
  const std::unique_ptr<Device> device_ = *MakeDevice("cpu");
  std::unique_ptr<ParameterServer> server_;
  std::unique_ptr<Service> service_;
};

TEST_F(PayloadConnectionTest, AWorkerReportsItsWire) {
  Serve();
  TestWorker worker(
      job_, 0,
      MakeGrpcPsClient(service_->address(),
                       {.secret = TestSecret(), .payload = Payload::kGrpc, .own_connection = true}));
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  EXPECT_EQ(worker.client->status().payload, "tcp");
  EXPECT_EQ(worker.client->status().wires.size(), 1);
  EXPECT_EQ(worker.client->status().wires[0], "TCP");
  ASSERT_EQ(worker.Steps(0, 3), absl::OkStatus());
  EXPECT_EQ(worker.weights, TrainAlone(job_, 3));
  EXPECT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
}

TEST_F(PayloadConnectionTest, AnEncryptedOneLeadsToTheSameWeights) {
  const JobSecret secret = *WithTls(TestSecret(), "auto");
  Serve(secret);
  {
    TestWorker worker(
        job_, 0,
        MakeGrpcPsClient(service_->address(),
                         {.secret = secret, .payload = Payload::kGrpc, .own_connection = true}));
    ASSERT_EQ(worker.Start(), absl::OkStatus());
    ASSERT_EQ(worker.Steps(0, 3), absl::OkStatus());
    EXPECT_EQ(worker.weights, TrainAlone(job_, 3));
    EXPECT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
  }
  service_.reset();
}

TEST_F(PayloadConnectionTest, AnAnswerArrivesOnIt) {
  Serve();
  const FileDescriptor socket = Open();
  const auto member = Joined();
  SendFrame(socket, GradientOf(*member), std::string(BytesOfJob(), 0));
  PayloadSocket answers{MemberSocket(FileDescriptor(dup(socket.get())))};
  std::vector<std::byte> weights(BytesOfJob());
  ASSERT_TRUE(Eventually([&] { return *answers.ReceiveHeader(); }));
  message::ToWorker message;
  ASSERT_EQ(FromFields(answers.header().fields, message), absl::OkStatus());
  EXPECT_EQ(std::get<message::Answer>(message).version, 1);
  EXPECT_EQ(answers.header().bytes, BytesOfJob());
  EXPECT_TRUE(Eventually([&] { return *answers.ReceivePayload(weights.data()); }));
}

// The Join and the initial weights are two messages.
TEST_F(PayloadConnectionTest, AFrameWaitsForTheMessagesThatPrecedeIt) {
  Serve();
  const FileDescriptor socket = Open();
  const auto member = Joined();
  SendFrame(socket, GradientOf(*member), std::string(BytesOfJob(), 0), /*after=*/3);
  member->Send({message::Barrier{}, ""});
  EXPECT_TRUE(Eventually([&] { return server_->stats().pushes == 1; }));
  message::Gradient second = GradientOf(*member);
  second.step = 1;
  SendFrame(socket, second, std::string(BytesOfJob(), 0), /*after=*/100);
  member->Send({message::Fetch{}, ""});
  ASSERT_TRUE(member->Await<message::FetchDone>().has_value());
  EXPECT_EQ(server_->stats().pushes, 1) << "the second one is never added";
}

TEST_F(PayloadConnectionTest, MembersThatMisuseItGetAnErrorThatEndsTheJob) {
  struct Misuse {
    const char* error;
    std::function<void(const FileDescriptor& socket, Stranger& member)> act;
  };
  const std::string good(BytesOfJob(), 0);
  const Misuse misuses[] = {
      {"worker 0 sent payload that begins with 78787878",
       [](const FileDescriptor& socket, Stranger&) {
         const std::string garbage(sizeof(PayloadHeader), 'x');
         EXPECT_EQ(WriteAll(socket.get(), garbage.data(), garbage.size(), Soon()), absl::OkStatus());
       }},
      {"worker 0 sent a chunk of 4294967295 bytes; the most is 1048576",
       [&](const FileDescriptor& socket, Stranger& member) {
         SendFrame(socket, GradientOf(member), "", 0, std::numeric_limits<uint32_t>::max());
       }},
      {"something else than gradients",
       [&](const FileDescriptor& socket, Stranger&) { SendFrame(socket, message::Fetch{}, ""); }},
      {"something else than gradients",
       [&](const FileDescriptor& socket, Stranger& member) {
         message::Gradient shared = GradientOf(member);
         shared.shared = message::SharedPlaces{.bytes = 40};
         SendFrame(socket, shared, "");
       }},
      {"worker 0 pulls rows in a job without tables",
       [&](const FileDescriptor& socket, Stranger&) { SendFrame(socket, message::PullRows{}, "1234"); }},
      {"not a chunk of a parameter server",
       [](const FileDescriptor& socket, Stranger&) {
         const PayloadHeader header;
         EXPECT_EQ(WriteAll(socket.get(), &header, sizeof header, Soon()), absl::OkStatus());
       }},
      {"has 4 bytes, not 40", [&](const FileDescriptor& socket,
                                  Stranger& member) { SendFrame(socket, GradientOf(member), "1234"); }},
      {"names bucket 3 of 1",
       [&](const FileDescriptor& socket, Stranger& member) {
         message::Gradient unknown = GradientOf(member);
         unknown.bucket = 3;
         SendFrame(socket, unknown, good);
       }},
      {"payload: the connection ended",
       [&](const FileDescriptor& socket, Stranger& member) {
         SendFrame(socket, GradientOf(member), "1234", 0, /*more_bytes=*/36);
         shutdown(socket.get(), SHUT_RDWR);
       }},
  };
  for (const Misuse& misuse : misuses) {
    SCOPED_TRACE(misuse.error);
    Serve();
    const FileDescriptor socket = Open();
    const auto member = Joined();
    misuse.act(socket, *member);
    EXPECT_THAT(member->End(), HasSubstr(misuse.error));
  }
}

// Also if gradients and weights are in shared memory.
TEST_F(PayloadConnectionTest, RowsAndWhatMustNotOvertakeThemTravelOnIt) {
  job_.tables = {{.rows = 50, .width = 5, .bound = .5f}};
  job_.optimizer.kind = OptimizerKind::kSgd;
  for (const Payload payload : {Payload::kGrpc, Payload::kAuto}) {
    Serve();
    TestWorker worker(job_, 0,
                      MakeGrpcPsClient(service_->address(),
                                       {.secret = TestSecret(), .payload = payload, .own_connection = true}));
    ASSERT_EQ(worker.Start(), absl::OkStatus());
    const ClientStatus status = worker.client->status();
    EXPECT_EQ(status.wires.size(), payload == Payload::kAuto ? 2 : 1);
    EXPECT_EQ(status.wires.back(), "TCP");
    const std::vector<int32_t> rows = {3, 49};
    const std::vector<float> gradient(10, 1);
    std::vector<float> before(10), after(10);
    const std::vector<RowPush> pushes = {{0, rows, gradient.data()}};
    ASSERT_EQ(worker.client->Pull(0, std::vector<RowPull>{{0, rows, before.data()}}, Soon()),
              absl::OkStatus());
    worker.client->Push(0, 1, pushes);
    ASSERT_EQ(worker.client->Pull(1, std::vector<RowPull>{{0, rows, after.data()}}, Soon()),
              absl::OkStatus());
    EXPECT_LT(after[9], before[9]);
    const uint64_t received = server_->stats().payload_rx_bytes, of_push = 2 * (1 + 5) * sizeof(float);
    worker.client->Push(1, 1, pushes);
    EXPECT_EQ(worker.client->Barrier(2, Soon()).status(), absl::OkStatus());
    EXPECT_EQ(server_->stats().payload_rx_bytes, received + of_push) << "the push arrived before the barrier";
    worker.client->Push(2, 1, pushes);
    EXPECT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
    EXPECT_EQ(server_->stats().payload_rx_bytes, received + 2 * of_push) << "the push arrived before Leave";
  }
}

TEST_F(PayloadConnectionTest, AnswersWithRowsThatNobodyReadsAreLimited) {
  const Table table = {.rows = 70'000, .width = 64, .bound = .5f};
  job_.tables = {table};
  job_.optimizer.kind = OptimizerKind::kSgd;
  Serve();
  const FileDescriptor socket = Open();
  const auto member = Joined();
  std::vector<int32_t> rows(MostRowsInMessage(table.width));
  std::iota(rows.begin(), rows.end(), 0);
  std::string pulls;
  for (int64_t request = 0; request < 100; ++request) {
    const PayloadHeader header{.bytes = static_cast<uint32_t>(rows.size() * sizeof(int32_t)),
                               .fields = FieldsOf(message::ToServer(message::PullRows{.request = request}))};
    pulls.append(reinterpret_cast<const char*>(&header), sizeof header);
    pulls.append(reinterpret_cast<const char*>(rows.data()), header.bytes);
  }
  (void)WriteAll(socket.get(), pulls.data(), pulls.size(), Soon());  // the server ends the connection
  EXPECT_THAT(member->End(),
              HasSubstr("worker 0 sent another message without having read 9 answers to earlier ones"));
}

TEST_F(PayloadConnectionTest, AJoinThatNamesAnUnknownConnectionIsRejected) {
  Serve();
  const FileDescriptor socket = Open(kNumber + 1);
  Stranger member(service_->address());
  member.SendJoin(0, job_, [](proto::Join& join) { join.set_payload(kNumber); });
  EXPECT_THAT(member.End(), HasSubstr("worker 0 names a payload connection that it has not opened"));
}

TEST_F(PayloadConnectionTest, AConnectionIsTakenOnceAndForgottenWhenItIsClosed) {
  ParameterServer server(*device_, {});
  PayloadStreams streams(server, 2);
  FileDescriptor peers[3];
  for (uint64_t i = 0; i < 3; ++i) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    peers[i] = FileDescriptor(ends[0]);
    if (i == 2) peers[1] = FileDescriptor();  // before the third one arrives
    streams.Add(i, MemberSocket(FileDescriptor(ends[1])));
    char accepted = 0;
    EXPECT_EQ(recv(peers[i].get(), &accepted, 1, MSG_DONTWAIT), 1);
  }
  EXPECT_NE(streams.Take(0), nullptr);
  EXPECT_EQ(streams.Take(0), nullptr);
  EXPECT_EQ(streams.Take(1), nullptr);
  EXPECT_EQ(streams.Take(5), nullptr);
  EXPECT_NE(streams.Take(2), nullptr);
}

class PayloadSocketTest : public ::testing::Test {
 protected:
  PayloadSocketTest() {
    int ends[2];
    PSRING_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    mine_ = std::make_unique<PayloadSocket>(MemberSocket(FileDescriptor(ends[0])));
    peer_ = FileDescriptor(ends[1]);
    mine_->SetReady(/*readable=*/true, /*writable=*/true);
  }
  void SendBytes(const void* data, size_t bytes) {
    ASSERT_EQ(WriteAll(peer_.get(), data, bytes, Soon()), absl::OkStatus());
  }

  std::unique_ptr<PayloadSocket> mine_;
  FileDescriptor peer_;
};

PayloadHeader HeaderOf(uint32_t bytes) {
  return {.bytes = bytes,
          .after = 3,
          .fields = FieldsOf(message::ToServer(message::Gradient{.bucket = 2, .step = 5}))};
}

TEST_F(PayloadSocketTest, FramesArriveByteByByte) {
  const std::string payload = "some payload";
  const PayloadHeader header = HeaderOf(static_cast<uint32_t>(payload.size()));
  const auto* const bytes = reinterpret_cast<const char*>(&header);
  std::string received(payload.size(), 0);
  auto* const to = reinterpret_cast<std::byte*>(received.data());
  for (int frame = 0; frame < 2; ++frame) {
    for (size_t i = 0; i < sizeof header; ++i) {
      EXPECT_FALSE(*mine_->ReceiveHeader());
      SendBytes(bytes + i, 1);
      mine_->SetReady(true, false);
    }
    EXPECT_TRUE(*mine_->ReceiveHeader());
    EXPECT_EQ(std::memcmp(&mine_->header(), &header, sizeof header), 0);
    for (const char& byte : payload) {
      EXPECT_FALSE(*mine_->ReceivePayload(to));
      SendBytes(&byte, 1);
    }
    EXPECT_TRUE(*mine_->ReceivePayload(to));
    EXPECT_EQ(received, payload);
    EXPECT_TRUE(*mine_->ReceiveHeader()) << "until Next";
    mine_->Next();
  }
}

TEST_F(PayloadSocketTest, AFrameIsSentAsTheSocketAcceptsIt) {
  std::string payload(kChunkBytes, 0);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * 7);
  const PayloadHeader header = HeaderOf(static_cast<uint32_t>(payload.size()));
  std::string received;
  bool sent = false;
  for (int turn = 0; turn < 1000 && !sent; ++turn) {
    const auto complete = mine_->Send(header, std::as_bytes(std::span(payload)));
    ASSERT_TRUE(complete.ok()) << complete.status();
    sent = *complete;
    EXPECT_EQ(mine_->may_write(), sent);
    std::vector<char> piece(64 << 10);
    for (ssize_t n; (n = recv(peer_.get(), piece.data(), piece.size(), MSG_DONTWAIT)) > 0;)
      received.append(piece.data(), static_cast<size_t>(n));
  }
  ASSERT_TRUE(sent);
  ASSERT_EQ(received.size(), sizeof header + payload.size());
  EXPECT_EQ(std::memcmp(received.data(), &header, sizeof header), 0);
  EXPECT_EQ(received.substr(sizeof header), payload);
}

TEST_F(PayloadSocketTest, WhatIsNoFrameIsAnError) {
  PayloadHeader header = HeaderOf(kChunkBytes + 1);
  SendBytes(&header, sizeof header);
  EXPECT_EQ(mine_->ReceiveHeader().status().message(), "a chunk of 1048577 bytes; the most is 1048576");
  mine_->Next();
  header.magic = 0x12345678;
  SendBytes(&header, sizeof header);
  EXPECT_EQ(mine_->ReceiveHeader().status().message(), "payload that begins with 12345678, not 50535031");
  mine_->Next();
  peer_ = FileDescriptor();
  EXPECT_EQ(mine_->ReceiveHeader().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(mine_->Send(HeaderOf(0), {}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(PollWakerTest, IsReadableUntilItIsCleared) {
  const PollWaker waker;
  ASSERT_TRUE(waker.valid());
  EXPECT_FALSE(AwaitSocket(waker.fd(), POLLIN, MonotonicNow(), "").ok());
  waker.Wake();
  waker.Wake();
  EXPECT_TRUE(AwaitSocket(waker.fd(), POLLIN, Soon(), "").ok());
  waker.Clear();
  EXPECT_FALSE(AwaitSocket(waker.fd(), POLLIN, MonotonicNow(), "").ok());
}

}  // namespace
}  // namespace psring
