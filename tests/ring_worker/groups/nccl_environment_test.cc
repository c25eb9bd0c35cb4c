// What NCCL is told by environment variables.
#include "ring_worker/groups/nccl_environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <map>
#include <string>

namespace psring {
namespace {

std::map<std::string, std::string> Told(const NcclWishes& wishes) {
  const Variables variables = NcclVariables(wishes);
  return {variables.begin(), variables.end()};
}

using Map = std::map<std::string, std::string>;

TEST(NcclEnvironment, WhoAsksForNothingIsLeftToTheTuner) { EXPECT_EQ(Told({}), Map()); }

TEST(NcclEnvironment, ARingIsNcclsRing) { EXPECT_EQ(Told({.ring = true}), (Map{{"NCCL_ALGO", "Ring"}})); }

TEST(NcclEnvironment, SocketsAloneMeansNothingFaster) {
  Map sockets = {
      {"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}, {"NCCL_IB_DISABLE", "1"}, {"NCCL_NET", "Socket"}};
  EXPECT_EQ(Told({.sockets = true}), sockets) << "between hosts by whatever interface leads there";
  sockets["NCCL_SOCKET_IFNAME"] = "=lo";
  EXPECT_EQ(Told({.sockets = true, .loopback = true}), sockets);
}

TEST(NcclEnvironment, RanksThatShareAGpuAreHostsOfTheirOwnAndTalkOverSockets) {
  const Map first = Told({.loopback = true, .shares_gpu = true, .rank = 0});
  const Map second = Told({.loopback = true, .shares_gpu = true, .rank = 1});
  EXPECT_NE(first.at("NCCL_HOSTID"), second.at("NCCL_HOSTID"));
  EXPECT_EQ(first.at("NCCL_NET"), "Socket");
  EXPECT_EQ(first.at("NCCL_SOCKET_IFNAME"), "=lo");
}

std::string Variable(const char* name) {
  const char* const value = getenv(name);
  return value != nullptr ? value : "unset";
}

TEST(NcclEnvironment, VariablesAreAsTheyWereWhenTheLastHasLeft) {
  setenv("NCCL_NET", "IB", 1);
  unsetenv("NCCL_ALGO");
  {
    const ScopedVariables first({{"NCCL_NET", "Socket"}, {"NCCL_ALGO", "Ring"}});
    {
      const ScopedVariables second(Variables{{"NCCL_NET", "Socket"}});
      EXPECT_EQ(Variable("NCCL_NET"), "Socket");
    }
    EXPECT_EQ(Variable("NCCL_NET"), "Socket") << "the first is still there";
    EXPECT_EQ(Variable("NCCL_ALGO"), "Ring");
  }
  EXPECT_EQ(Variable("NCCL_NET"), "IB") << "what the user had set";
  EXPECT_EQ(Variable("NCCL_ALGO"), "unset");
  unsetenv("NCCL_NET");
}

}  // namespace
}  // namespace psring
