#include "common/net/descriptor_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace psring {
namespace {

TEST(Descriptors, GrowWithPeersServersAndMembersOfTheStore) {
  const auto all = [](int ranks) { return TrainerDescriptors({.world_size = ranks, .peers = ranks - 1}); };
  EXPECT_EQ(all(9) - all(8), all(8) - all(7));
  EXPECT_GT(all(9), all(8));
  EXPECT_LT(TrainerDescriptors({.world_size = 1024, .peers = 2}), 64) << "a ring";
  const int64_t alone = TrainerDescriptors({});
  EXPECT_EQ(TrainerDescriptors({.world_size = 8}), alone) << "no connections to other ranks";
  EXPECT_GT(TrainerDescriptors({.world_size = 8, .servers = 2}), alone);
  EXPECT_GT(TrainerDescriptors({.world_size = 8, .hosts_store = true}), alone);
  EXPECT_GT(TrainerDescriptors({.ranks = 4, .world_size = 8, .peers = 7}), all(8));
  EXPECT_GT(ServerDescriptors(9), ServerDescriptors(8));
  EXPECT_GT(TrainerDescriptors({.world_size = 8, .peers = 7, .tls = true}), all(8)) << "the store's";
  EXPECT_LT(TrainerDescriptors({.world_size = 8, .peers = 7, .tls = true}), all(9)) << "not the ranks'";
  EXPECT_GT(ServerDescriptors(8, /*tls=*/true), ServerDescriptors(8));
  // Measured: 33 of each of 6 ranks with shared memory, 27 of a server of 6 workers, 58 of a launcher of 8
  // ranks.
  EXPECT_GE(all(6), 33);
  EXPECT_GE(ServerDescriptors(6), 27);
  EXPECT_GE(LauncherDescriptors(8), 58);
  EXPECT_LT(ServerDescriptors(1000), 5000);
}

// In a process with these limits: prints the message, and exits with the soft limit afterwards.
[[noreturn]] void AllowWithin(rlim_t soft, rlim_t hard, int64_t needed) {
  rlimit limits{soft, hard};
  if (setrlimit(RLIMIT_NOFILE, &limits) != 0) _exit(255);
  std::fputs(std::string(AllowDescriptors(needed, RanksText(8)).message()).c_str(), stderr);
  if (getrlimit(RLIMIT_NOFILE, &limits) != 0) _exit(255);
  _exit(static_cast<int>(limits.rlim_cur));
}

TEST(DescriptorsDeathTest, TheLimitIsRaisedAsFarAsAllowed) {
  EXPECT_EXIT(AllowWithin(32, 100, 80), testing::ExitedWithCode(100), "^$");
  EXPECT_EXIT(AllowWithin(32, 80, 80), testing::ExitedWithCode(80), "^$");
}

TEST(DescriptorsDeathTest, ALimitThatIsTooLowIsReportedWithTheCommandThatRaisesIt) {
  EXPECT_EXIT(AllowWithin(32, 32, 80), testing::ExitedWithCode(32),
              "^this process may open 32 files, and 8 ranks need about 80; run: ulimit -n 80$");
}

}  // namespace
}  // namespace psring
