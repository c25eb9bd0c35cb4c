// Exhaustive over small jobs: servers die, restart and go back, workers learn of it, and messages are lost
// with a server, in every order.
#include "ps_server/consistency/common_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

using Steps = std::set<int64_t>;  // of which a server has a checkpoint

// A message between a worker and one incarnation of a server: where it begins, or a request to go back.
struct Message {
  int64_t epoch = 0;
  int64_t step = 0;
};

struct Connection {
  bool joined = false;    // this incarnation of the server
  bool welcomed = false;  // the server has sent its step to the worker
  int64_t knows = -1;     // the epoch that the worker knew from it when it joined
  std::deque<Message> to_worker, to_server;
};

struct Server {
  Steps kept;
  int64_t step = 0;
  int64_t epoch = 0;
  bool epoch_is_given = false;
  bool started = false;
};

// The step that all must reach: the newest one of which every server has a checkpoint.
int64_t NewestOfAll(const std::vector<Steps>& kept) {
  for (auto step = kept[0].rbegin(); step != kept[0].rend(); ++step) {
    if (std::ranges::all_of(kept, [&](const Steps& steps) { return steps.contains(*step); })) return *step;
  }
  return -1;
}

struct StepWorld {
  StepWorld(std::vector<Steps> kept, int workers)
      : newest(NewestOfAll(kept)), connections(workers, std::vector<Connection>(kept.size())) {
    int64_t present = 0;
    for (const Steps& steps : kept) present = std::max(present, *steps.rbegin() + 1);
    // The job is beyond all checkpoints.
    for (const Steps& steps : kept) servers.push_back({.kept = steps, .step = present, .started = true});
    known.assign(workers, std::vector<Message>(kept.size(), {.epoch = 0, .step = present}));
    for (auto& of_worker : connections) {
      for (Connection& connection : of_worker) connection = {.joined = true, .welcomed = true};
    }
  }

  int64_t newest;  // the step that all must reach
  std::vector<Server> servers;
  std::vector<std::vector<Message>> known;           // by worker, by server: the last
  std::vector<std::vector<Connection>> connections;  // by worker, by server
  int deaths = 0;
  int trained_on_after = 0;  // this number of deaths; 0: not yet

  CommonStep CommonOf(size_t worker) const {
    CommonStep common(static_cast<int>(servers.size()));
    for (size_t server = 0; server < servers.size(); ++server) {
      const Message& message = known[worker][server];
      common.OnBegin(static_cast<int>(server), message.epoch, message.step);
    }
    return common;
  }
  std::string Key() const {
    std::string key = absl::StrCat(deaths, ",", trained_on_after);
    for (const Server& server : servers) {
      absl::StrAppend(&key, "|", server.step, ",", server.epoch, ",", server.epoch_is_given, server.started,
                      ":");
      for (const int64_t step : server.kept) absl::StrAppend(&key, step, ",");
    }
    for (size_t worker = 0; worker < connections.size(); ++worker) {
      absl::StrAppend(&key, "|");
      for (size_t server = 0; server < servers.size(); ++server) {
        const Connection& to = connections[worker][server];
        absl::StrAppend(&key, to.joined, to.welcomed, to.knows, ",", known[worker][server].epoch, ".",
                        known[worker][server].step);
        for (const Message& message : to.to_worker)
          absl::StrAppend(&key, "<", message.epoch, ".", message.step);
        for (const Message& message : to.to_server)
          absl::StrAppend(&key, ">", message.epoch, ".", message.step);
      }
    }
    return key;
  }

  // Another incarnation, with the newest checkpoint not after `until`; all streams are broken.
  void BeginAgain(size_t number, int64_t until) {
    Server& server = servers[number];
    std::erase_if(server.kept, [&](int64_t step) { return step > until; });
    server.started = false;
    for (auto& of_worker : connections) of_worker[number] = {};
    if (!server.kept.empty()) server.step = *server.kept.rbegin();
  }
  void Die(size_t number) {
    ++deaths;
    servers[number].epoch = 0;
    servers[number].epoch_is_given = false;
    BeginAgain(number, INT64_MAX);
  }
  void Join(size_t worker, size_t number) {
    Connection& to = connections[worker][number];
    to.joined = true;
    to.knows = known[worker][number].epoch;
    Server& server = servers[number];
    for (const auto& of_worker : connections) {
      if (!of_worker[number].joined) return;
    }
    for (const auto& of_worker : connections) {
      if (!server.epoch_is_given) server.epoch = std::max(server.epoch, of_worker[number].knows + 1);
    }
    server.started = true;
    for (auto& of_worker : connections) {
      of_worker[number].welcomed = true;
      of_worker[number].to_worker.push_back({.epoch = server.epoch, .step = server.step});
    }
  }
  void ReceiveBeginning(size_t worker, size_t number) {
    Connection& from = connections[worker][number];
    const Message message = from.to_worker.front();
    from.to_worker.pop_front();
    known[worker][number] = message;
    const CommonStep its = CommonOf(worker);
    for (const int server : its.ServersToRewind()) {
      Connection& to = connections[worker][static_cast<size_t>(server)];
      // A worker sends nothing before it has received the Welcome.
      if (to.welcomed && to.to_worker.empty()) {
        to.to_server.push_back({.epoch = its.epoch_to_send(), .step = its.step()});
      }
    }
  }
  void ReceiveRewind(size_t worker, size_t number) {
    Connection& from = connections[worker][number];
    const Message message = from.to_server.front();
    from.to_server.pop_front();
    Server& server = servers[number];
    if (!server.started || message.epoch <= server.epoch) return;
    server.epoch = message.epoch;
    server.epoch_is_given = true;
    BeginAgain(number, message.step);
  }
  // All continue, and the next checkpoint is written.
  void TrainOn() {
    trained_on_after = deaths;
    ++newest;
    for (Server& server : servers) {
      server.kept.insert(newest);
      server.step = newest;
    }
  }
  // Everything that may happen next.
  std::vector<StepWorld> Next(int most_deaths) const {
    std::vector<StepWorld> worlds;
    const auto then = [&](const auto& what) {
      StepWorld& next = worlds.emplace_back(*this);
      what(next);
    };
    for (size_t server = 0; server < servers.size(); ++server) {
      if (deaths < most_deaths) then([&](StepWorld& next) { next.Die(server); });
      for (size_t worker = 0; worker < connections.size(); ++worker) {
        const Connection& between = connections[worker][server];
        if (!between.joined) then([&](StepWorld& next) { next.Join(worker, server); });
        if (!between.to_worker.empty()) then([&](StepWorld& next) { next.ReceiveBeginning(worker, server); });
        if (!between.to_server.empty()) then([&](StepWorld& next) { next.ReceiveRewind(worker, server); });
      }
    }
    if (deaths > 0 && deaths < most_deaths && trained_on_after == 0 && AtRest()) {
      then([](StepWorld& next) { next.TrainOn(); });
    }
    return worlds;
  }
  bool AtRest() const { return Next(/*most_deaths=*/0).empty(); }
};

// Visits every reachable state, and returns their number.
size_t Explore(const std::vector<Steps>& kept, int workers, int deaths) {
  std::set<std::string> seen;
  std::deque<StepWorld> open = {StepWorld(kept, workers)};
  seen.insert(open.front().Key());
  while (!open.empty()) {
    const StepWorld world = std::move(open.front());
    open.pop_front();
    for (const Server& server : world.servers) {
      EXPECT_LT(server.epoch, 20) << "epochs grow without end: " << world.Key();
      EXPECT_TRUE(server.kept.contains(world.newest))
          << "a server deleted the newest common checkpoint: " << world.Key();
    }
    if (world.deaths > world.trained_on_after && world.AtRest()) {
      for (size_t worker = 0; worker < world.connections.size(); ++worker) {
        const CommonStep common = world.CommonOf(worker);
        EXPECT_TRUE(common.agreed()) << world.Key();
        EXPECT_EQ(common.step(), world.newest) << world.Key();
      }
      for (const Server& server : world.servers) {
        EXPECT_EQ(server.step, world.newest) << world.Key();
        EXPECT_EQ(server.epoch, world.servers[0].epoch) << world.Key();
      }
    }
    if (testing::Test::HasFailure()) break;
    for (StepWorld& next : world.Next(deaths)) {
      if (seen.insert(next.Key()).second) open.push_back(std::move(next));
    }
  }
  return seen.size();
}

TEST(CommonStep, AfterAnyDeathsInAnyOrderAllAgreeOnTheNewestCommonStep) {
  EXPECT_GT(Explore({{1, 2}, {1, 2}}, 1, 2), 50);
  // A server keeps its newest three checkpoints, and may have two fewer than another.
  for (const Steps& one : {Steps{1}, Steps{0, 1}, Steps{1, 2}, Steps{1, 2, 3}}) {
    for (const Steps& other : {Steps{1}, Steps{1, 2}, Steps{1, 2, 3}, Steps{0, 1, 3}}) {
      Explore({one, other}, 1, 3);
      Explore({one, other}, 2, 2);
    }
  }
  for (const Steps& one : {Steps{1}, Steps{1, 2, 3}}) Explore({one, {1, 2}, {1, 2, 3}}, 1, 2);
  Explore({{1}, {1, 2}, {1, 2, 3}}, 2, 1);
}

TEST(CommonStep, ThereIsNoAgreementBeforeEveryServerHasAnswered) {
  CommonStep common(2);
  EXPECT_FALSE(common.knows_all());
  common.OnBegin(1, 0, 7);
  EXPECT_FALSE(common.agreed());
  common.OnBegin(0, 0, 7);
  EXPECT_TRUE(common.knows_all());
  EXPECT_TRUE(common.agreed());
  EXPECT_TRUE(common.ServersToRewind().empty());
}

// Both servers restarted with checkpoints, so they are in one epoch.
TEST(CommonStep, AllServersRewindToTheEarliestStepInTheNextEpoch) {
  CommonStep common(2);
  common.OnBegin(0, 1, 8);
  common.OnBegin(1, 1, 4);
  EXPECT_FALSE(common.agreed());
  EXPECT_EQ(common.step(), 4);
  EXPECT_EQ(common.epoch_to_send(), 2);
  EXPECT_EQ(common.ServersToRewind(), (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace psring
