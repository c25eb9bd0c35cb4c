// The environment variables for NCCL.
#include "ring_worker/groups/nccl_environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <map>
#include <string>

namespace psring {
namespace {

std::map<std::string, std::string> VariablesOf(const NcclWishes& wishes) {
  const Variables variables = NcclVariables(wishes);
  return {variables.begin(), variables.end()};
}

using Map = std::map<std::string, std::string>;

TEST(NcclEnvironment, DefaultsLeaveTheChoiceToNccl) { EXPECT_EQ(VariablesOf({}), Map()); }

TEST(NcclEnvironment, RingSelectsNcclsRing) {
  EXPECT_EQ(VariablesOf({.ring = true}), (Map{{"NCCL_ALGO", "Ring"}}));
}

TEST(NcclEnvironment, SocketsDisableFasterTransports) {
  Map sockets = {
      {"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}, {"NCCL_IB_DISABLE", "1"}, {"NCCL_NET", "Socket"}};
  EXPECT_EQ(VariablesOf({.sockets = true}), sockets) << "NCCL chooses the interface between hosts";
  sockets["NCCL_SOCKET_IFNAME"] = "=lo";
  EXPECT_EQ(VariablesOf({.sockets = true, .loopback = true}), sockets);
}

TEST(NcclEnvironment, RanksThatShareAGpuUseDifferentHostIdsAndSockets) {
  const Map first = VariablesOf({.loopback = true, .shares_gpu = true, .rank = 0});
  const Map second = VariablesOf({.loopback = true, .shares_gpu = true, .rank = 1});
  EXPECT_NE(first.at("NCCL_HOSTID"), second.at("NCCL_HOSTID"));
  EXPECT_EQ(first.at("NCCL_NET"), "Socket");
  EXPECT_EQ(first.at("NCCL_SOCKET_IFNAME"), "=lo");
}

std::string Variable(const char* name) {
  const char* const value = getenv(name);
  return value != nullptr ? value : "unset";
}

TEST(NcclEnvironment, VariablesAreRestoredAfterTheLastScope) {
  setenv("NCCL_NET", "IB", 1);
  unsetenv("NCCL_ALGO");
  {
    const ScopedVariables first({{"NCCL_NET", "Socket"}, {"NCCL_ALGO", "Ring"}});
    {
      const ScopedVariables second(Variables{{"NCCL_NET", "Socket"}});
      EXPECT_EQ(Variable("NCCL_NET"), "Socket");
    }
    EXPECT_EQ(Variable("NCCL_NET"), "Socket") << "the first scope still exists";
    EXPECT_EQ(Variable("NCCL_ALGO"), "Ring");
  }
  EXPECT_EQ(Variable("NCCL_NET"), "IB") << "set by the user";
  EXPECT_EQ(Variable("NCCL_ALGO"), "unset");
  unsetenv("NCCL_NET");
}

}  // namespace
}  // namespace psring
