#include "common/net/descriptor_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

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
  EXPECT_GT(TrainerDescriptors({.world_size = 8, .peers = 7, .tls = true}), all(8));
  EXPECT_GT(ServerDescriptors(8, /*tls=*/true), ServerDescriptors(8));
  // Measured: 33 of each of 6 ranks with shared memory, 27 of a server of 6 workers, 58 of a launcher of 8
  // ranks.
  EXPECT_GE(all(6), 33);
  EXPECT_GE(ServerDescriptors(6), 27);
  EXPECT_GE(LauncherDescriptors(8), 58);
  EXPECT_LT(ServerDescriptors(1000), 5000);
}

// The message and the soft limit afterwards, of a process with these limits.
std::pair<std::string, rlim_t> WithLimits(rlim_t soft, rlim_t hard, int64_t needed) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limits{soft, hard};
    if (setrlimit(RLIMIT_NOFILE, &limits) != 0) _exit(1);
    const std::string message(AllowDescriptors(needed, RanksText(8)).message());
    rlimit after{};
    if (getrlimit(RLIMIT_NOFILE, &after) != 0) _exit(1);
    if (write(ends[1], &after.rlim_cur, sizeof after.rlim_cur) < 0) _exit(1);
    _exit(write(ends[1], message.data(), message.size()) < 0 ? 1 : 0);
  }
  close(ends[1]);
  rlim_t after = 0;
  EXPECT_EQ(read(ends[0], &after, sizeof after), static_cast<ssize_t>(sizeof after));
  std::string message(1000, 0);
  message.resize(static_cast<size_t>(std::max<ssize_t>(0, read(ends[0], message.data(), message.size()))));
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return {message, after};
}

TEST(Descriptors, TheLimitIsRaisedAsFarAsAllowed) {
  EXPECT_EQ(WithLimits(32, 100, 80), std::pair(std::string(), rlim_t{100}));
  EXPECT_EQ(WithLimits(32, 80, 80), std::pair(std::string(), rlim_t{80}));
}

TEST(Descriptors, ALimitThatIsTooLowIsReportedWithTheCommandThatRaisesIt) {
  EXPECT_EQ(WithLimits(32, 32, 80).first,
            "this process may open 32 files, and 8 ranks need about 80; run: ulimit -n 80");
}

}  // namespace
}  // namespace psring
