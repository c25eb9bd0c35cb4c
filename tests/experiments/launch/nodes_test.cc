#include "experiments/launch/nodes.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/measure/records.h"
#include "common/options/server_arguments.h"
#include "tests/has.h"

namespace psring {
namespace {

TEST(NodeLayout, AssignsRanksInOrderAndServersByPlacement) {
  const NodeLayout layout{.nodes = 3, .per_node = 2, .processes = 6};
  for (const auto& [process, node] : {std::pair{0, 0}, {1, 0}, {2, 1}, {5, 2}})
    EXPECT_EQ(layout.NodeOfProcess(process), node);
  EXPECT_EQ(layout.NodeOfServer("rank0", 1, 1), 0);
  EXPECT_EQ(layout.NodeOfServer("colocated", 3, 1), 1);
  EXPECT_EQ(layout.NodeOfServer("colocated", 3, 2), 0);
  const NodeLayout one{.nodes = 3, .server_nodes = 1}, two{.nodes = 3, .server_nodes = 2};
  EXPECT_EQ(one.NodeOfServer("dedicated", 0, 1), 2);
  EXPECT_EQ(two.NodeOfServer("dedicated", 0, 1), 1);
  EXPECT_EQ(two.NodeOfServer("dedicated", 1, 1), 2);
}

// Compact fills nodes one after another; spread uses all.
TEST(NodeLayout, PlacesFewerProcessesThanTheNodesHold) {
  const auto on_each = [](bool spread, int processes) {
    const NodeLayout layout{
        .nodes = 4, .server_nodes = 1, .per_node = 4, .spread = spread, .processes = processes};
    std::vector<int> counts(4);
    for (int process = 0; process < processes; ++process) {
      const int node = layout.NodeOfProcess(process);
      EXPECT_EQ(process - layout.FirstOf(node), counts[static_cast<size_t>(node)]++) << process;
    }
    for (int node = 0; node < 4; ++node)
      EXPECT_EQ(layout.ProcessesOn(node), counts[static_cast<size_t>(node)]) << node;
    return counts;
  };
  using Counts = std::vector<int>;
  EXPECT_EQ(on_each(false, 1), (Counts{1, 0, 0, 0}));
  EXPECT_EQ(on_each(true, 1), (Counts{1, 0, 0, 0}));
  EXPECT_EQ(on_each(false, 5), (Counts{4, 1, 0, 0}));
  EXPECT_EQ(on_each(true, 5), (Counts{2, 2, 1, 0}));
  EXPECT_EQ(on_each(false, 12), (Counts{4, 4, 4, 0}));
  EXPECT_EQ(on_each(true, 12), (Counts{4, 4, 4, 0}));
}

GetEnv Variables(const std::map<std::string, std::string>& variables) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

TEST(UseLauncher, TakesTheNodesNumberAndNode0sAddress) {
  // "NODE ADDRESS:PORT"
  const auto options = [](const std::map<std::string, std::string>& variables) {
    NodesOptions nodes{.nodes = 2};
    EXPECT_EQ(UseLauncher(ReadNodeLauncher(Variables(variables)), nodes), absl::OkStatus());
    return absl::StrCat(nodes.node, " ", nodes.master_addr, ":", nodes.master_port);
  };
  std::map<std::string, std::string> srun = {{"SLURM_PROCID", "1"},
                                             {"SLURM_STEP_NUM_TASKS", "2"},
                                             {"SLURM_STEP_NODELIST", "a[3-4]"},
                                             {"SLURM_JOB_ID", "1"},
                                             {"SLURM_STEP_ID", "0"}};
  EXPECT_EQ(options(srun), "1 a3:12007");
  srun.insert({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", ""}});
  EXPECT_EQ(options(srun), "1 a3:12007");
  EXPECT_THAT(options({{"MASTER_ADDR", "[fd00::1]"}, {"MASTER_PORT", ""}}), Has(" fd00::1:"));
  EXPECT_EQ(options({{"OMPI_COMM_WORLD_RANK", "1"},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "b"},
                     {"MASTER_PORT", "7"}}),
            "1 b:7");
  EXPECT_EQ(options({{"JOB_COMPLETION_INDEX", "1"}})[0], '1');
  EXPECT_THAT(options({}), testing::AllOf(testing::StartsWith("0 "), testing::EndsWith(":29500")));
}

TEST(UseLauncher, RejectsAnotherNumberOfProcesses) {
  NodesOptions nodes{.nodes = 2};
  const std::map<std::string, std::string> variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                                                        {"OMPI_COMM_WORLD_SIZE", "8"}};
  const absl::Status status = UseLauncher(ReadNodeLauncher(Variables(variables)), nodes);
  EXPECT_THAT(status.message(), Has("mpirun started 8 processes for --nnodes 2"));
  nodes.node = 0;  // --node_rank
  EXPECT_TRUE(UseLauncher(ReadNodeLauncher(Variables(variables)), nodes).ok());
}

TEST(CheckNodes, NamesMissingFlags) {
  EXPECT_TRUE(CheckNodes({.node = 0}).ok());
  EXPECT_TRUE(CheckNodes({.nodes = 2, .node = 1, .master_addr = "a"}).ok());
  EXPECT_THAT(CheckNodes({.nodes = 2, .node = 0}).message(), Has("needs --master_addr"));
  EXPECT_THAT(CheckNodes({.nodes = 2, .node = 2, .master_addr = "a"}).message(),
              Has("--node_rank 2 of --nnodes 2"));
  EXPECT_THAT(CheckNodes({.node = 0, .master_addr = "a"}).message(), Has("give --nnodes"));
  EXPECT_FALSE(CheckNodes({.node = 0, .network = {.bind = "127.0.0.1", .interface = "lo"}}).ok());
}

TEST(OnClock, ConvertsOnlyTimes) {
  const auto ahead = [](int64_t ns) { return ClockMap({.at = 0, .ahead = ns}, {.at = 9000, .ahead = ns}); };
  StepRecord step;
  step.begin_ns = 1000;
  step.step_ms = 5;
  step.buckets = {{.ready_ns = 2000, .begin_ns = 3000, .end_ns = 4000}};
  const std::string text = ToJson(step) + "\n";
  EXPECT_EQ(OnClock(ClockMap(), "steps-rank1.jsonl", text).value_or(""), text);
  const auto shifted = OnClock(ahead(-500), "steps-rank1.jsonl", text + text).value();
  const auto back = StepRecordFromJson(shifted.substr(0, shifted.find('\n'))).value();
  EXPECT_EQ(back.begin_ns, 500);
  EXPECT_EQ(back.buckets[0].end_ns, 3500);
  EXPECT_EQ(back.step_ms, 5);
  const auto killed = OnClock(ahead(-500), "steps-rank1.jsonl", text + text + text.substr(0, 20));
  EXPECT_EQ(killed.value_or(""), shifted) << "the rank was killed while it wrote a line";
  const auto json = nlohmann::json::parse(
      OnClock(ahead(5000), "trace-rank1.json", R"({"traceEvents":[{"ts":10.0,"dur":2},{"name":"x"}]})")
          .value());
  EXPECT_EQ(json["traceEvents"][0]["ts"], 15.0);
  EXPECT_EQ(json["traceEvents"][0]["dur"], 2);
  EXPECT_EQ(OnClock(ahead(5), "result-rank1.json", "whatever").value_or(""), "whatever");
  EXPECT_FALSE(OnClock(ahead(5), "trace-rank1.json", "broken").ok());
}

TEST(PlaceServers, GivesNoWorkerAnAdvantage) {
  struct Case {
    bool several_machines, servers_given, local_aggregation;
    std::string given, placed, why;  // `why` not
  };
  for (const Case& one :
       std::vector<Case>{{false, false, false, "", "dedicated", ""},
                         {false, true, true, "", "dedicated", ""},
                         {true, false, false, "", "colocated", ""},
                         {true, true, false, "", "", "--servers on several machines needs"},
                         {true, false, true, "", "", "--local_aggregation on several machines"},
                         {true, true, true, "rank0", "rank0", ""}}) {
    TrainingOptions training;
    training.server_placement = one.given;
    training.local_aggregation = one.local_aggregation;
    const absl::Status status =
        PlaceServers(one.several_machines, one.servers_given, /*otherwise=*/"dedicated", training);
    EXPECT_EQ(status.ok(), one.why.empty()) << status;
    EXPECT_THAT(status.message(), Has(one.why));
    EXPECT_EQ(training.server_placement, one.placed);
  }
}

TEST(ServerRole, FollowsThePlacement) {
  TrainingOptions training;
  training.servers = 2;
  EXPECT_EQ(ServerRoleOf(training, 0, 4)->starts, (std::vector<int>{0, 1}));
  EXPECT_TRUE(ServerRoleOf(training, 1, 4)->starts.empty());
  EXPECT_EQ(ServerRoleOf(training, 1, 4)->workers, 4);
  training.server_placement = "dedicated";
  EXPECT_EQ(ServerRoleOf(training, 1, 4)->workers, 2);
  EXPECT_EQ(ServerRoleOf(training, 1, 4)->becomes, -1);
  EXPECT_EQ(ServerRoleOf(training, 2, 4)->becomes, 0);
  EXPECT_EQ(ServerRoleOf(training, 3, 4)->becomes, 1);
  EXPECT_THAT(ServerRoleOf(training, 0, 2).status().message(), Has("none is left to train"));
  training.servers = 0;
  EXPECT_EQ(ServerRoleOf(training, 3, 4)->becomes, 0);
  training.server_placement = "colocated";
  EXPECT_EQ(ServerRoleOf(training, 3, 4)->starts, (std::vector<int>{3}));
  EXPECT_EQ(ServerRoleOf(training, 3, 4)->servers, 4);
}

TEST(ServerRole, CountsRanksOfProcessesWithSeveralRanks) {
  TrainingOptions training;
  training.ranks_per_process = 3;
  EXPECT_EQ(ServerRoleOf(training, 0, 2)->workers, 6);
  EXPECT_EQ(ServerRoleOf(training, 0, 2)->starts, (std::vector<int>{0}));
  EXPECT_TRUE(ServerRoleOf(training, 1, 2)->starts.empty());
  training.server_placement = "colocated";
  EXPECT_EQ(ServerRoleOf(training, 1, 2)->servers, 6);
  EXPECT_EQ(ServerRoleOf(training, 1, 2)->starts, (std::vector<int>{3, 4, 5}));
  training.server_placement = "dedicated";
  EXPECT_EQ(ServerRoleOf(training, 0, 2)->workers, 3);
  EXPECT_EQ(ServerRoleOf(training, 1, 2)->becomes, 0);
  EXPECT_THAT(ServerRoleOf(training, 0, 1).status().message(),
              Has("needs 1 of the 1 processes for servers, and none is left to train"));
}

TEST(ServerArguments, AStagesServersServeItsReplicasAndStopWithAWorker) {
  TrainingOptions training;
  training.pp = 2;
  training.servers = 3;
  EXPECT_EQ(*PushersOf(training, 8, 0), 4);
  EXPECT_EQ(TrainingJob({.training = training, .workers = 8}).pushers(), 4);
  EXPECT_EQ(ServerRoleOf(training, 0, 8)->starts, (std::vector<int>{0, 1, 2, 3, 4, 5}));
  const auto arguments = [&](int server) {
    return ServerArguments(training, {.server = server, .servers = 6, .pushers = 4, .ranks = {1, 3, 5, 7}});
  };
  EXPECT_THAT(arguments(4), testing::IsSupersetOf({"--workers=4", "--server=1", "--servers=3", "--position=1",
                                                   "--ranks=1,3,5,7", "--on_worker_loss=stop"}));
  EXPECT_THAT(arguments(2), testing::IsSupersetOf({"--server=2", "--servers=3", "--position=0"}));
  for (const std::string& argument : ServerArguments({}, {}))
    EXPECT_FALSE(argument.starts_with("--position"));
  training.tp = 2;  // servers 6, 7 and 8 are those of position 1 and share 0
  EXPECT_EQ(*PushersOf(training, 8, 0), 2);
  EXPECT_EQ(TrainingJob({.training = training, .workers = 8}).pushers(), 2);
  EXPECT_THAT(ServerArguments(training, {.server = 7, .servers = 12, .pushers = 2, .ranks = {4, 6}}),
              testing::IsSupersetOf({"--workers=2", "--server=1", "--servers=3", "--position=2",
                                     "--ranks=4,6", "--on_worker_loss=stop"}));
}

TEST(ServerArguments, AServerUsesTheDeviceOfTheRankBesideIt) {
  const auto device = [](const std::string& spec, int local_rank, int gpus) {
    TrainingOptions training;
    training.device = spec;
    for (const std::string& argument : ServerArguments(training, {.local_rank = local_rank, .gpus = gpus})) {
      if (argument.starts_with("--device=")) return argument.substr(9);
    }
    return std::string("none is said");
  };
  EXPECT_EQ(device("auto", 0, 0), "cpu");
  EXPECT_EQ(device("auto", 0, 2), "cuda:0");
  EXPECT_EQ(device("cuda", 3, 2), "cuda:1");
  EXPECT_EQ(device("cuda:1", 0, 2), "cuda:1");
  EXPECT_EQ(device("cpu", 0, 2), "cpu");
}

}  // namespace
}  // namespace psring
