// How a worker and a server detect that they share memory, and exchanges through it.
#include "ps_server/wire/shared_payload.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/net/authentication.h"
#include "common/net/unix_socket.h"
#include "ps_server/wire/service.h"
#include "ps_server/wire/wire.h"
#include "tests/ps_server/cluster.h"
#include "tests/ps_server/test_job.h"
#include "tests/ps_server/wire/stranger.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<HandedOver> HandOver(const std::string& offer, const SharedMemory& gradients,
                                    const SharedMemory& weights, const JobSecret& secret = TestSecret()) {
  const auto shared = [](const SharedMemory& memory) {
    return SharedSpan{{memory.data(), memory.bytes() / sizeof(float)}, memory.fd()};
  };
  return HandOverMemory(offer, secret, shared(gradients), shared(weights), Soon());
}

Device& TheCpu() {
  static Device* const cpu = MakeCpuDevice().release();
  return *cpu;
}

TEST(PayloadReceiverTest, TheHandshakeMapsTheSameMemoryOnBothSides) {
  const auto receiver = *PayloadReceiver::Open(TheCpu(), TestSecret());
  const SharedMemory gradients = *SharedMemory::Create(10000), weights = *SharedMemory::Create(20000);
  const auto token = HandOver(receiver->offer(), gradients, weights);
  ASSERT_TRUE(token.ok()) << token.status();
  const std::optional<WorkerMemory> taken = receiver->Take(token->token);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->gradients.bytes(), 10000);
  gradients.data()[9999] = std::byte{7};
  EXPECT_EQ(taken->gradients.data()[9999], std::byte{7});
  taken->weights.data()[19999] = std::byte{8};
  EXPECT_EQ(weights.data()[19999], std::byte{8});
  EXPECT_FALSE(receiver->Take(token->token).has_value()) << "once";
  EXPECT_FALSE(receiver->Take("").has_value());
}

TEST(PayloadReceiverTest, AServerOnAnotherHostIsNotReached) {
  const SharedMemory memory = *SharedMemory::Create(4096);
  // The name of a socket on another host does not exist here.
  const auto elsewhere = HandOver(absl::StrCat("psring-elsewhere ", std::string(32, 'a')), memory, memory);
  EXPECT_THAT(std::string(elsewhere.status().message()), HasSubstr("cannot be reached from here"));
  EXPECT_FALSE(HandOver("", memory, memory).ok());
  // A receiver of the right name with another token.
  const auto receiver = *PayloadReceiver::Open(TheCpu(), TestSecret());
  const std::string name = std::vector<std::string>(absl::StrSplit(receiver->offer(), ' '))[0];
  const auto wrong = HandOver(absl::StrCat(name, " ", std::string(32, 'a')), memory, memory);
  EXPECT_THAT(std::string(wrong.status().message()),
              HasSubstr("its local socket does not have this job's secret"));
}

TEST(PayloadReceiverTest, AWorkerThatViolatesTheHandshakeIsRejected) {
  const auto receiver = *PayloadReceiver::Open(TheCpu(), TestSecret());
  const std::vector<std::string> offer = absl::StrSplit(receiver->offer(), ' ');
  const Credentials member = {.secret = TestSecret(), .purpose = Purpose::kSharedPayload, .token = offer[1]};
  const std::string token(32, 'b');
  const SharedMemory page = *SharedMemory::Create(4096), small = *SharedMemory::Create(4096);
  const auto answer = [&](const std::string& text, const std::vector<int>& files) {
    const auto socket = UnixSocket::Connect(offer[0], Soon());
    EXPECT_TRUE(socket.ok()) << socket.status();
    EXPECT_TRUE(AuthenticateTo(socket->fd(), member, "the receiver", Soon()).ok());
    EXPECT_TRUE(socket->Send(text, files, Soon()).ok());
    return socket->Receive(Soon()).status();
  };
  std::memcpy(page.data(), token.data(), token.size());
  EXPECT_FALSE(answer("what is this", {}).ok());
  EXPECT_FALSE(answer(absl::StrCat(token, " 4096 4096"), {page.fd()}).ok());
  EXPECT_FALSE(answer(absl::StrCat(token, " 4096 4097"), {page.fd(), small.fd(), small.fd()}).ok());
  EXPECT_FALSE(
      answer(absl::StrCat(std::string(32, 'c'), " 4096 4096"), {page.fd(), small.fd(), small.fd()}).ok());
  EXPECT_FALSE(answer(absl::StrCat(token, " 4096 4096"), {page.fd(), 0, small.fd()}).ok());
  EXPECT_FALSE(receiver->Take(token).has_value());
  EXPECT_TRUE(answer(absl::StrCat(token, " 4096 4096"), {page.fd(), small.fd(), small.fd()}).ok());
  EXPECT_TRUE(receiver->Take(token).has_value());
}

TEST(PayloadReceiverTest, AWorkerWithoutTheSecretIsRejected) {
  const auto receiver = *PayloadReceiver::Open(TheCpu(), TestSecret());
  const SharedMemory memory = *SharedMemory::Create(4096);
  const auto handed = HandOver(receiver->offer(), memory, memory, OtherSecret());
  EXPECT_TRUE(absl::IsPermissionDenied(handed.status())) << handed.status();
}

const std::vector<size_t> kPayloadSizes = {3, 1000, 1, 2 * kChunkBytes / sizeof(float) + 3};

TEST(SharedPayloadTest, WorkersWithDifferentPayloadsTrainTogether) {
  const ServerJob job = MakeJob(3, kPayloadSizes, {.deterministic = true});
  const auto device = MakeCpuDevice();
  ParameterServer server(*device, {.workers = 3, .timeout = absl::Seconds(20)});
  const auto service = *Service::Start(server, {.secret = TestSecret()});
  constexpr Payload kPayloads[] = {Payload::kGrpc, Payload::kShared, Payload::kAuto};
  ForEachRank(3, [&](int rank) {
    TestWorker worker(
        job, rank,
        MakeGrpcPsClient(service->address(), {.secret = TestSecret(), .payload = kPayloads[rank]}));
    ASSERT_EQ(worker.Start(), absl::OkStatus());
    EXPECT_EQ(worker.client->status().payload, rank == 0 ? "grpc" : "shm");
    EXPECT_THAT(worker.client->status().wires,
                testing::ElementsAre(rank == 0 ? "gRPC over TCP" : "shared memory"));
    ASSERT_EQ(worker.Steps(0, 3), absl::OkStatus());
    EXPECT_EQ(worker.weights, TrainAlone(job, 3));
    ASSERT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
  });
  EXPECT_EQ(server.WaitUntilOver(Soon()), absl::OkStatus());
}

// A worker that sends arbitrary messages.
std::string Answer(const std::function<void(proto::Join&, message::SharedPlaces&)>& change) {
  const auto device = MakeCpuDevice();
  ParameterServer server(*device, {.workers = 1, .timeout = absl::Seconds(10)});
  const auto service = *Service::Start(server, {.secret = TestSecret()});
  const SharedMemory memory = *SharedMemory::Create(8192);

  KeepGrpcRunning();
  Stranger stranger(service->address());
  const auto token = HandOver(stranger.Offer(), memory, memory);
  EXPECT_TRUE(token.ok()) << token.status();
  message::SharedPlaces places{.bytes = 4000};
  stranger.SendJoin(0, MakeJob(1, {1000}), [&](proto::Join& join) {
    join.set_session(0);
    join.set_memory(token->token);
    change(join, places);
  });
  stranger.Send({message::InitialWeights{}, std::string(4000, 0)});
  if (!stranger.IsWelcome()) return stranger.End();
  message::Gradient push = stranger.First().gradient();
  push.bucket = 0;
  push.samples = 1;
  push.shared = places;
  stranger.Send({push, ""});
  const std::optional<message::Answer> answer = stranger.Await<message::Answer>();
  return answer.has_value() ? absl::StrCat("version ", answer->version) : stranger.End();
}

TEST(SharedPayloadTest, InvalidOffsetsAndTokensAreRejected) {
  using Join = proto::Join;
  using Places = message::SharedPlaces;
  EXPECT_EQ(Answer([](Join&, Places&) {}), "version 1");
  EXPECT_EQ(Answer([](Join&, Places& places) { places.gradient_at = 4192, places.weights_at = 4192; }),
            "version 1");
  EXPECT_THAT(Answer([](Join&, Places& places) { places.gradient_at = 4193; }),
              HasSubstr("the place of a gradient outside of its memory: 4000 bytes at 4193"));
  EXPECT_THAT(Answer([](Join&, Places& places) { places.gradient_at = ~uint64_t{0}; }),
              HasSubstr("outside of its memory"));
  EXPECT_THAT(Answer([](Join&, Places& places) { places.weights_at = 4193; }),
              HasSubstr("the place of bucket 0's weights lies outside of its memory"));
  EXPECT_THAT(Answer([](Join& join, Places& places) {
                join.mutable_job()->set_consistency("async");
                places.weights_at = ~uint64_t{0} - 3999;
              }),
              HasSubstr("lies outside of its memory"));
  EXPECT_THAT(Answer([](Join&, Places& places) { places.bytes = 3996; }),
              HasSubstr("has 3996 bytes, not 4000"));
  EXPECT_THAT(Answer([](Join& join, Places&) { join.set_memory(std::string(32, 'a')); }),
              HasSubstr("names shared memory that it has not handed over"));
  EXPECT_THAT(Answer([](Join& join, Places&) { join.clear_memory(); }), HasSubstr("but shares no memory"));
  EXPECT_THAT(Answer([](Join& join, Places&) { join.set_protocol(1); }),
              HasSubstr("has version 1 of the parameter server's protocol"));
}

}  // namespace
}  // namespace psring
