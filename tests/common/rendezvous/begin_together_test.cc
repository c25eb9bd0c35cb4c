#include "common/rendezvous/begin_together.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "common/measure/trace.h"
#include "tests/ring_worker/fake_rendezvous.h"

namespace psring {
namespace {

struct Passage {
  int64_t arrived_ns = 0, left_ns = 0;
  absl::Status status;
};

std::vector<Passage> PassThrough(int ranks, const std::function<std::string(int rank)>& clock) {
  std::vector<Passage> passages(static_cast<size_t>(ranks));
  OnRanks(ranks, [&](FakeRendezvous& rendezvous, int rank) {
    Passage& mine = passages[static_cast<size_t>(rank)];
    mine.arrived_ns = MonotonicNanos();
    mine.status = BeginTogether(rendezvous, clock(rank));
    mine.left_ns = MonotonicNanos();
  });
  return passages;
}

int64_t LastArrival(const std::vector<Passage>& passages) {
  int64_t last = 0;
  for (const Passage& passage : passages) last = std::max(last, passage.arrived_ns);
  return last;
}

TEST(BeginTogether, WithOneClockNoRankLeavesBeforeTheAgreedMoment) {
  for (const int ranks : {1, 2, 5}) {
    const std::vector<Passage> passages = PassThrough(ranks, [](int) { return ThisClock(); });
    for (const Passage& passage : passages) {
      EXPECT_TRUE(passage.status.ok()) << passage.status;
      // After the last arrival, by more than its message takes.
      EXPECT_GE(passage.left_ns, LastArrival(passages) + 1'000'000) << ranks;
    }
  }
}

TEST(BeginTogether, WithSeveralClocksItIsABarrier) {
  const std::vector<Passage> passages =
      PassThrough(3, [](int rank) { return rank == 2 ? std::string("another") : ThisClock(); });
  for (const Passage& passage : passages) {
    EXPECT_TRUE(passage.status.ok()) << passage.status;
    EXPECT_GE(passage.left_ns, LastArrival(passages));
  }
}

TEST(BeginTogether, ATimeInTheFutureIsNotAwaited) {
  for (const char* arrival : {"9223372036854775807", "4611686018427387904"})
    OnRanks(2, [&](FakeRendezvous& rendezvous, int rank) {
      EXPECT_TRUE(rank == 0 ? BeginTogether(rendezvous).ok()
                            : rendezvous.Exchange("begin", absl::StrCat(arrival, " ", ThisClock())).ok());
    });
}

TEST(BeginTogether, ReturnsTheErrorThatNamesTheMissingRank) {
  FakeRendezvous rendezvous(std::make_shared<FakeStore>(), 0, 2, absl::Milliseconds(20));
  EXPECT_EQ(BeginTogether(rendezvous).code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace psring
