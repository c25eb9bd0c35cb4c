// A client that has the job's secret, but is not part of a job on several machines, writes values of node 0
// or node 1 to its rendezvous store. The real binaries, on the loopback. (authentication_process_test:
// clients without the secret.)
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/rendezvous/rendezvous.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/nodes.h"
#include "experiments/launch/progress.h"
#include "tests/experiments/slurp.h"
#include "tests/experiments/start_psring.h"
#include "tests/has.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

using Json = nlohmann::json;

std::unique_ptr<Rendezvous> Stranger(int port) {
  const RendezvousOptions options{.world_size = 2, .host = "127.0.0.1", .port = port, .secret = TestSecret()};
  auto stranger = Rendezvous::Connect(options);
  EXPECT_TRUE(stranger.ok()) << stranger.status();
  return stranger.ok() ? *std::move(stranger) : nullptr;
}

class StrangersTest : public LaunchTest {
 protected:
  std::unique_ptr<Started> Node(int node) {
    return StartPsring(
        absl::StrCat("train --strategy ring --model mlp-small --data synthetic --steps 5 --batch 16 "
                     "--no_eval --timeout 20",
                     OnLoopback(node, port_), node == 0 ? absl::StrCat(" --out ", Folder("run")) : ""),
        {absl::StrCat("TMPDIR=", folder_)});
  }

  // Runs a job in whose store the stranger writes before node 1 starts. A node may replace a value before the
  // other one sees it, so these tests do not assert that it was rejected: FollowerTest and node_order_test
  // do.
  StartedOnes JobWith(const std::vector<std::pair<std::string, std::string>>& written) {
    StartedOnes nodes;
    nodes.push_back(Node(0));
    if (const auto stranger = Stranger(port_); stranger != nullptr) {
      for (const auto& [key, value] : written) EXPECT_TRUE(stranger->Set(key, value).ok()) << key;
    }
    nodes.push_back(Node(1));
    EXPECT_TRUE(WaitForAll(nodes));
    return nodes;
  }

  void ExpectAnUndisturbedJob(const StartedOnes& nodes) {
    for (const auto& node : nodes) EXPECT_TRUE(node->Succeeded()) << node->Story();
    const std::vector<std::string> weights = Weights(Folder("run"));
    ASSERT_EQ(weights.size(), 2u);
    EXPECT_EQ(weights[0], weights[1]);
  }

  const int port_ = FreePort();
};

TEST_F(StrangersTest, AnOrderCannotSetTheEnvironment) {
  const std::string mark = Folder("mark");
  const Json order = {
      {"what", "ring x 2"},
      {"deadline_s", 100},
      {"over", false},
      {"failure", ""},
      {"processes",
       {{{"name", "rank 1"},
         {"program", "trainer"},
         {"arguments", {"--describe"}},
         {"environment",
          {absl::StrCat("LD_PRELOAD=", PSRING_MARK_A_FILE), absl::StrCat("PSRING_TEST_MARK=", mark)}},
         {"serves", false},
         {"may_die", false}}}}};
  const StartedOnes nodes = JobWith({{"order/0/1", order.dump()}});
  EXPECT_FALSE(std::filesystem::exists(mark));
  ExpectAnUndisturbedJob(nodes);
}

TEST_F(StrangersTest, AnOrderWithAWrongTypeIsHarmless) {
  const StartedOnes nodes = JobWith({{"order/0/1", R"({"over": false, "processes": [], "what": 5})"}});
  ExpectAnUndisturbedJob(nodes);
}

TEST_F(StrangersTest, RecordsStayInsideTheRunFolder) {
  const std::string escaping = "../../../../escaped";  // from run/records/training-1/ring-2
  const StartedOnes nodes =
      JobWith({{"done/0/1", escaping + "\n"}, {"within/0/1", "0"}, {"file/0/1/" + escaping, "foreign"}});
  EXPECT_FALSE(std::filesystem::exists(Folder("escaped")));
  ExpectAnUndisturbedJob(nodes);
}

TEST_F(StrangersTest, EscapesControlCharactersOfAReportedFailure) {
  const StartedOnes nodes = JobWith({{"failed/0", "10 gone\x1b[2Jwrong"}});
  for (const auto& node : nodes) {
    EXPECT_FALSE(node->Succeeded());
    EXPECT_THAT(node->Story(), Lacks("\x1b"));
    EXPECT_THAT(node->errors(), Has("gone\\x1b[2Jwrong")) << node->Story();
  }
}

// Node 0 and node 1 in this process.
class FollowerTest : public LaunchTest {
 protected:
  struct Followed {
    absl::Status status;
    std::string printed;
  };
  static NodesOptions Node0(absl::Duration timeout) {
    return {.nodes = 2,
            .per_node = 1,
            .node = 0,
            .master_addr = "127.0.0.1",
            .master_port = FreePort(),
            .network = {.bind = "127.0.0.1"},
            .secret = TestSecret(),
            .timeout = timeout};
  }
  // Node 1 reads `order`. Unless `silent`, node 0 ends the run once node 1 has printed a line.
  Followed After(const std::string& order, bool silent = false) {
    const NodesOptions options = Node0(silent ? absl::Seconds(4) : absl::Seconds(20));
    const std::string printed = Folder("printed");
    std::filesystem::remove(printed);  // of an earlier call, whose line must not be taken for this one's
    Followed followed;
    std::thread node1([&] {
      NodesOptions follows = options;
      follows.node = 1;
      auto nodes = Nodes::Join(follows, {});
      ASSERT_TRUE(nodes.ok()) << nodes.status();
      FILE* const out = fopen(printed.c_str(), "we");
      Display display(out, /*terminal=*/false);
      followed.status = (*nodes)->Follow(
          [&](const NodeOrder& order, const std::string& folder) {
            return (*nodes)->TrainingTask(order, own_, folder);
          },
          interrupt_, display);
      fclose(out);
    });
    auto nodes = Nodes::Join(options, {});
    if (!nodes.ok()) {
      ADD_FAILURE() << nodes.status();
      node1.join();
      return followed;
    }
    if (const auto stranger = Stranger(options.master_port); stranger != nullptr) {
      EXPECT_TRUE(stranger->Set("order/0/1", order).ok());
    }
    if (!silent) {
      EXPECT_TRUE(Eventually([&] { return !Slurp(printed).empty(); }, absl::Seconds(20)));
      (*nodes)->End(absl::OkStatus());
    }
    node1.join();
    followed.printed = Slurp(printed);
    return followed;
  }

  NodeOrder ValidOrder() const {
    return {.what = "ring x 2",
            .deadline_s = 100,
            .training = TrainingArguments(own_.training),
            .workers = 2,
            .store_port = 1};
  }

  static NodeSetup Own() {
    NodeSetup own{.binaries = {.trainer = PSRING_TRAINER, .ps_server = PSRING_TRAINER},
                  .strategies = {"ring"},
                  .layout = {.nodes = 2}};
    own.training.strategy = "ring";
    return own;
  }

  const NodeSetup own_ = Own();
  Interrupt interrupt_;
};

TEST_F(FollowerTest, IgnoresInvalidOrders) {
  std::vector<std::string> orders = {"", "[]", std::string(1 << 20, '['), R"({"over": true, "failure": 5})"};
  orders.push_back(Json({{"over", false},
                         {"what", "ring x 2"},
                         {"deadline_s", 100},
                         {"failure", ""},
                         {"processes",
                          {{{"name", "rank 1"},
                            {"program", "/bin/sh"},
                            {"arguments", {"-c", "true"}},
                            {"environment", {"PATH=/tmp"}}}}}})
                       .dump());
  for (const char* flag : {"--no_such_flag", "--record=/tmp", "--model=cnn"}) {
    NodeOrder order = ValidOrder();
    order.training.push_back(flag);
    orders.push_back(ToJson(order));
  }
  Json order_without_name = Json::parse(ToJson(ValidOrder()));
  order_without_name["what"] = 5;
  orders.push_back(order_without_name.dump());
  for (const std::string& order : orders) {
    SCOPED_TRACE(order.substr(0, 200));
    const Followed followed = After(order);
    EXPECT_TRUE(followed.status.ok()) << followed.status;
    EXPECT_THAT(followed.printed, OneLineWith("ignored an order for this node: "));
  }
}

TEST_F(FollowerTest, Node0RejectsANodeWithAHugeName) {
  const NodesOptions options = Node0(absl::Seconds(20));
  std::thread node1([&] {
    const auto meeting = Rendezvous::Join({.rank = 1,
                                           .world_size = 2,
                                           .host = "127.0.0.1",
                                           .port = options.master_port,
                                           .secret = TestSecret()});
    ASSERT_TRUE(meeting.ok()) << meeting.status();
    EXPECT_TRUE(RequireEqualFlags(**meeting, {}).ok());
    for (const char* name : {"addresses", "hosts"})
      EXPECT_TRUE((*meeting)->Exchange(name, std::string(1 << 20, 'x')).ok()) << name;
  });
  const absl::Status status = Nodes::Join(options, {}).status();
  node1.join();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_LT(status.message().size(), 200u);
  EXPECT_THAT(status.message(), Has("node 1"));
}

TEST_F(FollowerTest, WaitsForAValidOrderUntilTheTimeout) {
  const Followed followed = After(R"({"over": false, "probes": false})", /*silent=*/true);
  EXPECT_TRUE(absl::IsDeadlineExceeded(followed.status)) << followed.status;
  EXPECT_THAT(followed.status.message(), Has("what: missing")) << followed.status;
}

}  // namespace
}  // namespace psring
