// The environment variables for NCCL.
#include "ring_worker/groups/nccl_environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>

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

TEST(NcclEnvironment, AProcessKeepsItsFirstRestrictions) {
  const Variables sockets = NcclVariables({.sockets = true});
  ForgetForThisProcess();
  EXPECT_EQ(KeepForThisProcess(sockets), absl::OkStatus());
  EXPECT_EQ(KeepForThisProcess(NcclVariables({.ring = true, .sockets = true})), absl::OkStatus());
  EXPECT_EQ(KeepForThisProcess({}).message(),
            "this process already uses NCCL with NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 "
            "NCCL_NET=Socket, and NCCL reads its settings once per process; use other processes for its own "
            "choice of transport");
  ForgetForThisProcess();
  EXPECT_EQ(KeepForThisProcess({}), absl::OkStatus());
  EXPECT_EQ(KeepForThisProcess(sockets).code(), absl::StatusCode::kFailedPrecondition);
  ForgetForThisProcess();
}

std::string WireUnder(const Map& variables) {
  return NcclWire([&](const char* name) {
    const auto found = variables.find(name);
    return found != variables.end() ? found->second : "";
  });
}

TEST(NcclEnvironment, TheWireIsNamedOnlyIfOneIsLeft) {
  EXPECT_EQ(WireUnder({}), "NCCL");
  EXPECT_EQ(WireUnder(VariablesOf({.sockets = true})), "NCCL over sockets");
  EXPECT_EQ(WireUnder(VariablesOf({.shares_gpu = true})), "NCCL over sockets");
  EXPECT_EQ(WireUnder({{"NCCL_NET", "Socket"}}), "NCCL") << "within a machine";
  Map set = {{"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}};
  EXPECT_EQ(WireUnder(set), "NCCL");
  set["NCCL_IB_DISABLE"] = "1";
  EXPECT_EQ(WireUnder(set), "NCCL") << "a plugin may offer another network";
  set["NCCL_NET_PLUGIN"] = "none";
  EXPECT_EQ(WireUnder(set), "NCCL over sockets");
  set["NCCL_NET"] = "IB";
  EXPECT_EQ(WireUnder(set), "NCCL over InfiniBand");
  set["NCCL_NET"] = "AWS Libfabric";
  EXPECT_EQ(WireUnder(set), "NCCL");
  set["NCCL_NET"] = "socket";
  set["NCCL_SHM_DISABLE"] = "0";
  EXPECT_EQ(WireUnder(set), "NCCL");
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
