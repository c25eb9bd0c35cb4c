#include "experiments/launch/node_order.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/has.h"

namespace psring {
namespace {

using Json = nlohmann::json;

// Two nodes with two trainers each.
NodeSetup Own() {
  NodeSetup own{.binaries = {.trainer = "/bin-of-psring/trainer", .ps_server = "/bin-of-psring/ps_server"},
                .strategies = {"ps-sync"},
                .layout = {.nodes = 2, .per_node = 2}};
  own.training.strategy = "ps-sync";
  own.training.lr = 0.5;
  own.training.data_dir = "/own/data";
  return own;
}

NodeOrder Order(TrainingOptions training) {
  training.data_dir.clear();  // as node 0 sends it
  return {.what = "ps-sync x 4",
          .deadline_s = 12.5,
          .training = TrainingArguments(training),
          .workers = 4,
          .has_servers = true,
          .outlives_workers = true,
          .store_port = 1234};
}

absl::StatusOr<TrainingJob> JobWith(const std::vector<std::string>& flags, const NodeSetup& own = Own()) {
  NodeOrder order = Order(own.training);
  order.training.insert(order.training.end(), flags.begin(), flags.end());
  return JobOf(order, own, "10.0.0.1", "/own/folder");
}

// The command lines of all processes of node 1.
std::vector<std::string> WordsOf(const TrainingJob& job, const NodeSetup& own) {
  const JobHost host{.binaries = own.binaries, .records = "/own/folder", .address = "10.0.0.2"};
  std::vector<std::string> words;
  const auto add = [&](const ChildSpec& child) {
    words.insert(words.end(), child.command.begin(), child.command.end());
    words.insert(words.end(), child.environment.begin(), child.environment.end());
  };
  add(TrainerProcess(job, host, 2));
  if (job.servers > 0) add(ServerProcess(job, host, 0));
  return words;
}

TEST(NodeOrder, RoundTrips) {
  const NodeOrder order = Order(Own().training);
  EXPECT_EQ(ToJson(NodeOrderFromJson(ToJson(order)).value()), ToJson(order));
  const auto over = NodeOrderFromJson(ToJson({.over = true, .failure = "broken \xff bytes\n"})).value();
  EXPECT_TRUE(over.over);
  EXPECT_TRUE(absl::StartsWith(over.failure, "broken "));
}

TEST(NodeOrder, OfABenchmarkNamesOnlyALaunch) {
  const auto back =
      NodeOrderFromJson(ToJson({.what = "4 workers", .bench_launch = 3, .store_port = 1234})).value();
  EXPECT_EQ(back.bench_launch, 3);
  EXPECT_EQ(back.store_port, 1234);
  const absl::Status job = JobOf(back, Own(), "10.0.0.1", "/own/folder").status();
  EXPECT_TRUE(absl::IsInvalidArgument(job)) << job;
  EXPECT_THAT(job.message(), Has("psring bench")) << job;
}

TEST(NodeOrder, RoundTripsALongFailure) {
  EXPECT_TRUE(NodeOrderFromJson(ToJson({.over = true, .failure = std::string(1 << 20, '\xff')})).ok());
  EXPECT_TRUE(NodeOrderFromJson(ToJson({.over = true, .failure = std::string(1 << 20, '\x01')})).ok());
}

TEST(NodeOrder, NamesAFieldOfAnotherType) {
  const Json sound = Json::parse(ToJson(Order(Own().training)));
  ASSERT_TRUE(NodeOrderFromJson(sound.dump()).ok());
  for (const auto& [key, value] : sound.items()) {
    if (key == "failure") continue;  // not read unless `over`
    for (const Json& other :
         {Json(), Json(5.5), Json("text"), Json(true), Json::array({5}), Json::object()}) {
      if (other.type() == value.type()) continue;
      if (key == "deadline_s" && other.is_number()) continue;
      Json wrong = sound;
      wrong[key] = other;
      const absl::Status status = NodeOrderFromJson(wrong.dump()).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong;
      EXPECT_THAT(status.message(), Has(key));
    }
    Json missing = sound;
    missing.erase(key);
    EXPECT_TRUE(absl::IsInvalidArgument(NodeOrderFromJson(missing.dump()).status())) << key;
  }
  EXPECT_FALSE(NodeOrderFromJson(R"({"over": true, "failure": 5})").ok());
  EXPECT_FALSE(NodeOrderFromJson(R"({"over": 1})").ok());
}

TEST(NodeOrder, RejectsValuesOutOfBounds) {
  const std::pair<const char*, Json> cases[] = {{"store_port", 0},
                                                {"store_port", 65536},
                                                {"deadline_s", -1},
                                                {"deadline_s", 1e300},
                                                {"bench_launch", -2},
                                                {"bench_launch", 1 << 30},
                                                {"what", "ring\x1b[2J"},
                                                {"what", std::string(1000, 'x')},
                                                {"training", std::vector<std::string>(1000, "--no_eval")},
                                                {"training", {std::string(100000, 'x')}},
                                                {"more", std::string(1 << 20, 'x')}};
  for (const auto& [key, value] : cases) {
    Json order = Json::parse(ToJson(Order(Own().training)));
    order[key] = value;
    EXPECT_TRUE(absl::IsInvalidArgument(NodeOrderFromJson(order.dump()).status())) << key;
  }
}

TEST(JobOf, TakesNode0sPlanAndThisNodesFlags) {
  NodeSetup own = Own();
  TrainingOptions planned = own.training;
  planned.steps = 7;
  planned.seed = 3;
  planned.eval_every = 2;
  planned.lr = 0;  // omitted
  const auto job = JobOf(Order(planned), own, "10.0.0.1", "/own/folder").value();
  EXPECT_EQ(job.training.steps, 7);
  EXPECT_EQ(job.training.seed, 3u);
  EXPECT_EQ(job.training.data_dir, "/own/data");
  EXPECT_EQ(job.workers, 4);
  EXPECT_EQ(job.servers, 1);
  EXPECT_EQ(job.layout.ProcessesOn(1), 2);
  EXPECT_TRUE(job.outlives_workers);
  EXPECT_EQ(StoreEnvironment(job.store),
            (std::vector<std::string>{"MASTER_ADDR=10.0.0.1", "MASTER_PORT=1234", "PSRING_STORE_HOSTED=1",
                                      "PSRING_SECRET="}));
}

TEST(JobOf, AcceptsAnotherNumberOfTheStrategy) {
  NodeSetup own = Own();
  own.training.strategy = "ps-backup:01";
  own.strategies = {"ps-backup:01"};
  TrainingOptions planned = own.training;
  planned.strategy = "ps-backup:1";
  EXPECT_EQ(JobOf(Order(planned), own, "10.0.0.1", "/own/folder")->training.strategy, "ps-backup:1");
}

TEST(JobOf, RejectsFlagsThatThisNodeWasNotStartedWith) {
  for (const std::string flag : {"--lr=0.25", "--model=cnn", "--width=65536", "--batch=100000",
                                 "--strategy=ring", "--workload=/etc/x.csv", "--ranks_per_process=64",
                                 "--server_placement=colocated", "--debug.staging_mb=1048576"}) {
    NodeSetup own = Own();
    own.training.lr = 0;
    own.training.strategy = "single";
    const absl::Status status = JobWith({flag}, own).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << flag << " " << status;
  }
  NodeSetup own = Own();
  own.training.ranks_per_process = 4;
  EXPECT_TRUE(JobWith({}, own).ok());  // four workers in one process
  EXPECT_FALSE(JobOf(Order(Own().training), own, "10.0.0.1", "/own/folder").ok());
}

// A node of a comparison, with other flags than one launch has.
NodeSetup Comparing() {
  NodeSetup own = Own();
  own.training.strategy = "single";
  own.training.server_placement = "dedicated";
  own.training.global_batch = 512;
  own.strategies = {"ring", "ps-sync", "single", "none"};
  own.servers = {1, 2};
  own.server_wires = {"stream"};
  own.layout = {.nodes = 4, .server_nodes = 2, .per_node = 2};
  return own;
}

// The order for one launch of a comparison.
NodeOrder LaunchOrder(const std::string& strategy, int workers) {
  TrainingOptions training = Comparing().training;
  training.strategy = strategy;
  training.global_batch = 0;
  training.lr = 0;
  LeaveServersOut(training);
  NodeOrder order = Order(training);
  order.workers = workers;
  order.has_servers = false;
  return order;
}

absl::Status Accepts(const NodeOrder& order, const NodeSetup& own = Comparing()) {
  return JobOf(order, own, "10.0.0.1", "/own/folder").status();
}

TEST(JobOf, ChoosesAmongWhatTheNodeCompares) {
  const auto ring = JobOf(LaunchOrder("ring", 3), Comparing(), "10.0.0.1", "/own/folder").value();
  EXPECT_EQ(ring.training.strategy, "ring");
  EXPECT_EQ(ring.layout.ProcessesOn(0), 2);
  EXPECT_EQ(ring.layout.ProcessesOn(1), 1);
  EXPECT_EQ(ring.layout.ProcessesOn(2), 0);
  NodeOrder order = LaunchOrder("ps-sync", 2);
  order.has_servers = true;
  order.training.insert(order.training.end(), {"--server_placement=dedicated", "--servers=2",
                                               "--server_wire=stream", "--batch=256"});
  const auto servers = JobOf(order, Comparing(), "10.0.0.1", "/own/folder").value();
  EXPECT_EQ(servers.training.batch, 256);
  EXPECT_EQ(servers.training.server_wire, "stream");
  NodeSetup only_grpc = Comparing();
  only_grpc.server_wires = {"grpc"};
  EXPECT_FALSE(Accepts(order, only_grpc).ok());
  EXPECT_EQ(PartOf(servers, 3).servers, std::vector<int>{1});
  EXPECT_TRUE(PartOf(servers, 3).processes.empty());
}

TEST(JobOf, RejectsWhatTheNodeDoesNotCompare) {
  EXPECT_TRUE(Accepts(LaunchOrder("none", 4)).ok()) << Accepts(LaunchOrder("none", 4));
  EXPECT_FALSE(Accepts(LaunchOrder("ps-async", 4)).ok());
  EXPECT_THAT(Accepts(LaunchOrder("ring", 5)).message(), Has("up to 4 workers"));
  for (const char* flag : {"--batch=1024", "--lr=0.1", "--score=validation", "--servers=3"}) {
    NodeOrder order = LaunchOrder("ring", 4);
    order.training.push_back(flag);
    EXPECT_TRUE(absl::IsInvalidArgument(Accepts(order))) << flag;
  }
  NodeSetup tunes = Comparing();
  tunes.tries_rates = true;
  NodeOrder order = LaunchOrder("ring", 4);
  order.training = {"--strategy=ring", "--lr=0.1"};
  EXPECT_TRUE(Accepts(order, tunes).ok()) << Accepts(order, tunes);
}

TEST(JobOf, ChoosesPipelinesOnlyForANodeThatComparesLayouts) {
  NodeOrder order = LaunchOrder("ring", 4), divided = order;
  divided.training.push_back("--tp=2");
  divided.training.push_back("--sequence_parallel");
  EXPECT_THAT(Accepts(divided).message(), Has("was not started with --"));
  const std::vector<std::string> pipeline = {"--pp=2",   "--program=gpipe",    "--micro_batches=8",
                                             "--cuts=3", "--rank_order=pp,dp", "--copy_streams=1"};
  order.training.insert(order.training.end(), pipeline.begin(), pipeline.end());
  EXPECT_THAT(Accepts(order).message(), Has("was not started with --"));
  NodeSetup layouts = Comparing();
  layouts.cuts_models = true;
  const auto job = JobOf(order, layouts, "10.0.0.1", "/own/folder").value();
  EXPECT_EQ(job.training.pp, 2);
  EXPECT_EQ(job.training.program, "gpipe");
  EXPECT_EQ(job.training.micro_batches, 8);
  EXPECT_EQ(job.training.copy_streams, 1);
  const TrainingOptions of_divided = JobOf(divided, layouts, "10.0.0.1", "/own/folder")->training;
  EXPECT_EQ(of_divided.tp, 2);
  EXPECT_TRUE(of_divided.sequence_parallel);
  NodeOrder sequences = LaunchOrder("ring", 4);
  sequences.training.insert(sequences.training.end(), {"--cp=2", "--context_parallel=ulysses"});
  EXPECT_THAT(Accepts(sequences).message(), Has("was not started with --c"));
  const auto of_sequences = JobOf(sequences, layouts, "10.0.0.1", "/own/folder").value();
  EXPECT_EQ(of_sequences.training.cp, 2);
  EXPECT_EQ(of_sequences.training.context_parallel, "ulysses");
}

TEST(JobOf, RejectsUnknownFlags) {
  for (const std::string word : {"--record=/tmp/x", "--rendezvous=file:///tmp/x", "--bind=0.0.0.0", "--help",
                                 "--no_such_flag", "word", "", "--steps", "--steps=abc", "--steps=-1",
                                 "--cuda_graph=abc", "--no_eval=99999999999999999999", "--seed=1,2"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(JobWith({word}).status())) << word;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(JobWith({"--steps=1", "--steps=2"}).status()));
}

// Covers all flags, including future ones.
TEST(JobOf, NoFlagPassesANode0PathToAProcess) {
  const std::string foreign = "/foreign/path";
  CLI::App app;
  TrainingOptions unused;
  AddTrainingFlags(app, unused);
  int paths = 0;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : {foreign, "trace:" + foreign, foreign + ".csv"}) {
      const std::string flag = absl::StrCat("--", option->get_lnames().front(), "=", value);
      const auto job = JobWith({flag});
      if (!job.ok()) continue;
      ++paths;
      for (const std::string& word : WordsOf(*job, Own()))
        EXPECT_THAT(word, Lacks(foreign)) << flag << " leads to " << word;
    }
  }
  EXPECT_GE(paths, 1);  // such as --resume
}

TEST(JobOf, UsesThisNodesCheckpointFolderOrATemporaryOne) {
  NodeSetup own = Own();
  own.training.checkpoint_every = 10;
  const auto elsewhere = JobWith({"--checkpoint_dir=/node/0/run", "--resume=/node/0/run"}, own).value();
  EXPECT_EQ(elsewhere.training.checkpoint_dir, "/own/folder");
  EXPECT_EQ(elsewhere.training.resume, "/own/folder");
  const auto fresh = JobWith({}, own).value();
  EXPECT_EQ(fresh.training.checkpoint_dir, "");
  EXPECT_EQ(fresh.training.resume, "");

  own.training.checkpoint_dir = "/own/kept";
  own.training.resume = "/own/earlier";
  NodeOrder order = Order(own.training);
  EXPECT_EQ(JobOf(order, own, "a", "/own/folder")->training.resume, "/own/earlier");
  TrainingOptions again = own.training;
  again.resume = again.checkpoint_dir = "/node/0/run";  // a restart
  order = Order(again);
  EXPECT_EQ(JobOf(order, own, "a", "/own/folder")->training.checkpoint_dir, "/own/kept");
  EXPECT_EQ(JobOf(order, own, "a", "/own/folder")->training.resume, "/own/kept");
}

TEST(NamedRecords, AcceptsOnlyExpectedFiles) {
  TrainingJob job{
      .workers = 4, .servers = 2, .layout = {.nodes = 4, .server_nodes = 2, .per_node = 1, .processes = 2}};
  job.training.ranks_per_process = 2;
  job.training.server_placement = "dedicated";
  const std::vector<std::string> of_ranks = RecordNames(job, PartOf(job, 1));
  EXPECT_EQ(of_ranks,
            (std::vector<std::string>{"steps-rank2.jsonl", "steps-earlier-rank2.jsonl", "trace-rank2.json",
                                      "result-rank2.json", "steps-rank3.jsonl", "steps-earlier-rank3.jsonl",
                                      "trace-rank3.json", "result-rank3.json"}));
  EXPECT_EQ(RecordNames(job, PartOf(job, 3)),
            (std::vector<std::string>{"result-server1.json", "arrivals-server1.bin"}));

  EXPECT_EQ(NamedRecords("", of_ranks).value(), std::vector<std::string>());
  EXPECT_EQ(NamedRecords("trace-rank2.json\nsteps-rank3.jsonl\n", of_ranks).value(),
            (std::vector<std::string>{"trace-rank2.json", "steps-rank3.jsonl"}));
  for (const std::string text :
       {"../trace-rank2.json", "/etc/passwd", "trace-rank0.json", "..", "trace-rank2.json/",
        "trace-rank2.json\ntrace-rank2.json", "trace-rank2.json\r\n", "\x1b[2J"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(NamedRecords(text, of_ranks).status())) << text;
  }
}

}  // namespace
}  // namespace psring
