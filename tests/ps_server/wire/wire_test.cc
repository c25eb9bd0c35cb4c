#include "ps_server/wire/wire.h"

#include <gtest/gtest.h>

#include <cstring>
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

// As it might come off the wire: cut every `piece` bytes.
grpc::ByteBuffer Cut(const std::string& bytes, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    slices.emplace_back(bytes.data() + at, std::min(piece, bytes.size() - at));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

const std::vector<ChunkHeader> kHeaders = {
    {.kind = MessageKind::kLeave},
    {.kind = MessageKind::kExchange,
     .bucket = 300,
     .offset = uint64_t{1} << 40,
     .step = 128,
     .samples = 127,
     .version = 1 << 20,
     .staleness = 5},
    {.kind = MessageKind::kAnnounce, .step = 7},
    {.kind = MessageKind::kAnnounce, .step = -1, .version = 9, .complete = 3},
    {.kind = MessageKind::kNorm, .step = 7, .sum_of_squares = 1.0 / 3},
    {.kind = MessageKind::kRewind, .step = 12, .version = 3},
    {.kind = MessageKind::kExchange,
     .bucket = 1,
     .dropped = true,
     .shared = true,
     .shared_bytes = 4000,
     .gradient_at = ~uint64_t{0},
     .weights_at = 1},
    {.kind = MessageKind::kExchange,
     .bucket = -1,
     .offset = ~uint64_t{0},
     .step = -1,
     .samples = INT64_MIN,
     .version = -2,
     .staleness = INT64_MAX},
};

TEST(WireTest, ChunksAreWhatTheProtoFileSays) {
  const std::string payload = "some bytes";
  for (const ChunkHeader& header : kHeaders) {
    const grpc::ByteBuffer encoded = EncodeChunk(header, std::as_bytes(std::span(payload)), nullptr);
    proto::Chunk parsed;
    ASSERT_TRUE(parsed.ParseFromString(Flatten(encoded)));
    EXPECT_EQ(static_cast<int>(parsed.kind()), static_cast<int>(header.kind));
    EXPECT_EQ(parsed.bucket(), header.bucket);
    EXPECT_EQ(parsed.offset(), header.offset);
    EXPECT_EQ(parsed.step(), header.step);
    EXPECT_EQ(parsed.samples(), header.samples);
    EXPECT_EQ(parsed.dropped(), header.dropped);
    EXPECT_EQ(parsed.shared(), header.shared);
    EXPECT_EQ(parsed.shared_bytes(), header.shared_bytes);
    EXPECT_EQ(parsed.gradient_at(), header.gradient_at);
    EXPECT_EQ(parsed.weights_at(), header.weights_at);
    EXPECT_EQ(parsed.version(), header.version);
    EXPECT_EQ(parsed.staleness(), header.staleness);
    EXPECT_EQ(parsed.payload(), payload);

    for (const size_t piece : {1, 2, 7, 1000}) {
      grpc::ByteBuffer received = Cut(parsed.SerializeAsString(), piece);
      ReceivedChunk chunk;
      ASSERT_TRUE(chunk.Decode(received).ok());
      EXPECT_EQ(chunk.header(), header);
      std::string back;
      for (const Bytes& bytes : chunk.payload()) {
        back.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
      EXPECT_EQ(back, payload);
    }
  }
}

TEST(WireTest, AChunkWithoutPayloadIsAChunk) {
  for (const ChunkHeader& header : kHeaders) {
    grpc::ByteBuffer message = EncodeChunk(header, {}, nullptr);
    ReceivedChunk chunk;
    ASSERT_TRUE(chunk.Decode(message).ok());
    EXPECT_EQ(chunk.header(), header);
    EXPECT_TRUE(chunk.payload().empty());
  }
}

TEST(WireTest, ThePayloadIsBorrowedAndLetGo) {
  const auto memory = std::make_shared<std::string>(1000, 'x');
  {
    const grpc::ByteBuffer message =
        EncodeChunk({.kind = MessageKind::kExchange}, std::as_bytes(std::span(*memory)), memory);
    EXPECT_GT(memory.use_count(), 1);
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(message.Dump(&slices).ok());
    EXPECT_EQ(static_cast<const void*>(slices.back().begin()), memory->data());
  }
  EXPECT_EQ(memory.use_count(), 1);
}

TEST(WireTest, WhatIsNoChunkIsRefused) {
  const std::string payload(100, 'x');
  const std::string whole = Flatten(EncodeChunk(kHeaders[1], std::as_bytes(std::span(payload)), nullptr));
  const auto decodes = [](const std::string& bytes) {
    grpc::ByteBuffer message = Cut(bytes, 10);
    ReceivedChunk chunk;
    return chunk.Decode(message).ok();
  };
  EXPECT_TRUE(decodes(whole));
  EXPECT_FALSE(decodes(""));
  EXPECT_FALSE(decodes(whole.substr(0, whole.size() - 1)));  // the payload ends early
  EXPECT_FALSE(decodes(whole + "x"));                        // or is not the last field
  EXPECT_FALSE(decodes(std::string("\x08\x0b", 2)));         // a kind that does not exist
  EXPECT_FALSE(decodes(std::string("\x10\x01", 2)));         // no kind at all
  EXPECT_FALSE(decodes(std::string(500, '\xff')));           // a number without end
}

TEST(WireTest, RandomBytesDoNoHarm) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random() % 200, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (bytes.size() > 2 && i % 2 == 0) bytes[0] = 0x08, bytes[1] = 3;  // begins like one
    grpc::ByteBuffer message = Cut(bytes, 1 + random() % 50);
    ReceivedChunk chunk;
    if (chunk.Decode(message).ok()) {
      EXPECT_LE(TotalBytes(chunk.payload()), bytes.size());
    }
    const Bytes all = std::as_bytes(std::span(bytes));
    (void)DecodeJoin({&all, 1});
  }
}

TEST(WireTest, AWordThatIsTooLongIsNotRepeated) {
  const std::string encoded = EncodeJoin({.job = {.consistency = std::string(1'000'000, 'x')}});
  const Bytes bytes = std::as_bytes(std::span(encoded));
  EXPECT_EQ(DecodeJoin({&bytes, 1}).status().message(),
            "a job with a word of 1000000 bytes; the longest has 64");
}

TEST(WireTest, AJoinArrivesAsItWasSent) {
  ServerJob job{
      .workers = 3, .consistency = "async", .deterministic = true, .serial = true, .parameters = 12};
  job.buckets = {{.index = 0, .first = 5, .count = 7}, {.index = 1, .first = 0, .count = 5}};
  job.optimizer = {.kind = OptimizerKind::kAdam, .momentum = 0.1, .beta1 = 0.2, .beta2 = 0.3, .epsilon = 0.4};
  job.schedule = {
      .decay = LrDecay::kLinear, .base = 0.5, .scale = 2, .warmup_samples = 10, .total_samples = 1 << 20};
  job.server = 1;
  job.servers = 3;
  job.clip_norm = 0.25;
  job.staleness_lr = true;
  job.wire = DType::kBFloat16;
  const std::string encoded = EncodeJoin({.worker = 2, .job = job});
  const Bytes bytes = std::as_bytes(std::span(encoded));
  const auto decoded = DecodeJoin({&bytes, 1});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->worker, 2);
  EXPECT_TRUE(RequireSameJob(job, decoded->job, 2).ok()) << RequireSameJob(job, decoded->job, 2);
}

}  // namespace
}  // namespace psring
