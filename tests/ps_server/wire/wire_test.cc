#include "ps_server/wire/wire.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
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

// The message as the protobuf library reads it, in its text format without the payload; decoded from pieces
// of several sizes, and encoded again.
template <typename Message>
void ExpectOnTheWire(const Message& message, const std::string& text) {
  const std::string payload = "some bytes";
  const std::string encoded = Flatten(Encode(message, std::as_bytes(std::span(payload)), nullptr));
  proto::Chunk parsed, expected;
  EXPECT_TRUE(parsed.ParseFromString(encoded));
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &expected)) << text;
  expected.set_payload(payload);
  EXPECT_EQ(parsed.DebugString(), expected.DebugString());
  Message from_fields;
  EXPECT_EQ(FromFields(FieldsOf(message), from_fields), absl::OkStatus());
  EXPECT_EQ(Flatten(Encode(from_fields, std::as_bytes(std::span(payload)), nullptr)), encoded);
  const std::string alone = Flatten(Encode(message, {}, nullptr));
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

TEST(WireTest, EveryMessageToTheServerIsEncodedAsInTheProtoFile) {
  using namespace message;
  struct Case {
    ToServer message;
    std::string text;
  };
  const std::string third = absl::StrCat("sum_of_squares: ", std::bit_cast<uint64_t>(1.0 / 3));
  for (const Case& c : std::vector<Case>{
           {Join{}, "kind: JOIN"},
           {Leave{}, "kind: LEAVE"},
           {InitialWeights{.bucket = 300, .offset = 7, .slot = 2},
            "kind: WEIGHTS bucket: 300 offset: 7 slot: 2"},
           {Gradient{.bucket = -1,
           .offset = ~uint64_t{0},
           .step = 128,
           .samples = 127,
           .incarnation = ~uint64_t{0},
           .resets = 3},
            "kind: EXCHANGE bucket: -1 offset: 18446744073709551615 step: 128 samples: 127 "
            "incarnation: 18446744073709551615 resets: 3"},
           {Gradient{.shared = SharedPlaces{.bytes = 4000, .gradient_at = ~uint64_t{0}, .weights_at = 1}},
            "kind: EXCHANGE shared: true shared_bytes: 4000 gradient_at: 18446744073709551615 weights_at: 1"},
           {Announcement{.step = -1, .incarnation = 5, .dropped = true, .version = 9, .complete = 3},
            "kind: ANNOUNCE step: -1 incarnation: 5 dropped: true version: 9 complete: 3"},
           {NormTotal{.step = 7, .sum_of_squares = 1.0 / 3}, "kind: NORM step: 7 " + third},
           {Fetch{.slot = 1}, "kind: FETCH slot: 1"},
           {Barrier{.number = 2}, "kind: BARRIER step: 2"},
           {Rewind{.step = 12, .epoch = 3}, "kind: REWIND step: 12 version: 3"},
           {PullRows{.bucket = 3, .step = 9, .slot = 2, .request = 4},
            "kind: PULL_ROWS bucket: 3 step: 9 slot: 2 complete: 4"},
           {InitialRows{.bucket = 3, .slot = 1, .request = 5},
            "kind: INITIAL_ROWS bucket: 3 slot: 1 complete: 5"},
           {PushRows{.bucket = 2, .step = 8, .samples = 7, .complete = 1},
            "kind: PUSH_ROWS bucket: 2 step: 8 samples: 7 complete: 1"}}) {
    ExpectOnTheWire(c.message, c.text);
  }
}

TEST(WireTest, EveryMessageToTheWorkerIsEncodedAsInTheProtoFile) {
  using namespace message;
  struct Case {
    ToWorker message;
    std::string text;
  };
  for (const Case& c : std::vector<Case>{
           {Welcome{.step = 5,
    .epoch = 2,
    .incarnation = ~uint64_t{0},
    .patience_ms = INT64_MAX,
    .went_back = true},
            "kind: JOIN step: 5 version: 2 incarnation: 18446744073709551615 "
            "patience_ms: 9223372036854775807 dropped: true"},
           {Weights{.bucket = 4, .offset = 8}, "kind: WEIGHTS bucket: 4 offset: 8"},
           {Answer{.bucket = 300,
           .offset = uint64_t{1} << 40,
           .step = -1,
           .version = -1,
           .staleness = kMaxWireCount,
           .dropped = true,
           .shared = SharedPlaces{.bytes = 40, .weights_at = 8}},
            "kind: EXCHANGE bucket: 300 offset: 1099511627776 step: -1 version: -1 "
            "staleness: 1099511627776 dropped: true shared: true shared_bytes: 40 weights_at: 8"},
           {Admitted{.step = 7, .complete = 2}, "kind: ANNOUNCE step: 7 complete: 2"},
           {NormPart{.step = 7, .sum_of_squares = 2},
            absl::StrCat("kind: NORM step: 7 sum_of_squares: ", std::bit_cast<uint64_t>(2.0))},
           {Reset{.bucket = 1, .resets = 6}, "kind: RESET bucket: 1 resets: 6"},
           {FetchDone{}, "kind: FETCH"},
           {BarrierPassed{.number = 1}, "kind: BARRIER step: 1"},
           {Rows{.bucket = 4, .step = 5, .version = 6}, "kind: PULL_ROWS bucket: 4 step: 5 version: 6"},
           {Left{.version = 9, .complete = 3}, "kind: LEAVE version: 9 complete: 3"}}) {
    ExpectOnTheWire(c.message, c.text);
  }
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
  EXPECT_EQ(decodes([](proto::Chunk& chunk) { chunk.set_samples(kMaxWireCount + 1); }),
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
