// A thousand ranks meet at one store, and a quarter of them with TLS.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <barrier>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/net/descriptor_limit.h"
#include "common/net/tls.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/on_ranks.h"
#include "tests/random_moments.h"
#include "tests/test_secret.h"
#include "tests/waiting_thread.h"

namespace psring {
namespace {

int Threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

int64_t PeakMiB() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

// Ranks are threads of this process, which also hosts the store. A rank has its own thread and the one that
// answers the store's pings. PSRING_RANKS: another number of ranks.
class RendezvousScaleTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Tls, RendezvousScaleTest, testing::Values("", "auto"),
                         [](const auto& info) { return info.param.empty() ? "without" : info.param; });

TEST_P(RendezvousScaleTest, RanksThatWaitHoldNoThreadOfTheStoreAndLittleMemory) {
  // With TLS most of the time is that of handshakes.
  const int usual = GetParam().empty() ? PSRING_TEST_RANKS : PSRING_TEST_RANKS / 4;
  const auto ranks = static_cast<int>(FromEnvironment("PSRING_RANKS", usual));
  const int64_t descriptors = 200 + int64_t{GetParam().empty() ? 2 : 6} * ranks;
  if (const absl::Status allowed = AllowDescriptors(descriptors, "this test"); !allowed.ok()) {
    GTEST_SKIP() << allowed.message();
  }
  const JobSecret secret = *WithTls(TestSecret(), GetParam());
  const auto store = *RendezvousServer::Start("127.0.0.1", 0, secret);
  const int before = Threads();
  const MonotonicTime begin = MonotonicNow();
  std::barrier<> joined(ranks), counted(ranks);
  std::vector<std::atomic<pid_t>> ids(static_cast<size_t>(ranks));
  std::atomic<int> met = 0;
  int waiting = 0;
  absl::Duration join_time, exchange_time;
  OnRanks(ranks, [&](int rank) {
    auto rendezvous = Rendezvous::Join({.rank = rank,
                                        .world_size = ranks,
                                        .host = "127.0.0.1",
                                        .port = store->port(),
                                        .hosted_elsewhere = true,
                                        .secret = secret,
                                        .timeout = absl::Seconds(100)});
    EXPECT_EQ(rendezvous.status(), absl::OkStatus());
    joined.arrive_and_wait();
    if (!rendezvous.ok()) return;
    ids[static_cast<size_t>(rank)] = gettid();
    if (rank == 0) {
      join_time = MonotonicNow() - begin;
      for (int other = 1; other < ranks; ++other) EXPECT_TRUE(AwaitSleepOf(ids[static_cast<size_t>(other)]));
      waiting = Threads() - before;
    }
    const MonotonicTime entered = MonotonicNow();
    const auto values = (*rendezvous)->Exchange("addresses", absl::StrCat("10.0.0.1:", rank));
    if (rank == 0) exchange_time = MonotonicNow() - entered;
    if (values.ok() && values->size() == static_cast<size_t>(ranks) &&
        values->back() == absl::StrCat("10.0.0.1:", ranks - 1)) {
      ++met;
    }
    EXPECT_EQ((*rendezvous)->Exchange("again", "").status(), absl::OkStatus());
  });
  const absl::Duration all = MonotonicNow() - begin;
  std::printf(
      "%d ranks%s: joined in %.2f s, exchanged %.2f s after the last had come, all in %.2f s; %ld MiB\n",
      ranks, GetParam().empty() ? "" : " with --tls auto", absl::ToDoubleSeconds(join_time),
      absl::ToDoubleSeconds(exchange_time), absl::ToDoubleSeconds(all), static_cast<long>(PeakMiB()));
  EXPECT_EQ(met, ranks);
  EXPECT_LT(waiting, 2 * ranks + 100) << "threads while all but one rank wait";
  EXPECT_LT(PeakMiB(), 1024);
}

}  // namespace
}  // namespace psring
