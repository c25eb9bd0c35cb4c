#include "common/rendezvous/rendezvous_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "common/base/deadline.h"
#include "common/net/grpc_waiting.h"
#include "common/rendezvous/rendezvous_service.h"
#include "proto/rendezvous.grpc.pb.h"
#include "tests/common/rendezvous/store_calls.h"
#include "tests/eventually.h"
#include "tests/on_ranks.h"
#include "tests/waiting_thread.h"

namespace psring {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);
constexpr absl::Duration kShort = absl::Milliseconds(100);

MemberId JoinAs(RendezvousStore& store, int rank, int world_size) {
  const auto member =
      store.Join({.rank = rank, .world_size = world_size, .name = "host:" + std::to_string(100 + rank)});
  EXPECT_TRUE(member.ok()) << member.status();
  return member.value_or("");
}

class RendezvousStoreTest : public testing::Test {
 protected:
  RendezvousStore store_;
};

class TwoRanksOfAStore : public RendezvousStoreTest {
 protected:
  const MemberId zero_ = JoinAs(store_, 0, 2), one_ = JoinAs(store_, 1, 2);
};

TEST_F(RendezvousStoreTest, DeadlineNamesTheMissingRanksAndThoseThatNeverJoined) {
  const MemberId zero = JoinAs(store_, 0, 4), one = JoinAs(store_, 1, 4);
  JoinAs(store_, 2, 4);
  absl::Status first, second;
  OnRanks(2, [&](int rank) {
    (rank == 0 ? first : second) =
        Exchange(store_, rank == 0 ? zero : one, "start", "", rank == 0 ? kShort : kLong).status();
  });
  EXPECT_EQ(first.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(first.message(),
            "waited 0.1 s for ranks 2 and 3 at exchange 'start'; rank 3 never joined; joined: rank 0 "
            "(host:100), rank 1 (host:101), rank 2 (host:102)");
  EXPECT_EQ(second, first) << "all waiting ranks get the same error";
}

TEST_F(TwoRanksOfAStore, FailedExchangeStaysFailed) {
  EXPECT_FALSE(Exchange(store_, zero_, "x", "", absl::ZeroDuration()).ok());
  EXPECT_EQ(Exchange(store_, one_, "x", "", kLong).status().message(),
            "waited 0 s for rank 1 at exchange 'x'");
}

TEST_F(RendezvousStoreTest, LossOfARankEndsTheWaitsForIt) {
  const MemberId zero = JoinAs(store_, 0, 3), one = JoinAs(store_, 1, 3);
  const MonotonicTime begin = MonotonicNow();
  absl::Status exchange, get;
  WaitingThread exchanges([&] { exchange = Exchange(store_, zero, "x", "", kLong).status(); });
  WaitingThread gets([&] { get = Get(store_, "key", "the server's address", kLong).status(); });
  store_.Lose(one);
  exchanges.Join();
  gets.Join();
  EXPECT_LT(MonotonicNow() - begin, kLong / 2);
  EXPECT_EQ(exchange.message(), "rank 1 (host:101) has died while others waited for it at exchange 'x'");
  EXPECT_EQ(get.message(), "rank 1 (host:101) has died while others waited for the server's address");
}

TEST_F(TwoRanksOfAStore, LossOfARankThatHasGivenItsValueDoesNotEndTheExchange) {
  WaitingThread gone([&] { (void)Exchange(store_, one_, "x", "from 1", kLong); });
  store_.Lose(one_);
  EXPECT_EQ(Exchange(store_, zero_, "x", "from 0", kLong).value().at(1), "from 1");
}

// The second leaves because of the first.
TEST_F(RendezvousStoreTest, TheFirstRankThatLeftIsNamed) {
  const MemberId zero = JoinAs(store_, 0, 3), one = JoinAs(store_, 1, 3), two = JoinAs(store_, 2, 3);
  store_.Leave(one);
  store_.Leave(zero);
  EXPECT_EQ(Exchange(store_, two, "x", "", kLong).status().message(),
            "rank 1 (host:101) has left while others waited for it at exchange 'x'");
}

TEST_F(TwoRanksOfAStore, LeavingEndsExchangesThatNeedTheRankButNoGet) {
  store_.Leave(one_);
  store_.Lose(one_);  // its connection ends, too
  EXPECT_EQ(Exchange(store_, zero_, "x", "", kLong).status().message(),
            "rank 1 (host:101) has left while others waited for it at exchange 'x'");
  EXPECT_EQ(Get(store_, "key", "a value", kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(RendezvousStoreTest, ATakenRankIsRejectedAndItsOwnerNamed) {
  const MemberId one = JoinAs(store_, 1, 2);
  const Participant twin = {.rank = 1, .world_size = 2, .name = "other:7"};
  EXPECT_EQ(store_.Join(twin).status().message(),
            "other:7 claims to be rank 1, which is taken by host:101; give every process a rank of its own");
  store_.Lose(one);
  EXPECT_EQ(store_.Join(twin).status().message(),
            "other:7 claims to be rank 1, which is taken by host:101, which has ended; restart all ranks");
}

TEST_F(RendezvousStoreTest, ADifferentWorldSizeIsRejected) {
  JoinAs(store_, 0, 2);
  EXPECT_EQ(store_.Join({.rank = 1, .world_size = 3, .name = "b:2"}).status().message(),
            "the world size of rank 1 (b:2) is 3, that of rank 0 (host:100) is 2");
  EXPECT_EQ(store_.Join({.rank = 2, .world_size = 2, .name = "b:2"}).status().message(),
            "rank 2 is not below the world size 2");
  EXPECT_TRUE(store_.Join({.rank = -1, .world_size = 1, .name = "server:3"}).ok())
      << "no rank, no world size";
}

TEST_F(RendezvousStoreTest, GetWaitsForTheValue) {
  WaitingThread gets([&] { EXPECT_EQ(*Get(store_, "key", "a value", kLong), "value"); });
  EXPECT_TRUE(store_.Set("other", "no").ok());
  EXPECT_TRUE(store_.Set("key", "value").ok());
  gets.Join();
  EXPECT_EQ(Get(store_, "none", "rank 0's address", kShort).status().message(),
            "waited 0.1 s for rank 0's address ('none')");
}

TEST_F(RendezvousStoreTest, CloseEndsAllWaits) {
  const MemberId zero = JoinAs(store_, 0, 2);
  WaitingThread exchanges(
      [&] { EXPECT_EQ(Exchange(store_, zero, "x", "", kLong).status().message(), "closed"); });
  store_.Close(absl::UnavailableError("closed"));
  EXPECT_EQ(Get(store_, "key", "a value", kLong).status().message(), "closed");
}

TEST_F(RendezvousStoreTest, IsEmptyOnceAllHaveLeftOrAreLost) {
  EXPECT_TRUE(store_.WaitUntilEmpty(absl::ZeroDuration()));
  const MemberId zero = JoinAs(store_, 0, 2), one = JoinAs(store_, 1, 2);
  store_.Leave(zero);
  EXPECT_FALSE(store_.WaitUntilEmpty(kShort));
  store_.Lose(one);
  EXPECT_TRUE(store_.WaitUntilEmpty(kLong));
}

TEST_F(TwoRanksOfAStore, MembersHaveDifferentIdsOf128Bits) {
  EXPECT_EQ(zero_.size(), 16u);
  EXPECT_EQ(one_.size(), 16u);
  EXPECT_NE(zero_, one_);
}

TEST_F(RendezvousStoreTest, AHugeWorldSizeIsRejected) {
  EXPECT_EQ(store_.Join({.rank = 0, .world_size = std::numeric_limits<int>::max(), .name = "a:1"}).status(),
            absl::InvalidArgumentError("the world size 2147483647 is above the limit of 65536 ranks"));
  const MemberId zero = JoinAs(store_, 0, 2);
  EXPECT_EQ(Exchange(store_, zero, "x", "", kLong, {0, 1, 0, 1}).status(),
            absl::FailedPreconditionError("exchange 'x' has more ranks than the job"));
}

TEST(RendezvousStore, KeysAndBytesAreBounded) {
  RendezvousStore store("rank", {.keys = 2, .bytes = 20});
  EXPECT_TRUE(store.Set("a", "123456789").ok());
  EXPECT_EQ(store.Set("b", "1234567890").code(), absl::StatusCode::kResourceExhausted) << "21 bytes";
  EXPECT_TRUE(store.Set("a", "1").ok()) << "replaces the value";
  EXPECT_TRUE(store.Set("b", "1234567890").ok());
  EXPECT_EQ(store.Set("a", "12345678901").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*Get(store, "a", "a", kLong), "1");
  EXPECT_EQ(store.Set("c", ""),
            absl::ResourceExhaustedError("the rendezvous store already has 2 keys, its limit"));
  EXPECT_EQ(Exchange(store, JoinAs(store, 0, 1), "x", "", kLong).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(RendezvousStore, ExchangesReleaseTheirBytes) {
  RendezvousStore store("rank", {.bytes = 20});
  const MemberId zero = JoinAs(store, 0, 1);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Exchange(store, zero, "x", "1234567890", kLong).ok());
  RendezvousStore pair("rank", {.bytes = 2000});
  const MemberId waits = JoinAs(pair, 0, 2);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Exchange(pair, waits, "x", std::string(1500, 'x'), kShort).status()));
  EXPECT_TRUE(pair.Set("a", std::string(1500, 'x')).ok());
}

TEST(RendezvousStore, WaitingCallsAreBounded) {
  RendezvousStore store("rank", {.waiting = 1});
  WaitingThread gets([&] { EXPECT_EQ(*Get(store, "key", "a value", kLong), "value"); });
  EXPECT_EQ(Get(store, "other", "another value", kLong).status(),
            absl::ResourceExhaustedError("the rendezvous store already has 1 waiting calls, its limit"));
  EXPECT_TRUE(store.Set("key", "value").ok());
  gets.Join();
  EXPECT_TRUE(Get(store, "key", "a value", kLong).ok());
}

TEST_F(RendezvousStoreTest, KeysAndNamesAreBounded) {
  const MemberId zero = JoinAs(store_, 0, 1);
  const std::string longest(kMaxKeyBytes, 'x'), too_long(kMaxKeyBytes + 1, 'x');
  EXPECT_TRUE(store_.Set(longest, "").ok());
  EXPECT_TRUE(Get(store_, longest, longest, kLong).ok());
  EXPECT_TRUE(Exchange(store_, zero, longest, "", kLong).ok());
  const absl::Status rejected = absl::InvalidArgumentError(
      "the rendezvous store does not accept a key or a name of 4097 bytes; the limit is 4096");
  EXPECT_EQ(store_.Set(too_long, ""), rejected);
  EXPECT_EQ(Get(store_, too_long, "it", kLong).status(), rejected);
  EXPECT_EQ(Get(store_, longest, too_long, kLong).status(), rejected);
  EXPECT_EQ(Exchange(store_, zero, too_long, "", kLong).status(), rejected);
}

TEST(RendezvousStore, FailedExchangesCountWithTheirNamesAndErrors) {
  RendezvousStore store("rank", {.bytes = 1000});
  const MemberId waits = JoinAs(store, 0, 2);
  const auto fail = [&](int i) {
    return Exchange(store, waits, std::string(100, static_cast<char>('a' + i)), std::string(500, 'x'),
                    absl::ZeroDuration());
  };
  EXPECT_TRUE(absl::IsDeadlineExceeded(fail(0).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(fail(1).status())) << "the first one's value is discarded";
  EXPECT_TRUE(absl::IsResourceExhausted(fail(2).status())) << "names and errors of two have over 400 bytes";
}

TEST_F(TwoRanksOfAStore, ACancelledCallEnds) {
  std::vector<absl::Status> ends;
  const auto get = store_.Get("key", "it", kLong, [&](const auto& value) { ends.push_back(value.status()); });
  const auto exchange = store_.Exchange(one_, "x", "from 1", kLong, {},
                                        [&](const auto& values) { ends.push_back(values.status()); });
  EXPECT_TRUE(ends.empty());
  for (const auto call : {get, exchange, get, exchange}) store_.Cancel(call);
  ASSERT_EQ(ends.size(), 2u) << "each call ends once";
  for (const absl::Status& end : ends) EXPECT_TRUE(absl::IsCancelled(end)) << end;
  EXPECT_EQ(Exchange(store_, zero_, "x", "from 0", kLong).value().at(1), "from 1");
}

TEST(RendezvousStore, TheValueOfAProcessThatHasGoneIsDiscardedAfterItsTimeout) {
  RendezvousStore store("rank", {.bytes = 1000});
  const MemberId one = JoinAs(store, 1, 2);
  store.Cancel(store.Exchange(one, "x", std::string(600, 'x'), absl::Seconds(2), {}, [](const auto&) {}));
  EXPECT_TRUE(absl::IsResourceExhausted(store.Set("key", std::string(600, 'x'))));
  EXPECT_TRUE(Eventually([&] { return store.Set("key", std::string(600, 'x')).ok(); }));
  EXPECT_EQ(Exchange(store, JoinAs(store, 0, 2), "x", "", kLong).status().message(),
            "waited 2 s for rank 0 at exchange 'x'; rank 0 never joined; joined: rank 1 (host:101)");
}

TEST_F(RendezvousStoreTest, AnEarlierDeadlineOfALaterCallIsKept) {
  WaitingThread later([&] { EXPECT_EQ(*Get(store_, "key", "a value", kLong), "value"); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(Get(store_, "none", "it", absl::Milliseconds(1)).status()));
  EXPECT_TRUE(store_.Set("key", "value").ok());
  later.Join();
}

TEST_F(TwoRanksOfAStore, AllRanksOfAnExchangeShareItsValues) {
  std::vector<RendezvousStore::Values> received;
  const auto done = [&](const absl::StatusOr<RendezvousStore::Values>& values) {
    received.push_back(values.value_or(nullptr));
  };
  store_.Exchange(zero_, "x", "from 0", kLong, {}, done);
  store_.Exchange(one_, "x", "from 1", kLong, {}, done);
  ASSERT_EQ(received.size(), 2u);
  EXPECT_EQ(received[0], received[1]);
  EXPECT_EQ(*received[0], (std::vector<std::string>{"from 0", "from 1"}));
}

TEST_F(RendezvousStoreTest, ControlCharactersOfAProcessesNameAreEscaped) {
  ASSERT_TRUE(store_.Join({.rank = 1, .world_size = 2, .name = "a\x1b[2J\n\xff:1"}).ok());
  EXPECT_EQ(store_.Join({.rank = 1, .world_size = 2, .name = "\x9b:2"}).status().message(),
            "\\x9b:2 claims to be rank 1, which is taken by a\\x1b[2J\\x0a\\xff:1; give every process a rank "
            "of its own");
}

TEST(RendezvousStore, RanksTextListsRanks) {
  EXPECT_EQ(RanksText({2}), "rank 2");
  EXPECT_EQ(RanksText({2, 3}), "ranks 2 and 3");
  EXPECT_EQ(RanksText({0, 1, 2, 3}), "ranks 0, 1, 2 and 3");
  std::vector<int> many(100);
  for (int i = 0; i < 100; ++i) many[i] = i;
  EXPECT_EQ(RanksText(many), "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 84 more");
}

// The store's calls over gRPC, by clients that disconnect or send what no client of ours sends.

class RendezvousServiceTest : public testing::Test {
 protected:
  RendezvousServiceTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = proto::Rendezvous::NewStub(server_->InProcessChannel({}));
  }

  grpc::Status Get(grpc::ClientContext& context, int64_t timeout_ms) {
    proto::GetRequest request;
    request.set_key("key");
    request.set_whom("a value");
    request.set_timeout_ms(timeout_ms);
    proto::GetReply reply;
    return stub_->Get(&context, request, &reply);
  }
  grpc::Status Get(int64_t timeout_ms) {
    grpc::ClientContext context;
    return Get(context, timeout_ms);
  }

  RendezvousStore store_{"rank", {.waiting = 1}};
  std::unique_ptr<grpc::Service> service_ = MakeRendezvousService(store_);
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<proto::Rendezvous::Stub> stub_;
};

TEST_F(RendezvousServiceTest, EndsTheCallOfAClientThatDisconnects) {
  grpc::Status status;
  do {  // the store rejects it if it arrives during one of our questions, whether it waits
    grpc::ClientContext context;
    std::atomic<bool> returned = false;
    std::thread waits([&] {
      status = Get(context, 3'600'000);
      returned = true;
    });
    EXPECT_TRUE(
        Eventually([&] { return returned || Get(0).error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED; }));
    context.TryCancel();
    waits.join();
  } while (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return Get(0).error_code() == grpc::StatusCode::DEADLINE_EXCEEDED; }))
      << "the call still counts as waiting";
}

TEST_F(RendezvousServiceTest, TimeoutsAreBounded) {
  EXPECT_EQ(Get(std::numeric_limits<int64_t>::min()).error_message(), "waited 0 s for a value ('key')");
  EXPECT_EQ(Get(-1).error_message(), "waited 0 s for a value ('key')");
  ASSERT_TRUE(store_.Set("key", "value").ok());
  EXPECT_TRUE(Get(std::numeric_limits<int64_t>::max()).ok());
}

TEST_F(RendezvousServiceTest, TheAttendanceOfAnUnknownMemberEndsAtOnce) {
  for (const std::string& id : {std::string(), std::string(16, '\0'), std::string(1 << 20, 'x')}) {
    grpc::ClientContext context;
    context.set_deadline(GrpcDeadline(MonotonicNow() + absl::Seconds(60)));
    proto::AttendReply reply;
    const auto stream = stub_->Attend(&context, &reply);
    proto::AttendRequest request;
    request.set_member(id);
    EXPECT_TRUE(stream->Write(request));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  }
}

}  // namespace
}  // namespace psring
