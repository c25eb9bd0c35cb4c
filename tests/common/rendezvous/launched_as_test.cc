#include "common/rendezvous/launched_as.h"

#include <gtest/gtest.h>
#include <netdb.h>
#include <unistd.h>

#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/rendezvous/own_address.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/has.h"

namespace psring {
namespace {

using Variables = std::map<std::string, std::string>;

GetEnv Environment(Variables variables) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},       {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "4711"},          {"SLURM_PROCID", "0"}};
const Variables kHydra = {
    {"PMI_RANK", "2"}, {"PMI_SIZE", "5"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "5"}};
const Variables kSrun = {{"SLURM_PROCID", "5"},
                         {"SLURM_STEP_NUM_TASKS", "6"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "2"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"},
                         {"SLURM_STEP_NODELIST", "node[03-04,7]"},
                         {"SLURM_JOB_ID", "12345"},
                         {"SLURM_STEP_ID", "2"}};

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables kPmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};

struct LaunchCase {
  std::string what;
  Variables variables;
  std::string launcher;
  int rank, size, local_rank, local_size;
};

const std::vector<LaunchCase> kLaunchCases = {
    {"Open MPI's mpirun in a Slurm batch script", kOpenMpi, "mpirun", 3, 4, 1, 4},
    {"the same with empty variables of torchrun", With(kOpenMpi, {{"RANK", ""}, {"WORLD_SIZE", ""}}),
     "mpirun", 3, 4, 1, 4},
    {"Hydra", kHydra, "mpiexec", 2, 5, 2, 5},
    {"srun", kSrun, "srun", 5, 6, 1, 2},
    {"srun with a PMI plugin", With(kSrun, {{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}}), "srun", 5, 6, 1, 2},
    {"srun with PMI's rank only", With(kSrun, {{"PMI_RANK", "5"}}), "srun", 5, 6, 1, 2},
    {"a batch script's number, and PMI", With(kPmi, {{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "1"}}),
     "mpiexec", 1, 2, 1, 2},
    {"rank and size of PMI only: one host", With(kPmi, {{"PMI_SIZE", "3"}}), "mpiexec", 1, 3, 1, 3},
    {"the same with a master address: perhaps several hosts",
     With(kPmi, {{"PMI_SIZE", "3"}, {"MASTER_ADDR", "h"}}), "mpiexec", 1, 3, 0, 0},
    {"mpirun in an interactive step",
     With(kOpenMpi, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_NUM_NODES", "1"}}), "mpirun", 3, 4, 1, 4},
    {"the same with a PMI plugin",
     With(kOpenMpi, {{"SLURM_STEP_NUM_TASKS", "1"},
                     {"SLURM_STEP_NUM_NODES", "1"},
                     {"PMI_RANK", "0"},
                     {"PMI_SIZE", "1"}}),
     "mpirun", 3, 4, 1, 4},
    {"mpirun, whose daemons are a step",
     With(kOpenMpi, {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_PROCID", "1"}}),
     "mpirun", 3, 4, 1, 4},
    {"Hydra with a daemon on each node of a step, and one rank each",
     With(kPmi, {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NUM_NODES", "2"}}),
     "srun", 1, 2, 0, 0},
    {"torchrun in a step", With(kSrun, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "1"}}),
     "torchrun", 0, 2, 0, 1},
    {"torchrun in a step with a PMI plugin",
     With(kSrun, {{"RANK", "9"}, {"WORLD_SIZE", "12"}, {"PMI_RANK", "5"}, {"PMI_SIZE", "6"}}), "torchrun", 9,
     12, 0, 0},
    {"torchrun under mpirun", With(kOpenMpi, {{"RANK", "7"}, {"WORLD_SIZE", "8"}}), "torchrun", 7, 8, 0, 0},
};

TEST(LaunchedAs, TheFirstCompleteSetOfVariablesApplies) {
  for (const LaunchCase& of : kLaunchCases) {
    SCOPED_TRACE(of.what);
    EXPECT_TRUE(IsStartedAsARank(Environment(of.variables)));
    const auto as = ReadLauncher("env://", Environment(of.variables)).value();
    EXPECT_EQ(as.launcher, of.launcher);
    EXPECT_EQ(as.rank, of.rank);
    EXPECT_EQ(as.world_size, of.size);
    EXPECT_EQ(as.local_rank, of.local_rank);
    EXPECT_EQ(as.local_world_size, of.local_size);
  }
}

TEST(LaunchedAs, FlagsTakePrecedence) {
  const auto as =
      ReadLauncher("env://",
                   InPlaceOf(Environment(With(kSrun, {{"PMI_RANK", "0"}, {"PMI_SIZE", "9"}})), "1", "3"))
          .value();
  EXPECT_EQ(as.rank, 1);
  EXPECT_EQ(as.world_size, 3);
}

TEST(LaunchedAs, ContradictorySetsAreNamed) {
  const std::string unset = "; unset the variables of the one that did not start this process";
  const auto message = [](const Variables& variables) {
    EXPECT_TRUE(IsStartedAsARank(Environment(variables)));
    return std::string(ReadLauncher("env://", Environment(variables)).status().message());
  };
  EXPECT_EQ(message(With(kSrun, {{"PMI_RANK", "0"}, {"PMI_SIZE", "6"}})),
            "two launchers contradict each other: SLURM_PROCID 5 of SLURM_STEP_NUM_TASKS 6 (srun), PMI_RANK "
            "0 of PMI_SIZE 6 (mpiexec)" +
                unset);
  EXPECT_EQ(message(With(kOpenMpi, kSrun)),
            "two launchers contradict each other: SLURM_PROCID 5 of SLURM_STEP_NUM_TASKS 6 (srun), "
            "OMPI_COMM_WORLD_RANK 3 of OMPI_COMM_WORLD_SIZE 4 (mpirun)" +
                unset);
  EXPECT_EQ(message(With(kOpenMpi, kHydra)),
            "two launchers contradict each other: OMPI_COMM_WORLD_RANK 3 of OMPI_COMM_WORLD_SIZE 4 (mpirun), "
            "PMI_RANK 2 of PMI_SIZE 5 (mpiexec)" +
                unset);
  EXPECT_EQ(message({{"PMI_RANK", "1"}}),
            "env:// needs the variable PMI_SIZE, which is not set; mpiexec sets it");
}

TEST(LaunchedAs, ASlurmBatchScriptIsNotARank) {
  EXPECT_FALSE(IsStartedAsARank(Environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}})));
  EXPECT_FALSE(IsStartedAsARank(Environment({})));
  EXPECT_FALSE(IsStartedAsARank(Environment({{"RANK", ""}, {"WORLD_SIZE", ""}})));
}

TEST(LaunchedAs, ForgetLauncherClearsTheVariables) {
  for (const auto* variables : {&kOpenMpi, &kHydra, &kSrun}) {
    for (const auto& [name, value] : *variables) setenv(name.c_str(), value.c_str(), 1);
  }
  EXPECT_TRUE(IsStartedAsARank(ProcessEnvironment()));
  ForgetLauncher();
  EXPECT_FALSE(IsStartedAsARank(ProcessEnvironment()));
  for (const auto* variables : {&kOpenMpi, &kHydra, &kSrun}) {
    for (const auto& [name, value] : *variables) unsetenv(name.c_str());
  }
}

TEST(LaunchedAs, ReadsSlurmsCompactLists) {
  for (const auto& [list, host] : {std::pair{"node1", "node1"},
                                   {"node1,node2", "node1"},
                                   {"node[03-04,7],gpu1", "node03"},
                                   {"rack[1-2]n[10,12]-ib,x", "rack1n10-ib"},
                                   {"", ""},
                                   {"node[03", ""}}) {
    EXPECT_EQ(FirstHost(list), host) << list;
  }
  for (const auto& [list, index, tasks] : {std::tuple{"2(x3),1", 0, 2},
                                           {"2(x3),1", 2, 2},
                                           {"2(x3),1", 3, 1},
                                           {"2(x3),1", 4, 0},
                                           {"4", 0, 4},
                                           {"", 0, 0},
                                           {"x", 0, 0}}) {
    EXPECT_EQ(TasksOnNode(list, index), tasks) << list << " " << index;
  }
}

TEST(ParseRendezvous, RanksOfOneHostUseAFileOfTheirJob) {
  const auto own = [](const std::string& job) { return absl::StrCat("/tmp/psring-", geteuid(), "-", job); };
  EXPECT_EQ(ParseRendezvous("env://", Environment(kOpenMpi))->file, own("mpirun-4711"));
  EXPECT_EQ(ParseRendezvous("env://", Environment(kHydra))->file,
            own(absl::StrCat("mpiexec-child-of-", getppid())));
  EXPECT_EQ(ParseRendezvous("env://", Environment(kPmi))->file,
            own(absl::StrCat("mpiexec-child-of-", getppid())));
  const Variables one_host = With(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "6"}, {"SLURM_NODEID", "0"}});
  EXPECT_EQ(ParseRendezvous("env://", Environment(one_host))->file, own("slurm-12345.2"));
}

TEST(ParseRendezvous, OtherUsersCannotPredictTheFileOfAJob) {
  const auto file = [](const std::string& secret) {
    return ReadRendezvous("env://", Environment(With(kOpenMpi, {{"PSRING_SECRET", secret}})), "")->file;
  };
  const std::string one = file(std::string(32, '1'));
  EXPECT_THAT(one, testing::StartsWith(absl::StrCat("/tmp/psring-", geteuid(), "-mpirun-4711-")));
  EXPECT_EQ(one, file(std::string(32, '1')));
  EXPECT_NE(one, file(std::string(32, '2')));
}

TEST(ParseRendezvous, OverSeveralHostsSrunProvidesTheAddressAndMpirunNeedsIt) {
  const auto slurm = ParseRendezvous("env://", Environment(kSrun)).value();
  EXPECT_EQ(slurm.host, "node03");
  EXPECT_GE(slurm.port, 12'000);
  EXPECT_LT(slurm.port, 32'000);
  const auto other = ParseRendezvous("env://", Environment(With(kSrun, {{"SLURM_STEP_ID", "3"}})));
  EXPECT_NE(other->port, slurm.port);

  const Variables spread = With(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  const auto refused = ParseRendezvous("env://", Environment(spread));
  EXPECT_EQ(refused.status().message(),
            "mpirun started 4 ranks on several hosts, but does not tell them the host of rank 0 (MASTER_ADDR "
            "is not set); tell them: mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500");
  const Variables variables = With(spread, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "5"}});
  EXPECT_EQ(ParseRendezvous("env://", Environment(variables)).value().host, "h");
}

const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"}};

TEST(ParseRendezvous, ReadsWhatTorchrunSets) {
  const auto options = ParseRendezvous("env://", Environment(kTorchrun)).value();
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.world_size, 4);
  EXPECT_EQ(options.local_rank, 1);
  EXPECT_EQ(options.host, "node0");
  EXPECT_EQ(options.port, 29500);
  EXPECT_FALSE(options.hosted_elsewhere);
}

TEST(ParseRendezvous, UsesThePortAfterTorchrunsStore) {
  for (const auto& [used, port, expected] :
       {std::tuple("False", "29500", 29500), {"True", "29500", 29501}, {"True", "65535", 65534}}) {
    const Variables variables =
        With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", used}, {"MASTER_PORT", port}});
    EXPECT_EQ(ParseRendezvous("env://", Environment(variables))->port, expected) << used;
  }
}

TEST(ParseRendezvous, RanksOfOneHostUseTheLoopback) {
  const auto host = [](const Variables& more) {
    return ParseRendezvous("env://", Environment(With(kTorchrun, more)))->host;
  };
  EXPECT_EQ(host({{"LOCAL_WORLD_SIZE", "4"}}), "127.0.0.1");
  EXPECT_EQ(host({{"LOCAL_WORLD_SIZE", "4"}, {"PSRING_STORE_HOSTED", "1"}}), "node0");
  EXPECT_EQ(host({{"LOCAL_WORLD_SIZE", "1"}}), "node0");
}

TEST(ParseRendezvous, ReadsAnAddress) {
  const auto options =
      ParseRendezvous("tcp://10.0.0.1:4000", Environment(With(kTorchrun, {{"PSRING_STORE_HOSTED", "1"}})))
          .value();
  EXPECT_EQ(options.host, "10.0.0.1");
  EXPECT_EQ(options.port, 4000);
  EXPECT_TRUE(options.hosted_elsewhere);
}

TEST(ParseRendezvous, ReadsAFile) {
  const auto options = ParseRendezvous("file:///shared/meet", Environment(kTorchrun)).value();
  EXPECT_EQ(options.file, "/shared/meet");
  EXPECT_EQ(SpecOf(options), "file:///shared/meet");
  EXPECT_FALSE(ParseRendezvous("file://", Environment(kTorchrun)).ok());
}

TEST(ParseRendezvous, AnIpv6AddressMayHaveBrackets) {
  for (const char* address : {"fd00::1", "[fd00::1]"}) {
    EXPECT_EQ(ParseRendezvous("env://", Environment(With(kTorchrun, {{"MASTER_ADDR", address}})))->host,
              "fd00::1");
  }
  EXPECT_EQ(ParseRendezvous("tcp://[fd00::1]:7", Environment(kTorchrun))->host, "fd00::1");
}

TEST(ParseRendezvous, ErrorsAreOneLine) {
  for (const auto& [name, value, error] :
       {std::tuple("RANK", "",
                   "env:// needs the variable RANK, which is not set; psring and torchrun set it"),
        {"MASTER_ADDR", "",
         "env:// needs the variable MASTER_ADDR, which is not set; psring and torchrun set it"},
        {"WORLD_SIZE", "four", "WORLD_SIZE is 'four'; it must be a whole number of at least 1"},
        {"MASTER_PORT", "70000", "MASTER_PORT is '70000'; it must be a whole number from 1 to 65535"},
        {"RANK", "-1", "RANK is '-1'; it must be a whole number of at least 0"},
        {"RANK", "4", "RANK 4 is not below WORLD_SIZE 4; ranks count from 0"},
        {"LOCAL_RANK", "x", "LOCAL_RANK is 'x'; it must be a whole number of at least 0"},
        {"PSRING_STORE_HOSTED", "yes",
         "PSRING_STORE_HOSTED is 'yes'; it must be a whole number from 0 to 1"}}) {
    EXPECT_EQ(ParseRendezvous("env://", Environment(With(kTorchrun, {{name, value}}))).status().message(),
              error);
  }
  const auto error = [](const std::string& spec) {
    return std::string(ParseRendezvous(spec, Environment(kTorchrun)).status().message());
  };
  EXPECT_EQ(error("ftp://x"), "unknown rendezvous 'ftp://x'; use env://, tcp://host:port or file://path");
  for (const char* spec : {"tcp://", "tcp://host", "tcp://:1", "tcp://host:", "tcp://::1:5"}) {
    EXPECT_EQ(error(spec), absl::StrCat("rendezvous '", spec, "' is not of the form tcp://host:port"));
  }
  EXPECT_EQ(error("tcp://host:0"),
            "the port of rendezvous 'tcp://host:0' is '0'; it must be a whole number from 1 to 65535");
}

// The addresses on which a process listens.

RendezvousOptions Meeting(int world_size, int local_world_size, const std::string& host) {
  RendezvousOptions meeting;
  meeting.world_size = world_size;
  meeting.local_world_size = local_world_size;
  meeting.host = host;
  return meeting;
}

TEST(OwnAddress, IsTheLoopbackIfAllRanksAreOnOneHost) {
  EXPECT_EQ(OwnAddress({}, Meeting(4, 4, "203.0.113.1")).value_or(""), "127.0.0.1");
  EXPECT_EQ(OwnAddress({}, Meeting(1, 0, "203.0.113.1")).value_or(""), "127.0.0.1");
  EXPECT_EQ(OwnAddress({}, Meeting(4, 0, "localhost")).value_or(""), "127.0.0.1");
}

TEST(OwnAddress, IsTheRequestedOne) {
  EXPECT_EQ(OwnAddress({.interface = "lo"}, Meeting(4, 2, "203.0.113.1")).value_or(""), "127.0.0.1");
  EXPECT_EQ(OwnAddress({.bind = "127.0.0.2"}, Meeting(4, 4, "")).value_or(""), "127.0.0.2");
  const absl::Status unknown = OwnAddress({.interface = "eth9"}, Meeting(4, 4, "")).status();
  EXPECT_THAT(unknown.message(), Has("--interface eth9", "lo (127.0.0.1)"));
  const absl::Status foreign = OwnAddress({.bind = "203.0.113.1"}, Meeting(4, 4, "")).status();
  EXPECT_THAT(foreign.message(), Has("must be an address of this machine"));
  EXPECT_FALSE(OwnAddress({.bind = "127.0.0.1", .interface = "lo"}, Meeting(4, 4, "")).ok());
}

TEST(OwnAddress, OfAHostThatIsNeverResolvedNamesIt) {
  RendezvousOptions meeting = Meeting(4, 2, "no-such-host.invalid");
  meeting.timeout = absl::Milliseconds(300);
  EXPECT_THAT(OwnAddress({}, meeting).status(),
              Fails(absl::StatusCode::kDeadlineExceeded, "an address of host 'no-such-host.invalid': "));
}

TEST(OwnAddress, OfBindMayHaveBrackets) {
  const auto own = OwnAddress({.bind = "[::1]"}, Meeting(4, 4, ""));
  if (!own.ok()) GTEST_SKIP() << "no IPv6 here: " << own.status();
  EXPECT_EQ(*own, "::1");
}

TEST(StoreAddress, IsASpecificAddressOfThisMachine) {
  EXPECT_EQ(StoreAddress("", "localhost").value_or(""), "localhost");
  EXPECT_EQ(StoreAddress("127.0.0.9", "203.0.113.1").value_or(""), "127.0.0.9");
  const absl::Status foreign = StoreAddress("", "203.0.113.1").status();
  EXPECT_THAT(foreign.message(), Has("203.0.113.1, which is not an address of this machine"));
  EXPECT_FALSE(StoreAddress("", "no-such-host.invalid").ok());
}

TEST(AddressToDial, IsTheHostUnlessItIsThisMachinesNameForLoopback) {
  for (const char* host : {"localhost", "127.0.0.1", "203.0.113.1", "no-such-host.invalid"})
    EXPECT_EQ(AddressToDial("127.0.0.9", host).value_or(""), host);
}

// As on Debian, whose /etc/hosts has the line "127.0.1.1 NAME".
TEST(AddressToDial, OfThisMachinesNameForLoopbackIsWhereTheStoreListens) {
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  const hostent* found = gethostbyname(name);
  if (found == nullptr || found->h_addrtype != AF_INET || found->h_addr_list[0][0] != 127) {
    GTEST_SKIP() << "this machine's name does not resolve to loopback";
  }
  EXPECT_EQ(AddressToDial("127.0.0.9", name).value_or(""), "127.0.0.9");
  EXPECT_EQ(StoreAddress("127.0.0.9", name).value_or(""), "127.0.0.9");
}

}  // namespace
}  // namespace psring
