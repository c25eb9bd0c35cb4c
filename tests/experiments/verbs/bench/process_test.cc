// The real binaries: what bench refuses, what it prints and leaves, and that nothing stays behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/deadline.h"
#include "experiments/launch/launcher.h"
#include "experiments/virtual_cluster/namespaces.h"
#include "tests/experiments/psring_in_a_folder.h"
#include "tests/experiments/slurp.h"
#include "tests/experiments/start_psring.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> DataLines(const std::string& text) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line[0] != '#') lines.emplace_back(line);
  }
  return lines;
}

std::string OnTwo(const std::string& flags) {
  return "--backend native --algorithm ring --nnodes 2 --node_rank 0 --master_addr 127.0.0.1 " + flags;
}

class BenchTest : public PsringInAFolder {
 protected:
  BenchTest() : PsringInAFolder({"bench"}) {}

  // Processes that psring started in this test's folder.
  std::vector<int> Workers() const {
    std::vector<int> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::error_code error;
      const fs::path where = fs::read_symlink(entry.path() / "cwd", error);
      if (error || where != fs::canonical(root_ / "work")) continue;
      if (absl::StrContains(Slurp(entry.path() / "cmdline"), "ring_worker")) {
        found.push_back(std::stoi(entry.path().filename().string()));
      }
    }
    return found;
  }

  // Starts a benchmark that takes long, and waits until both workers compute.
  pid_t StartLong() {
    const pid_t psring =
        Start(Words("--backend native --algorithm ring --transport tcp -b 1M -e 1M -n 1000000"));
    EXPECT_TRUE(Eventually([this] {
      int computing = 0;
      for (const int worker : Workers()) {  // ns on a processor; starting takes less
        computing += std::atoll(Slurp(absl::StrCat("/proc/", worker, "/schedstat")).c_str()) > 300'000'000;
      }
      return computing == 2;
    }));
    return psring;
  }
};

TEST_F(BenchTest, BadInputIsOneLineAndStartsNothing) {
  const std::vector<BadInput> cases = {
      {"-b 4X", "'4X' is not a size"},
      {"-b -1", "--minbytes"},
      {"-b 2M -e 1M", "above"},
      {"-i 1K -f 2", "exclude"},
      {"--sizes 4K -b 1K", "--sizes"},
      {"--sizes 4K,", "--sizes"},
      {"-f 1", "--stepfactor"},
      {"-b 8 -e 128M -f 2 -g 2", "--workers N"},
      {"-t 4", "--workers N"},
      {"--workers 1025", "1024"},
      {"--workers 0", "--workers"},
      {"--workers two", "two"},
      {"-n 0", "--iters"},
      {"-a 4", "--average"},
      {"-d int8", "float32"},
      {"-o prod", "sum"},
      {"-J x.csv", ".json"},
      {"-J /no/such/folder/x.json", "/no/such/folder"},
      {"--collective all_reduce,alltoall", "unknown collective 'alltoall'"},
      {"--backend native --algorithm rign", "ring, star"},
      {"--backend native --transport pigeon", "tcp"},
      {"--backend glo", "gloo"},
      {"--buffers public", "private"},
      {"--debug.segment huge", "--debug.segment"},
      {"--iter 3", "--iters"},
      {"-e 1000G -b 1000G", "this machine has"},
      {"--out /proc/psring", "/proc/psring"},
      {"--nproc_per_node 2", "--nproc_per_node is for several machines"},
      {"--master_addr a", "give --nnodes"},
      {"--nnodes 2", "needs --master_addr"},
      {"--require_busbw -1", "--require_busbw"},
      {"--require_busbw fast", "--require_busbw"},
      {"--require_busbw 1 --collective broadcast", "is of an all-reduce"},
      {"--link 1gbit", "--link"},
      // Node 0 of two ends before it waits for the other.
      {OnTwo("--workers 3"), "--workers 3 on 2 machines of 1: use at most 2"},
      {OnTwo("--limits"), "--limits measures one machine"},
      {OnTwo("--transport shm"), "with --nnodes use tcp or auto"},
      {"--require_busbw 1 --workers 1", "of two or more workers"},
  };
  ExpectOneLineOfEach(cases, "psring bench: ");
}

TEST_F(BenchTest, ADryRunPrintsThePlanAndWritesNothing) {
  const Outcome outcome = Succeed("--dry_run --workers 2,3 --collective all_reduce,ps_push_pull");
  EXPECT_THAT(outcome.out, Has("native ring over tcp"));
  EXPECT_THAT(outcome.out, AllOf(Has("ps_push_pull, grpc sync over tcp, 3 workers"),
                                 Has("ps_push_pull, grpc sync over shm, 3 workers")));
  EXPECT_THAT(outcome.out, Has("# expected: 3 rounds"));
  EXPECT_TRUE(DataLines(outcome.out).empty());
  EXPECT_TRUE(fs::is_empty(root_ / "work"));
}

TEST_F(BenchTest, PrintsATablePerCombinationAndWritesARunFolder) {
  const Outcome outcome = Succeed(
      "--backend native --algorithm ring,star --transport tcp --workers 3 -b 4K -e 64K -n 3 -o sum "
      "--limits -J out.json");
  const std::vector<std::string> lines = DataLines(outcome.out);
  ASSERT_EQ(lines.size(), 4) << outcome.out;
  for (const std::string& line : lines) {
    const std::vector<std::string> columns = absl::StrSplit(line, ' ', absl::SkipEmpty());
    ASSERT_EQ(columns.size(), 15) << line;
    EXPECT_EQ(columns[2], "float");
    EXPECT_EQ(columns[8], "0");  // wrong
    EXPECT_NE(columns[13], "N/A");
  }
  EXPECT_THAT(outcome.out, Has("=== all_reduce, native star over tcp, private buffers, 3 workers",
                               "# Limits of this host with 3 processes"));
  const fs::path run = Path("runs/latest");
  for (const char* name : {"manifest.json", "bench.csv", "bench.json", "bench.txt"})
    EXPECT_TRUE(fs::exists(run / name)) << name;
  const auto json = JsonFile("out.json");
  ASSERT_EQ(json["results"].size(), 4);
  EXPECT_EQ(json["results"][0]["out_of_place_per_iter"]["times_us"].size(), 3);
  EXPECT_GT(json["results"][0]["percent_of_limit"], 0);
  EXPECT_EQ(json["config"]["devices"].size(), 3);
  const auto manifest = nlohmann::json::parse(Slurp(run / "manifest.json"));
  EXPECT_EQ(manifest["verb"], "bench");
  EXPECT_EQ(manifest["finished"], true);
  // Nothing is overwritten.
  Succeed("--backend native --algorithm ring --transport tcp -b 4K -e 4K -n 1 --out second -J out.json");
  EXPECT_TRUE(fs::exists(Path("out.json.0")));
}

// Over every backend of this build. The tests of the backends have the other collectives.
TEST_F(BenchTest, CollectivesAreCorrectForEveryTypeAndReduction) {
  const Outcome outcome = Succeed(
      "--collective all_reduce,broadcast -d all -o all --workers 3 --root 2 --sizes 12,20K -n 2 -w "
      "0 --rounds 1");
  EXPECT_THAT(outcome.out, Has("=== all_reduce, native ring over shm, shared"));
  std::set<std::string> types, reductions, roots;
  for (const std::string& line : DataLines(outcome.out)) {
    const std::vector<std::string> columns = absl::StrSplit(line, ' ', absl::SkipEmpty());
    ASSERT_EQ(columns.size(), 13) << line;
    types.insert(columns[2]);
    reductions.insert(columns[3]);
    roots.insert(columns[4]);
    EXPECT_EQ(columns[8], "0") << line;
    EXPECT_EQ(columns[12], "0") << line;
  }
  EXPECT_EQ(types, (std::set<std::string>{"float", "bfloat16", "half"}));
  EXPECT_EQ(reductions, (std::set<std::string>{"sum", "avg", "min", "max", "none"}));
  EXPECT_EQ(roots, (std::set<std::string>{"-1", "2"}));
}

TEST_F(BenchTest, AnAllToAllIsCorrectOverEveryBackendAndNotInPlace) {
  const Outcome outcome = Succeed("--collective all_to_all --workers 3 --sizes 4K,20K -n 2 -w 0 --rounds 1");
  EXPECT_THAT(outcome.out, Has("=== all_to_all, native pairwise over tcp", "native direct over shm, shared"));
  for (const std::string& line : DataLines(outcome.out)) {
    const std::vector<std::string> columns = absl::StrSplit(line, ' ', absl::SkipEmpty());
    ASSERT_EQ(columns.size(), 13) << line;
    EXPECT_EQ(columns[3], "none") << line;
    EXPECT_EQ(columns[8], "0") << line;
    for (size_t i = 9; i < 13; ++i) EXPECT_EQ(columns[i], "N/A") << line;
  }
}

TEST_F(BenchTest, TheParameterServersRoundHasTheSameTable) {
  const Outcome outcome = Succeed("--collective ps_push_pull --workers 3 -b 4K -e 64K -n 3");
  const std::vector<std::string> lines = DataLines(outcome.out);
  ASSERT_EQ(lines.size(), 4) << outcome.out;
  for (const std::string& line : lines) {  // two sizes, each over shared memory and over TCP
    const std::vector<std::string> columns = absl::StrSplit(line, ' ', absl::SkipEmpty());
    ASSERT_EQ(columns.size(), 13);
    EXPECT_EQ(columns[6], columns[7]);  // algbw is busbw
    EXPECT_EQ(columns[8], "0");
    EXPECT_EQ(columns[9], "N/A");
  }
}

TEST_F(BenchTest, FailsBelowTheRequiredBusBandwidthAndNamesTheSlowest) {
  const std::string flags =
      "--backend native --algorithm ring,star --transport tcp -b 4K -e 4K -n 2 --require_busbw ";
  Succeed(flags + "1e-9");
  const Outcome outcome = EndWith(1, flags + "100000");
  EXPECT_THAT(outcome.err, Has("of 4K is below --require_busbw 100000 (all_reduce, native ",
                               "; the slowest is all_reduce, native "));
  EXPECT_EQ(DataLines(outcome.out).size(), 2u) << "the figures are printed";
  EXPECT_TRUE(fs::exists(Path("runs/latest/bench.json")));
}

TEST_F(BenchTest, ASignalEndsAllProcessesAndSetsTheExitCode) {
  for (const auto& [signal, name] : {std::pair{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}}) {
    const pid_t psring = StartLong();
    const MonotonicTime begin = MonotonicNow();
    kill(psring, signal);
    const Outcome outcome = Finish(psring);
    EXPECT_EQ(outcome.exit_code, 128 + signal) << outcome.err;
    EXPECT_LT(MonotonicNow() - begin, absl::Seconds(20));
    EXPECT_EQ(outcome.err, absl::StrCat("psring bench: interrupted (", name, "); nothing was kept\n"));
    EXPECT_TRUE(DataLines(outcome.out).empty()) << outcome.out;
    EXPECT_TRUE(Workers().empty());
  }
}

TEST_F(BenchTest, AKilledWorkerIsNamedAndNoResultIsPrinted) {
  const pid_t psring = StartLong();
  const std::vector<int> workers = Workers();
  ASSERT_EQ(workers.size(), 2);
  for (const int worker : workers) {
    const std::string environment = Slurp(absl::StrCat("/proc/", worker, "/environ"));
    if (absl::StrContains(environment, "LOCAL_RANK=1")) kill(worker, SIGKILL);
  }
  const Outcome outcome = Finish(psring);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, OneLineWith("psring bench: 2 workers: rank 1 was killed by SIGKILL"));
  EXPECT_TRUE(DataLines(outcome.out).empty()) << outcome.out;
  EXPECT_TRUE(Workers().empty());
}

// bench --nnodes: one psring per machine, as processes on the loopback or in network namespaces.

constexpr char kFewCalls[] = "-b 4K -e 64K -n 2 -w 0 --rounds 1 --timeout 20";

class BenchOnNodesTest : public LaunchTest {
 protected:
  std::string Flags(int nodes, const std::string& more, const std::string& calls = kFewCalls,
                    const std::string& address = "127.0.0.1") const {
    return absl::StrCat("bench --backend native --algorithm ring --nnodes ", nodes, " --master_addr ",
                        address, " --master_port ", port_, " ", calls, " ", more, " --out ", Folder("run"));
  }
  // Its processes, too, have this test's folder in their environment.
  std::unique_ptr<Started> Node(int node, const std::string& flags, const ChildNetwork& place = {}) const {
    return StartPsring(absl::StrCat(flags, " --node_rank ", node), {absl::StrCat("PSRING_TEST=", folder_)},
                       place);
  }
  StartedOnes StartNodes(int nodes, const std::string& more, const std::string& calls = kFewCalls) const {
    StartedOnes started;
    for (int node = 0; node < nodes; ++node) started.push_back(Node(node, Flags(nodes, more, calls)));
    return started;
  }
  void ExpectNoProcesses() const {
    const auto none = [this] {
      for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        if (absl::StrContains(Slurp(entry.path() / "environ"), absl::StrCat("PSRING_TEST=", folder_))) {
          return false;
        }
      }
      return true;
    };
    EXPECT_TRUE(Eventually(none));
  }
  nlohmann::json Manifest() const { return nlohmann::json::parse(Slurp(Folder("run/manifest.json"))); }

  const int port_ = FreePort();
};

TEST_F(BenchOnNodesTest, MeasuresTheNetworkThenCollectivesAndServers) {
  StartedOnes nodes =
      StartNodes(3, "--collective all_reduce,ps_push_pull --servers 1,2 --workers 3,4 --nproc_per_node 2");
  ExpectSuccess(nodes);
  const std::string out = nodes[0]->output();
  EXPECT_THAT(out, Has("# on 3 machines; ranks per machine: at most 2", "# Network between 3 machines",
                       "=== all_reduce, native ring over tcp, private buffers, 4 workers",
                       "=== ps_push_pull, grpc sync on 2 servers over tcp, 3 workers"));
  EXPECT_THAT(nodes[1]->output(), Has("measuring the network", "4 workers: 2 processes on this node"));
  EXPECT_THAT(nodes[2]->output(), Has("4 workers: 0 processes on this node"));
  EXPECT_THAT(nodes[1]->output(), Has("3 workers (parameter server): 2 processes"));
  const nlohmann::json network = Manifest()["link"]["network"];
  ASSERT_EQ(network["pair_mb_per_s"].size(), 3u);
  EXPECT_GT(network["pair_mb_per_s"][2][1].get<double>(), 0);
  EXPECT_GT(network["latency_us"][0][2].get<double>(), 0);
  EXPECT_EQ(network["into_each_mb_per_s"].size(), 3u);
  EXPECT_TRUE(network["slowest"]["what"].is_string()) << network;
  EXPECT_EQ(Manifest()["bench"]["nnodes"], 3);
  EXPECT_EQ(Manifest()["finished"], true);
  EXPECT_THAT(Slurp(Folder("run/network.csv")), Has(",2,1,"));
  EXPECT_THAT(Slurp(Folder("run/bench.csv")), Has(",nodes,chosen_algorithm\n"));
  EXPECT_THAT(Slurp(Folder("run/bench.txt")), Has("# Latency in us"));
  ExpectNoProcesses();
}

// As pods of an Indexed Job, which have their numbers in their environment, and no --node_rank.
TEST_F(BenchOnNodesTest, FailsBelowTheRequiredBusBandwidthAndNamesTheSlowest) {
  StartedOnes pods;
  for (const int pod : {0, 1})
    pods.push_back(
        StartPsring(Flags(2, "--require_busbw 100000"), {absl::StrCat("JOB_COMPLETION_INDEX=", pod)}));
  EXPECT_TRUE(WaitForAll(pods));
  for (const auto& pod : pods) EXPECT_TRUE(pod->EndedWith(1)) << pod->Story();
  EXPECT_THAT(pods[0]->errors(), Has("is below --require_busbw 100000", "the slowest ", " at 127.0.0.1)"));
  EXPECT_THAT(pods[0]->output(), Has("# on 2 machines", "=== all_reduce")) << "the figures are printed";
  EXPECT_THAT(pods[1]->output(), Has("1 process on this node"));
  EXPECT_EQ(Manifest()["machines"].size(), 2u);
}

TEST_F(BenchOnNodesTest, NamesANodeThatIsKilled) {
  StartedOnes nodes = StartNodes(3, "", "-b 1M -e 1M -n 1000000 --timeout 20");
  ASSERT_TRUE(WaitUntil(nodes, [&] { return absl::StrContains(nodes[2]->output(), "1 process on"); }))
      << nodes[0]->Story() << nodes[2]->Story();
  nodes[2]->Signal(SIGKILL);
  EXPECT_TRUE(WaitForAll(nodes));
  for (const int other : {0, 1}) {
    EXPECT_TRUE(nodes[static_cast<size_t>(other)]->EndedWith(1));
    EXPECT_THAT(nodes[static_cast<size_t>(other)]->errors(), Has("node 2"));
  }
  ExpectNoProcesses();
}

TEST_F(BenchOnNodesTest, NamesTheNodesThatJoinedIfOneIsMissing) {
  StartedOnes nodes;
  const std::string flags = Flags(3, "", "--timeout 3");
  for (const int node : {0, 1}) nodes.push_back(Node(node, flags));
  EXPECT_TRUE(WaitForAll(nodes));
  EXPECT_FALSE(nodes[0]->Succeeded());
  EXPECT_THAT(nodes[0]->errors(), Has("node 2 never joined; joined: node 0 (", ", node 1 ("));
}

TEST_F(BenchOnNodesTest, RejectsNodesWithOtherFlags) {
  StartedOnes nodes;
  nodes.push_back(Node(0, Flags(2, "")));
  nodes.push_back(Node(1, Flags(2, "-c 3")));
  EXPECT_TRUE(WaitForAll(nodes));
  for (const auto& node : nodes) EXPECT_THAT(node->errors(), Has("node 1 was started with --check=3"));
}

TEST_F(BenchOnNodesTest, PredictReadsItsResults) {
  StartedOnes nodes =
      StartNodes(3, "--workers 2,3", "--sizes 4K,64K,1M,4M -n 2 -w 0 --timeout 20 --rounds 1");
  ExpectSuccess(nodes);
  for (const auto& [arguments, says] :
       {std::pair{"--profile", "The links between the machines carry"}, {"--calibrate", "ring 4M"}}) {
    const auto predict = Succeeded(StartPsring(
        absl::StrCat("predict --workers 2,4 ", arguments, " ", Folder("run"), " --out ", Folder("predict"))));
    // Long lines are wrapped.
    EXPECT_THAT(absl::StrReplaceAll(predict->output(), {{"\n  ", " "}}), Has(says));
  }
}

// Machines as network namespaces, with links of 100 Mbit/s. The link of node 1 then gets half of it.
TEST_F(BenchOnNodesTest, NamesANodeWhoseLinkHasHalfTheRate) {
  const Interrupt interrupt;
  const auto machines = Namespaces::Create(3, 1e8, interrupt);
  if (!machines.ok()) GTEST_SKIP() << machines.status().message();
  const auto halve = [&](const std::string& interface, const ChildNetwork& network) {
    const auto halved = RunForOutput({FindTool("tc"), "qdisc", "change", "dev", interface, "root", "handle",
                                      "1:", "tbf", "rate", "50mbit", "burst", "16384", "limit", "1000000"},
                                     absl::Seconds(30), interrupt, network);
    ASSERT_TRUE(halved.ok()) << halved.status();
  };
  halve("eth0", (*machines)->node(1));
  halve("psring-p1", (*machines)->switch_network());
  StartedOnes nodes;
  for (int node = 0; node < 3; ++node)
    nodes.push_back(Node(node, Flags(3, "--require_busbw 1", kFewCalls, Namespaces::Address(0)),
                         (*machines)->node(node)));
  EXPECT_TRUE(WaitForAll(nodes));
  EXPECT_TRUE(nodes[0]->EndedWith(1)) << nodes[0]->Story();
  EXPECT_THAT(nodes[0]->errors(), Has("the slowest node is node 1 ("));
  EXPECT_EQ(Manifest()["link"]["network"]["slowest"]["from"], 1);
}

}  // namespace
}  // namespace psring
