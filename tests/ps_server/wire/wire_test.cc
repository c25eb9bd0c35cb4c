#include "ps_server/wire/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "absl/status/status.h"

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

// Decoded from pieces of several sizes, and encoded again.
template <typename Message>
void ExpectOnTheWire(const Message& message) {
  const std::string payload = "some bytes";
  const std::string alone = Flatten(Encode(message, {}, nullptr));
  Message from_fields;
  EXPECT_EQ(FromFields(FieldsOf(message), from_fields), absl::OkStatus());
  EXPECT_EQ(Flatten(Encode(from_fields, {}, nullptr)), alone);
  const std::string encoded = Flatten(Encode(message, std::as_bytes(std::span(payload)), nullptr));
  EXPECT_EQ(encoded, alone + payload);
  for (const size_t piece : {1, 2, 7, 1000}) {
    for (const std::string& whole : {encoded, alone}) {
      grpc::ByteBuffer bytes = Cut(whole, piece);
      Received<Message> received;
      EXPECT_EQ(received.Decode(bytes), absl::OkStatus());
      std::string back;
      for (const Bytes& part : received.payload()) {
        back.append(reinterpret_cast<const char*>(part.data()), part.size());
      }
      EXPECT_EQ(back, whole == encoded ? payload : "");
      EXPECT_EQ(Flatten(Encode(received.message(), std::as_bytes(std::span(back)), nullptr)), whole);
    }
  }
}

// All members differ from their defaults.
TEST(WireTest, EveryMessageToTheServerRoundTrips) {
  using namespace message;
  constexpr uint64_t kMax = ~uint64_t{0};
  for (const ToServer& message : std::vector<ToServer>{
           Join{}, Leave{}, InitialWeights{.bucket = 300, .offset = 7, .slot = 2},
           Gradient{
               .bucket = -1, .offset = kMax, .step = 128, .samples = 127, .incarnation = kMax, .resets = 3},
           Gradient{.shared = SharedPlaces{.bytes = 4000, .gradient_at = kMax, .weights_at = 1}},
           Announcement{.step = -1, .incarnation = 5, .dropped = true, .version = 9, .complete = 3},
           NormTotal{.step = 7, .sum_of_squares = 1.0 / 3}, Fetch{.slot = 1}, Barrier{.number = 2},
           Rewind{.step = 12, .epoch = 3}, PullRows{.bucket = 3, .step = 9, .slot = 2, .request = 4},
           InitialRows{.bucket = 3, .slot = 1, .request = 5},
           PushRows{.bucket = 2, .step = 8, .samples = 7, .complete = 1}}) {
    ExpectOnTheWire(message);
  }
}

TEST(WireTest, EveryMessageToTheWorkerRoundTrips) {
  using namespace message;
  for (const ToWorker& message :
       std::vector<ToWorker>{Welcome{.step = 5,
       .epoch = 2,
       .incarnation = ~uint64_t{0},
       .patience_ms = INT64_MAX,
       .went_back = true},
                             Weights{.bucket = 4, .offset = 8},
                             Answer{.bucket = 300,
                             .offset = uint64_t{1} << 40,
                             .step = -1,
                             .version = -1,
                             .staleness = kMaxWireCount,
                             .dropped = true,
                             .shared = SharedPlaces{.bytes = 40, .weights_at = 8}},
                             Admitted{.step = 7, .complete = 2}, NormPart{.step = 7, .sum_of_squares = 2},
                             Reset{.bucket = 1, .resets = 6}, FetchDone{}, BarrierPassed{.number = 1},
                             Rows{.bucket = 4, .step = 5, .version = 6}, Left{.version = 9, .complete = 3}}) {
    ExpectOnTheWire(message);
  }
}

TEST(WireTest, MembersKeepTheirValues) {
  const auto round_trip = [](const message::ToServer& from) {
    message::ToServer to;
    EXPECT_EQ(FromFields(FieldsOf(from), to), absl::OkStatus());
    return to;
  };
  const auto gradient = std::get<message::Gradient>(round_trip(
      message::Gradient{.bucket = -1,
                        .offset = ~uint64_t{0},
                        .step = 128,
                        .samples = 127,
                        .shared = message::SharedPlaces{.bytes = 4000, .gradient_at = 3, .weights_at = 1}}));
  EXPECT_EQ(gradient.bucket, -1);
  EXPECT_EQ(gradient.offset, ~uint64_t{0});
  EXPECT_EQ(gradient.step, 128);
  EXPECT_EQ(gradient.samples, 127);
  ASSERT_TRUE(gradient.shared.has_value());
  EXPECT_EQ(gradient.shared->bytes, 4000);
  EXPECT_EQ(gradient.shared->gradient_at, 3);
  EXPECT_EQ(gradient.shared->weights_at, 1);
  EXPECT_EQ(
      std::get<message::NormTotal>(round_trip(message::NormTotal{.sum_of_squares = 1.0 / 3})).sum_of_squares,
      1.0 / 3);
  EXPECT_TRUE(std::get<message::Announcement>(round_trip(message::Announcement{.dropped = true})).dropped);
}

TEST(WireTest, AServerRejectsCountsOutOfRange) {
  const auto decodes = [](const message::ToServer& message) {
    grpc::ByteBuffer bytes = Encode(message, {}, nullptr);
    return std::string(Received<message::ToServer>().Decode(bytes).message());
  };
  EXPECT_EQ(decodes(message::Gradient{}), "");
  EXPECT_EQ(decodes(message::Gradient{.samples = kMaxWireCount + 1}),
            "samples 1099511627777; the most is 1099511627776");
  EXPECT_EQ(decodes(message::Gradient{.step = -2}), "step -2; the most is 1099511627776");
}

TEST(WireTest, AWorkerRejectsCountsOutOfRange) {
  const auto decodes = [](const message::ToWorker& message) {
    grpc::ByteBuffer bytes = Encode(message, {}, nullptr);
    return std::string(Received<message::ToWorker>().Decode(bytes).message());
  };
  EXPECT_EQ(decodes(message::Welcome{.step = kMaxWireCount}), "");
  EXPECT_EQ(decodes(message::Welcome{.step = kMaxWireCount + 1}),
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
  EXPECT_FALSE(decodes(whole.substr(0, sizeof(MessageFields) - 1)));
  EXPECT_FALSE(decodes(std::string(sizeof(MessageFields), 0)));  // no kind
  EXPECT_FALSE(decodes(std::string(500, '\xff')));               // a kind that does not exist
}

TEST(WireTest, RandomBytesAreHarmless) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random() % 200, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (bytes.size() > 8 && i % 2 == 0)
      bytes.replace(0, 8, std::string("\3\0\0\0\0\0\0\0", 8));  // a valid beginning
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
