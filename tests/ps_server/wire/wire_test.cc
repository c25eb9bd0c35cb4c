#include "ps_server/wire/wire.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <random>
#include <string>

#include "proto/parameter_server.pb.h"

namespace psring {
namespace {

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

// As received from the network: cut every `piece` bytes.
grpc::ByteBuffer Cut(const std::string& bytes, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    slices.emplace_back(bytes.data() + at, std::min(piece, bytes.size() - at));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// Encodes a message, parses it with the protobuf library, and decodes it from pieces of several sizes.
template <typename Message>
proto::Chunk RoundTrip(const Message& message) {
  const std::string payload = "some bytes";
  const grpc::ByteBuffer encoded = Encode(message, std::as_bytes(std::span(payload)), nullptr);
  proto::Chunk parsed;
  EXPECT_TRUE(parsed.ParseFromString(Flatten(encoded)));
  EXPECT_EQ(parsed.payload(), payload);
  for (const size_t piece : {1, 2, 7, 1000}) {
    grpc::ByteBuffer bytes = Cut(Flatten(encoded), piece);
    Received<Message> received;
    EXPECT_EQ(received.Decode(bytes), absl::OkStatus());
    EXPECT_EQ(received.message(), message);
    std::string back;
    for (const Bytes& part : received.payload()) {
      back.append(reinterpret_cast<const char*>(part.data()), part.size());
    }
    EXPECT_EQ(back, payload);
  }
  grpc::ByteBuffer alone = Encode(message, {}, nullptr);
  Received<Message> received;
  EXPECT_EQ(received.Decode(alone), absl::OkStatus());
  EXPECT_EQ(received.message(), message);
  EXPECT_TRUE(received.payload().empty());
  return parsed;
}
proto::Chunk ToServer(const message::ToServer& message) { return RoundTrip(message); }
proto::Chunk ToWorker(const message::ToWorker& message) { return RoundTrip(message); }

TEST(WireTest, EveryMessageToTheServerIsEncodedAsInTheProtoFile) {
  EXPECT_EQ(ToServer(message::Join{}).kind(), proto::Chunk::JOIN);
  EXPECT_EQ(ToServer(message::Leave{}).kind(), proto::Chunk::LEAVE);
  const proto::Chunk weights = ToServer(message::InitialWeights{.bucket = 300, .offset = 7, .slot = 2});
  EXPECT_EQ(weights.kind(), proto::Chunk::WEIGHTS);
  EXPECT_EQ(weights.bucket(), 300);
  EXPECT_EQ(weights.offset(), 7u);
  EXPECT_EQ(weights.slot(), 2);
  const proto::Chunk gradient = ToServer(message::Gradient{.bucket = -1,
                                                           .offset = ~uint64_t{0},
                                                           .step = 128,
                                                           .samples = 127,
                                                           .incarnation = ~uint64_t{0},
                                                           .resets = 3});
  EXPECT_EQ(gradient.kind(), proto::Chunk::EXCHANGE);
  EXPECT_EQ(gradient.bucket(), -1);
  EXPECT_EQ(gradient.offset(), ~uint64_t{0});
  EXPECT_EQ(gradient.step(), 128);
  EXPECT_EQ(gradient.samples(), 127);
  EXPECT_EQ(gradient.incarnation(), ~uint64_t{0});
  EXPECT_EQ(gradient.resets(), 3u);
  EXPECT_FALSE(gradient.shared());
  const proto::Chunk shared = ToServer(message::Gradient{
      .shared = message::SharedPlaces{.bytes = 4000, .gradient_at = ~uint64_t{0}, .weights_at = 1}});
  EXPECT_TRUE(shared.shared());
  EXPECT_EQ(shared.shared_bytes(), 4000u);
  EXPECT_EQ(shared.gradient_at(), ~uint64_t{0});
  EXPECT_EQ(shared.weights_at(), 1u);
  const proto::Chunk verdict = ToServer(
      message::Announcement{.step = -1, .incarnation = 5, .dropped = true, .version = 9, .complete = 3});
  EXPECT_EQ(verdict.kind(), proto::Chunk::ANNOUNCE);
  EXPECT_EQ(verdict.step(), -1);
  EXPECT_EQ(verdict.incarnation(), 5u);
  EXPECT_TRUE(verdict.dropped());
  EXPECT_EQ(verdict.version(), 9);
  EXPECT_EQ(verdict.complete(), 3);
  const proto::Chunk norm = ToServer(message::NormTotal{.step = 7, .sum_of_squares = 1.0 / 3});
  EXPECT_EQ(norm.kind(), proto::Chunk::NORM);
  EXPECT_EQ(std::bit_cast<double>(norm.sum_of_squares()), 1.0 / 3);
  EXPECT_EQ(ToServer(message::Fetch{.slot = 1}).slot(), 1);
  EXPECT_EQ(ToServer(message::Barrier{.number = 2}).step(), 2);
  const proto::Chunk rewind = ToServer(message::Rewind{.step = 12, .epoch = 3});
  EXPECT_EQ(rewind.kind(), proto::Chunk::REWIND);
  EXPECT_EQ(rewind.step(), 12);
  EXPECT_EQ(rewind.version(), 3);
  const proto::Chunk pull = ToServer(message::PullRows{.bucket = 3, .step = 9, .slot = 2, .request = 4});
  EXPECT_EQ(pull.kind(), proto::Chunk::PULL_ROWS);
  EXPECT_EQ(pull.bucket(), 3);
  EXPECT_EQ(pull.step(), 9);
  EXPECT_EQ(pull.slot(), 2);
  EXPECT_EQ(pull.complete(), 4);
  const proto::Chunk initial = ToServer(message::InitialRows{.bucket = 3, .slot = 1, .request = 5});
  EXPECT_EQ(initial.kind(), proto::Chunk::INITIAL_ROWS);
  EXPECT_EQ(initial.bucket(), 3);
  EXPECT_EQ(initial.slot(), 1);
  EXPECT_EQ(initial.complete(), 5);
  const proto::Chunk push = ToServer(message::PushRows{.bucket = 2, .step = 8, .samples = 7, .complete = 1});
  EXPECT_EQ(push.kind(), proto::Chunk::PUSH_ROWS);
  EXPECT_EQ(push.samples(), 7);
  EXPECT_EQ(push.complete(), 1);
}

TEST(WireTest, EveryMessageToTheWorkerIsEncodedAsInTheProtoFile) {
  const proto::Chunk welcome = ToWorker(message::Welcome{
      .step = 5, .epoch = 2, .incarnation = ~uint64_t{0}, .patience_ms = INT64_MAX, .went_back = true});
  EXPECT_EQ(welcome.kind(), proto::Chunk::JOIN);
  EXPECT_EQ(welcome.step(), 5);
  EXPECT_EQ(welcome.version(), 2);
  EXPECT_EQ(welcome.incarnation(), ~uint64_t{0});
  EXPECT_EQ(welcome.patience_ms(), INT64_MAX);
  EXPECT_TRUE(welcome.dropped());
  EXPECT_EQ(ToWorker(message::Weights{.bucket = 4, .offset = 8}).kind(), proto::Chunk::WEIGHTS);
  const proto::Chunk answer =
      ToWorker(message::Answer{.bucket = 300,
                               .offset = uint64_t{1} << 40,
                               .step = -1,
                               .version = -1,
                               .staleness = kMostCount,
                               .dropped = true,
                               .shared = message::WeightsPlace{.bytes = 40, .weights_at = 8}});
  EXPECT_EQ(answer.kind(), proto::Chunk::EXCHANGE);
  EXPECT_EQ(answer.bucket(), 300);
  EXPECT_EQ(answer.offset(), uint64_t{1} << 40);
  EXPECT_EQ(answer.step(), -1);
  EXPECT_EQ(answer.version(), -1);
  EXPECT_EQ(answer.staleness(), kMostCount);
  EXPECT_TRUE(answer.dropped());
  EXPECT_TRUE(answer.shared());
  EXPECT_EQ(answer.shared_bytes(), 40u);
  EXPECT_EQ(answer.weights_at(), 8u);
  EXPECT_EQ(ToWorker(message::Admitted{.step = 7, .complete = 2}).complete(), 2);
  EXPECT_EQ(ToWorker(message::NormPart{.step = 7, .sum_of_squares = 2}).kind(), proto::Chunk::NORM);
  EXPECT_EQ(ToWorker(message::Reset{.bucket = 1, .resets = 6}).resets(), 6u);
  EXPECT_EQ(ToWorker(message::FetchDone{}).kind(), proto::Chunk::FETCH);
  EXPECT_EQ(ToWorker(message::BarrierPassed{.number = 1}).kind(), proto::Chunk::BARRIER);
  EXPECT_EQ(ToWorker(message::Rows{.bucket = 4, .step = 5, .version = 6}).kind(), proto::Chunk::PULL_ROWS);
  EXPECT_EQ(ToWorker(message::Left{.version = 9, .complete = 3}).version(), 9);
}

TEST(WireTest, AServerRejectsCountsOutOfRangeAndMessagesOfServers) {
  const auto decodes = [](const std::function<void(proto::Chunk&)>& change) {
    proto::Chunk chunk;
    chunk.set_kind(proto::Chunk::EXCHANGE);
    change(chunk);
    grpc::ByteBuffer bytes = Cut(chunk.SerializeAsString(), 10);
    return std::string(Received<message::ToServer>().Decode(bytes).message());
  };
  EXPECT_EQ(decodes([](proto::Chunk&) {}), "");
  EXPECT_EQ(decodes([](proto::Chunk& chunk) { chunk.set_samples(kMostCount + 1); }),
            "samples 1099511627777; the most is 1099511627776");
  EXPECT_EQ(decodes([](proto::Chunk& chunk) { chunk.set_step(-2); }), "step -2; the most is 1099511627776");
  EXPECT_EQ(decodes([](proto::Chunk& chunk) { chunk.set_kind(proto::Chunk::RESET); }),
            "a message of kind 8, which only servers send");
  EXPECT_NE(decodes([](proto::Chunk& chunk) { chunk.set_kind(proto::Chunk::FETCH), chunk.set_shared(true); }),
            "");
}

TEST(WireTest, AWorkerRejectsCountsOutOfRange) {
  const auto decodes = [](const message::ToWorker& message) {
    grpc::ByteBuffer bytes = Encode(message, {}, nullptr);
    return std::string(Received<message::ToWorker>().Decode(bytes).message());
  };
  EXPECT_EQ(decodes(message::Welcome{.step = kMostCount}), "");
  EXPECT_EQ(decodes(message::Welcome{.step = kMostCount + 1}),
            "step 1099511627777; the most is 1099511627776");
  EXPECT_EQ(decodes(message::Answer{.version = INT64_MIN}),
            "version -9223372036854775808; the most is 1099511627776");
  EXPECT_EQ(decodes(message::Answer{.staleness = INT64_MAX}),
            "staleness 9223372036854775807; the most is 1099511627776");
}

TEST(WireTest, ThePayloadIsBorrowedAndReleased) {
  const auto memory = std::make_shared<std::string>(1000, 'x');
  {
    const grpc::ByteBuffer message =
        Encode(message::ToWorker(message::Answer{}), std::as_bytes(std::span(*memory)), memory);
    EXPECT_GT(memory.use_count(), 1);
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(message.Dump(&slices).ok());
    EXPECT_EQ(static_cast<const void*>(slices.back().begin()), memory->data());
  }
  EXPECT_EQ(memory.use_count(), 1);
}

TEST(WireTest, InvalidChunksAreRejected) {
  const std::string payload(100, 'x');
  const std::string whole = Flatten(
      Encode(message::ToServer(message::Gradient{.bucket = 300, .offset = uint64_t{1} << 40, .step = 128}),
             std::as_bytes(std::span(payload)), nullptr));
  const auto decodes = [](const std::string& bytes) {
    grpc::ByteBuffer message = Cut(bytes, 10);
    return Received<message::ToServer>().Decode(message).ok();
  };
  EXPECT_TRUE(decodes(whole));
  EXPECT_FALSE(decodes(""));
  EXPECT_FALSE(decodes(whole.substr(0, whole.size() - 1)));  // the payload ends early
  EXPECT_FALSE(decodes(whole + "x"));                        // or is not the last field
  EXPECT_FALSE(decodes(std::string("\x08\x0e", 2)));         // a kind that does not exist
  EXPECT_FALSE(decodes(std::string("\x10\x01", 2)));         // no kind
  EXPECT_FALSE(decodes(std::string(500, '\xff')));           // a number that does not end
}

TEST(WireTest, RandomBytesAreHarmless) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random() % 200, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (bytes.size() > 2 && i % 2 == 0) bytes[0] = 0x08, bytes[1] = 3;  // a valid beginning
    grpc::ByteBuffer message = Cut(bytes, 1 + random() % 50);
    Received<message::ToServer> to_server;
    if (to_server.Decode(message).ok()) {
      EXPECT_LE(TotalBytes(to_server.payload()), bytes.size());
    }
    message = Cut(bytes, 1 + random() % 50);
    Received<message::ToWorker> to_worker;
    if (to_worker.Decode(message).ok()) {
      EXPECT_LE(TotalBytes(to_worker.payload()), bytes.size());
    }
    const Bytes all = std::as_bytes(std::span(bytes));
    (void)DecodeJoin({&all, 1});
  }
}

TEST(WireTest, ALongNameIsNotRepeatedInTheError) {
  const std::string encoded = EncodeJoin({.job = {.consistency = std::string(1'000'000, 'x')}});
  const Bytes bytes = std::as_bytes(std::span(encoded));
  EXPECT_EQ(DecodeJoin({&bytes, 1}).status().message(),
            "a job with a name of 1000000 bytes; the maximum is 64");
}

// It could forge lines of the server's messages.
TEST(WireTest, ANameOfSeveralLinesIsNotRepeatedInTheError) {
  const std::string encoded = EncodeJoin({.job = {.consistency = "sync\nps_server: all is well"}});
  const Bytes bytes = std::as_bytes(std::span(encoded));
  EXPECT_EQ(DecodeJoin({&bytes, 1}).status().message(), "a job with a name of several lines");
}

TEST(WireTest, AJoinRoundTrips) {
  ServerJob job{
      .workers = 3, .consistency = "async", .deterministic = true, .serial = true, .parameters = 12};
  job.buckets = {{.index = 0, .first = 5, .count = 7}, {.index = 1, .first = 0, .count = 5}};
  job.optimizer = {.kind = OptimizerKind::kAdam,
                   .momentum = 0.1,
                   .beta1 = 0.2,
                   .beta2 = 0.3,
                   .epsilon = 0.4,
                   .weight_decay = 0.6,
                   .no_decay = {{1, 2}, {7, 3}}};
  job.schedule = {
      .decay = LrDecay::kLinear, .base = 0.5, .scale = 2, .warmup_samples = 10, .total_samples = 1 << 20};
  job.server = 1;
  job.servers = 3;
  job.clip_norm = 0.25;
  job.staleness_lr = true;
  job.wire = DType::kBFloat16;
  job.tables = {{.rows = 7, .width = 3, .bound = .5f}, {.rows = 1'000'000, .width = 64}};
  job.table_seed = ~uint64_t{0};
  job.row_arrays = 3;
  const std::string encoded = EncodeJoin({.worker = 2, .job = job});
  const Bytes bytes = std::as_bytes(std::span(encoded));
  const auto decoded = DecodeJoin({&bytes, 1});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->worker, 2);
  EXPECT_TRUE(RequireSameJob(job, decoded->job, 2).ok()) << RequireSameJob(job, decoded->job, 2);
}

}  // namespace
}  // namespace psring
