// Hostile and broken clients against a real server during training: each gets an error or is disconnected,
// the other workers continue, and the server's memory and descriptors do not grow.
#include "tests/ps_server/wire/hostile.h"

#include <poll.h>

#include <functional>
#include <numeric>

#include "common/device/device.h"

namespace psring {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What a member of the job does wrong, and the error it gets; empty: it closes its stream itself.
struct Violation {
  const char* name;
  std::function<void(Stranger&)> act;
  const char* error;
};
// Sends a wrong push; wrong only in the second chunk: when the first is in the sum already.
struct Wrong {
  std::function<void(Sent&)> change;
  bool in_the_middle = false;
  void operator()(Stranger& stranger) const {
    if (in_the_middle) stranger.Send(stranger.First());
    Sent push = in_the_middle ? stranger.Second() : stranger.First();
    change(push);
    stranger.Send(push);
  }
};
Wrong Later(std::function<void(Sent&)> change) { return {std::move(change), /*in_the_middle=*/true}; }
void Poison(float value, Sent& push) {
  push.payload.replace(40, sizeof(value), reinterpret_cast<const char*>(&value), sizeof(value));
}

const std::vector<Violation>& Violations() {
  static const auto* const violations = new std::vector<Violation>{
      {"too few bytes", Wrong{[](Sent& w) { w.payload = ("1234"); }}, "has 4 bytes, not 1048576"},
      {"too many bytes", Wrong{[](Sent& w) { w.payload.append("1234"); }}, "has 1048580 bytes, not"},
      {"far too many bytes", Wrong{[](Sent& w) { w.payload = (std::string(3 << 20, 1)); }},
       "larger than max"},
      {"no first chunk", Wrong{[](Sent& w) { w.gradient().offset = kChunkBytes; }},
       "begins at byte 1048576, not at 0"},
      {"an unknown bucket", Wrong{[](Sent& w) { w.gradient().bucket = 7; }}, "names bucket 7 of 2"},
      {"a negative bucket", Wrong{[](Sent& w) { w.gradient().bucket = -1; }}, "names bucket -1 of 2"},
      {"an earlier step", Wrong{[](Sent& w) { w.gradient().step = 0; }},
       "worker 2 pushed step 0, from the past"},
      {"a later step", Wrong{[](Sent& w) { w.gradient().step += 5; }}, "from the future"},
      {"negative samples", Wrong{[](Sent& w) { w.gradient().samples = -1; }}, "a push of -1 samples"},
      {"too many samples",
       [](Stranger& stranger) {
         for (Sent push : {stranger.First(), stranger.Second()}) {
           push.gradient().samples = std::numeric_limits<int64_t>::max();
           stranger.Send(push);
         }
       },
       "sent samples 9223372036854775807; the most is 1099511627776"},
      {"a huge step", Wrong{[](Sent& w) { w.gradient().step = std::numeric_limits<int64_t>::max(); }},
       "sent step 9223372036854775807; the most is"},
      {"a huge epoch",
       [](Stranger& stranger) {
         stranger.Send({message::Rewind{.epoch = std::numeric_limits<int64_t>::max()}, ""});
       },
       "sent epoch 9223372036854775807; the most is"},
      {"no incarnation", Wrong{[](Sent& w) { w.gradient().incarnation = 0; }},
       "without the incarnation of the server"},
      {"random bytes", [](Stranger& stranger) { stranger.SendBytes(BufferOf(RandomBytes(1))); },
       "not a chunk of a parameter server"},
      {"a second Join", Wrong{[](Sent& w) { w.message = message::Join{}; }}, "sent a second Join"},
      {"shared memory that is not shared",
       Wrong{[](Sent& w) { w.gradient().shared = message::SharedPlaces{}; }},
       "in shared memory, but shares no memory"},
      {"a second chunk of too many bytes", Later([](Sent& w) { w.payload.append("1234"); }),
       "has 404 bytes, not 400"},
      {"another step", Later([](Sent& w) { w.gradient().step += 1; }), "in the middle of the push"},
      {"other samples", Later([](Sent& w) { w.gradient().samples = 17; }), "in the middle of a push of 16"},
      {"NaN", Later([](Sent& w) { Poison(std::numeric_limits<float>::quiet_NaN(), w); }),
       "is NaN or infinite at element 262154"},
      {"infinity", Later([](Sent& w) { Poison(std::numeric_limits<float>::infinity(), w); }),
       "is NaN or infinite at element 262154"},
      {"many requests without reading",
       [](Stranger& stranger) {
         for (int i = 0; i < 300; ++i) stranger.Send({message::Fetch{}, ""});
       },
       "another message without having read 24 answers to earlier ones"},
      {"closed in the middle of a push",
       [](Stranger& stranger) {
         stranger.Send(stranger.First());
         stranger.Cut();
       },
       ""},
  };
  return *violations;
}

TEST_P(HostileTest, AWorkerThatViolatesTheProtocolGetsAnErrorAndDoesNotAffectTheWeights) {
  ExpectOthersContinue();
  const int64_t memory = MemoryKb("VmRSS");
  for (const Violation& violation : Violations()) {
    // If each push is an update, an earlier step is answered: another server may have lost it.
    if (GetParam() == "async" && std::string(violation.name) == "an earlier step") continue;
    SCOPED_TRACE(violation.name);
    const std::unique_ptr<Stranger> stranger = Joined();
    ASSERT_NE(stranger, nullptr);
    EXPECT_GE(stranger->step(), 2);
    violation.act(*stranger);
    EXPECT_THAT(stranger->End(), HasSubstr(violation.error));
    ASSERT_NO_FATAL_FAILURE(ExpectOthersContinue());
  }
  ExpectNoGrowth(memory);
  ExpectWeightsOfTheOthers();
}

TEST_P(HostileTest, AWorkerThatRepeatsItsPushTooOftenIsRejected) {
  ExpectOthersContinue();
  const std::unique_ptr<Stranger> stranger = Joined();
  ASSERT_NE(stranger, nullptr);
  stranger->Send(stranger->First());
  stranger->Send(stranger->Second());
  ASSERT_TRUE(stranger->IsAnswered()) << stranger->End();
  for (int i = 0; i < 300; ++i) stranger->Send(stranger->Second());
  EXPECT_THAT(stranger->End(), HasSubstr("was repeated, and has been answered again already"));
  ExpectOthersContinue();
}

TEST_P(HostileTest, AnInvalidJoinIsRejectedWithAReasonWithoutHarm) {
  ExpectOthersContinue();
  const auto answer = [&](int worker, const ServerJob& job,
                          const std::function<void(proto::Join&)>& change = {}) {
    Stranger stranger(address_);
    stranger.SendJoin(worker, job, change);
    return stranger.IsWelcome() ? "welcome" : stranger.End();
  };
  ServerJob other_model = job_, other_sizes = job_, other_server = job_, other_rate = job_;
  other_model.parameters += 100;
  other_model.buckets[0].count += 100;
  other_sizes.buckets[0].count -= 1;
  other_server.server = 1;
  other_server.servers = 2;
  other_rate.schedule.base = 0.2;
  // The number 2 is free, so only the job can be wrong.
  EXPECT_THAT(answer(kHostile, other_model), HasSubstr("worker 2 has another job"));
  EXPECT_THAT(answer(kHostile, other_sizes), HasSubstr("bucket"));
  EXPECT_THAT(answer(kHostile, other_server), HasSubstr("server"));
  EXPECT_THAT(answer(kHostile, other_rate), HasSubstr("learning rate"));
  EXPECT_THAT(answer(kHostile, job_, [](auto& join) { join.set_protocol(1); }), HasSubstr("has version 1"));
  EXPECT_THAT(answer(1, job_), HasSubstr("there is a worker 1 already"));
  EXPECT_THAT(answer(3, job_), HasSubstr("worker 3 is out of range"));
  EXPECT_THAT(answer(-1, job_), HasSubstr("worker -1 is out of range"));
  {
    Stranger stranger(address_);
    stranger.Send(stranger.First());
    EXPECT_THAT(stranger.End(), HasSubstr("the first message must be a Join"));
  }
  for (int i = 0; i < 50; ++i) {
    Stranger stranger(address_);
    if (i % 2 == 0) {
      stranger.SendBytes(BufferOf(RandomBytes(i)));
    } else {
      stranger.Send({message::Join{}, RandomBytes(i)});
    }
    EXPECT_NE(stranger.End(), "");
  }
  ExpectOthersContinue();
}

// Slow because it waits for the server's timeout.
using SilenceTest = HostileTest;
TEST_P(SilenceTest, SilentAndInvalidConnectionsAreClosedAndUseNoMemory) {
  ExpectOthersContinue();
  const int descriptors = OpenDescriptors();
  const int64_t memory = MemoryKb("VmRSS");
  std::vector<std::unique_ptr<Stranger>> silent_streams;
  for (int i = 0; i < 20; ++i) silent_streams.push_back(std::make_unique<Stranger>(address_));
  std::vector<int> sockets;
  const std::string greeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", settings("\0\0\0\4\0\0\0\0\0", 9);
  for (int i = 0; i < 200; ++i) {
    for (const std::string& words :
         {std::string(), greeting, greeting + settings, RandomBytes(i), greeting + RandomBytes(i)}) {
      sockets.push_back(Connect(words));
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectOthersContinue());
  for (const auto& stranger : silent_streams) {
    EXPECT_THAT(stranger->End(), HasSubstr("no Join came within 10 s"));
  }
  silent_streams.clear();
  const MonotonicTime deadline = Soon();
  for (const int fd : sockets) {
    pollfd closed = {fd, POLLIN, 0};
    char byte[1 << 12];
    ssize_t got = 1;
    while (got > 0 &&
           poll(&closed, 1, static_cast<int>(absl::ToInt64Milliseconds(deadline - MonotonicNow()))) > 0) {
      got = recv(fd, byte, sizeof(byte), 0);
    }
    EXPECT_LE(got, 0) << "the connection is still open";
    close(fd);
  }
  // Of a thousand connections; gRPC opens a few more for itself.
  const int most = descriptors + 10;
  while (OpenDescriptors() > most && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_LE(OpenDescriptors(), most);
  ExpectNoGrowth(memory);
  ExpectOthersContinue();
}

// A join that no server can accept, before any other worker has joined.
struct FirstJoin {
  const char* name;
  int worker;
  std::function<void(proto::Join&)> change;
  const char* error;
};

void SetBuckets(proto::Job& job, int buckets, uint64_t each) {
  job.clear_buckets();
  for (int i = 0; i < buckets; ++i) {
    proto::Job::Bucket& bucket = *job.add_buckets();
    bucket.set_first(each * static_cast<uint64_t>(i));
    bucket.set_count(each);
  }
  job.set_parameters(static_cast<int64_t>(each) * buckets);
}

FirstJoin Parameters(const char* name, int worker, int64_t parameters) {
  return {name, worker,
          [parameters](proto::Join& join) {
            SetBuckets(*join.mutable_job(), 1, static_cast<uint64_t>(parameters));
          },
          "MiB are available on cpu; use a smaller model or more servers"};
}

int64_t AllMemory() { return static_cast<int64_t>(MakeCpuDevice()->memory()->total); }

const std::vector<FirstJoin>& FirstJoins() {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  static const auto* const joins = new std::vector<FirstJoin>{
      Parameters("2To62", 0, int64_t{1} << 62),
      Parameters("2To59", 0, int64_t{1} << 59),
      Parameters("2To46", 0, int64_t{1} << 46),
      Parameters("WeightsAsLargeAsTheMemory", 0, AllMemory() / 4),
      Parameters("2To62OfWorker1", 1, int64_t{1} << 62),
      {"AMillionEmptyBuckets", 0, [](proto::Join& join) { SetBuckets(*join.mutable_job(), 1'000'000, 0); },
       "the job has 1000000 buckets, and at most 65536 are possible"},
      {"TooManyBuckets", 0, [](proto::Join& join) { SetBuckets(*join.mutable_job(), 65537, 1); },
       "the job has 65537 buckets, and at most 65536 are possible"},
      {"AnEmptyBucket", 0, [](proto::Join& join) { join.mutable_job()->add_buckets()->set_first(0); },
       "has no parameters; omit it"},
      {"AHugeStep", 0, [](proto::Join& join) { join.mutable_job()->set_start_step(kMax / 65536); },
       "worker 0's job: start_step is 140737488355327"},
      {"AHugeNumberOfSamples", 0, [](proto::Join& join) { join.mutable_job()->set_start_samples(kMax); },
       "worker 0's job: start_step is 0, start_samples 9223372036854775807"},
      {"AHugeEpoch", 0, [](proto::Join& join) { join.set_epoch(kMax); },
       "worker 0 names epoch 9223372036854775807"},
      {"NaN", 0,
       [](proto::Join& join) {
         join.mutable_job()->mutable_optimizer()->set_momentum(std::numeric_limits<double>::quiet_NaN());
       },
       "momentum is nan"},
      {"AMillionLetters", 0,
       [](proto::Join& join) { join.mutable_job()->set_consistency(std::string(1'000'000, 'x')); },
       "a job with a name of 1000000 bytes; the maximum is 64"},
      {"ForOtherWorkers", 1, [](proto::Join& join) { join.mutable_job()->set_workers(65536); },
       "worker 1's job has 65536 workers; this server was started for 2"},
      {"ForAnotherServer", 1, [](proto::Join& join) { join.mutable_job()->set_servers(64); },
       "worker 1 takes this for server 0 of 64; it is server 0 of 1"},
  };
  return *joins;
}

class FirstJoinTest : public ServerTest, public ::testing::WithParamInterface<FirstJoin> {};

TEST_P(FirstJoinTest, IsRejectedWithTheReasonAndTheServerStillTrainsAValidJob) {
  const ServerJob job = MakeJob(2, {1000, 50});
  ASSERT_NO_FATAL_FAILURE(Serve(job.workers));
  {
    Stranger stranger(address_);
    stranger.SendJoin(GetParam().worker, job, GetParam().change);
    EXPECT_THAT(stranger.End(), HasSubstr(GetParam().error));
  }
  EXPECT_LT(MemoryKb("VmHWM"), 256 << 10) << "KiB";
  ForEachRank(2, [&](int rank) {
    TestWorker worker(job, rank, MakeGrpcPsClient(address_, {.secret = TestSecret()}));
    ASSERT_EQ(worker.Start(), absl::OkStatus());
    ASSERT_EQ(worker.Steps(0, 3), absl::OkStatus());
    EXPECT_LT(RelativeDistance(worker.weights, TrainAlone(job, 3)), 1e-5);
    EXPECT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
  });
  EXPECT_EQ(server_->Wait(), 0) << server_->both();
}

INSTANTIATE_TEST_SUITE_P(Joins, FirstJoinTest, testing::ValuesIn(FirstJoins()),
                         [](const auto& info) { return info.param.name; });

TEST_F(ServerTest, ControlCharactersFromAPeerAreEscapedOnTheTerminal) {
  ASSERT_NO_FATAL_FAILURE(Serve(1, /*timeout_s=*/3));
  {
    Stranger stranger(address_);
    stranger.SendJoin(0, MakeJob(1, {10}),
                      [](proto::Join& join) { join.mutable_job()->set_consistency("\x1b[2J \xe6\xaf\x94"); });
    EXPECT_THAT(stranger.End(), HasSubstr("unknown consistency"));
  }
  EXPECT_EQ(server_->Wait(), 1);
  EXPECT_THAT(server_->both(),
              HasSubstr("worker 0 was rejected: worker 0's job: unknown consistency \"\\x1b[2J "
                        "\xe6\xaf\x94\""));
  EXPECT_THAT(server_->both(), Not(HasSubstr("\x1b")));
}

TEST_F(ServerTest, PullsOfRowsWithoutReadingTheAnswersUseLittleMemory) {
  constexpr int kRows = 256, kWidth = 1000;
  ServerJob job = MakeJob(1, std::vector<size_t>(300, 10));
  job.tables = {{.rows = kRows, .width = kWidth, .bound = .5f}};
  job.optimizer = {.kind = OptimizerKind::kSgd};
  ASSERT_NO_FATAL_FAILURE(Serve(job.workers));
  Stranger stranger(address_);
  stranger.SendJoin(0, job);
  for (const Bucket& bucket : job.buckets) {
    stranger.Send({message::InitialWeights{.bucket = bucket.index}, std::string(40, 0)});
  }
  ASSERT_TRUE(stranger.IsWelcome()) << stranger.End();
  std::vector<int32_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  const std::string payload(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(int32_t));
  const int64_t memory = MemoryKb("VmRSS");
  for (int i = 0; i < 400; ++i) stranger.Send({message::PullRows{.request = i}, payload});
  EXPECT_THAT(stranger.End(), HasSubstr("another message without having read 9 answers to earlier ones"));
  ExpectNoGrowth(memory);
}

// Otherwise the job would start with weights that no worker sent.
TEST_F(ServerTest, RepeatedInitialWeightsEndTheJob) {
  const ServerJob job = MakeJob(1, {1000, 50});
  ASSERT_NO_FATAL_FAILURE(Serve(job.workers));
  Stranger stranger(address_);
  stranger.SendJoin(0, job);
  stranger.Send({message::InitialWeights{.bucket = 0}, std::string(4000, 0)});
  stranger.Send({message::InitialWeights{.bucket = 0, .offset = 4000}, ""});
  EXPECT_FALSE(stranger.IsWelcome());
  EXPECT_THAT(stranger.End(), HasSubstr("worker 0, bucket 0: initial weights that have arrived already"));
  EXPECT_EQ(server_->Wait(), 1) << server_->both();
}

INSTANTIATE_TEST_SUITE_P(Mode, SilenceTest, testing::Values("sync"));
INSTANTIATE_TEST_SUITE_P(Modes, HostileTest, testing::Values("sync", "async"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace psring
