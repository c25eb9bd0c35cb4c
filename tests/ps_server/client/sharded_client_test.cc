// How a worker of several servers begins and ends, in orders of events that real servers seldom bring about.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ps_server/client/ps_client.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

using ::testing::ElementsAre;

// A server's client that says what its test has it say when it starts, and notes what is asked of it. Once it
// was sent back, a push is answered with that until a Fetch, as ClientSession does.
class ScriptedClient : public OneServerClient {
 public:
  explicit ScriptedClient(std::function<void(ScriptedClient&)> on_start) : on_start_(std::move(on_start)) {}
  ~ScriptedClient() override { on_end(); }

  // A word of the server's: it begins, for the first time or (`dropped`) again.
  void Begins(int64_t epoch, int64_t step, bool dropped) {
    if (dropped) sent_back_ = true;
    listener_(message::Welcome{.step = step, .epoch = epoch, .went_back = dropped});
  }
  void Receives(const message::ToWorker& message) { listener_(message); }
  std::function<void()> on_end = [] {};
  std::function<void(const message::ToServer&)> on_send = [](const message::ToServer&) {};
  std::vector<int64_t> pushed;  // steps
  int fetched = 0;

  absl::Status Start(int, const ServerJob&, const WorkerBuffers&, absl::Time) override {
    on_start_(*this);
    return absl::OkStatus();
  }
  void PushPull(const Exchange& exchange, Done done) override {
    if (!sent_back_) pushed.push_back(exchange.step);
    done(ExchangeResult{.version = sent_back_ ? 0 : exchange.step + 1, .went_back = sent_back_});
  }
  absl::StatusOr<std::optional<int64_t>> Barrier(int, absl::Time) override { return std::nullopt; }
  absl::StatusOr<bool> Read(const ReadRequest&, absl::Time) override {
    ++fetched;
    sent_back_ = false;
    return true;
  }
  absl::Status Leave(absl::Time) override { return absl::OkStatus(); }
  void Abort(absl::Status) override {}
  ClientStatus status() const override { return {.payload = "scripted"}; }
  void SetListener(std::function<void(const message::ToWorker&)> listener) override {
    listener_ = std::move(listener);
  }
  void Send(const message::ToServer& message) override { on_send(message); }

 private:
  const std::function<void(ScriptedClient&)> on_start_;
  std::function<void(const message::ToWorker&)> listener_;
  bool sent_back_ = false;
};

// The first server dies between its answer and the second one's; another worker, which was faster, has told
// the second to begin in the new epoch, so that this one finds both in agreement. Its client of the first
// knows only that it was sent back.
TEST(ShardedBegin, AServerThatDiedWhileAWorkerBeganIsFetchedFromThoughAllAgreeByThen) {
  std::promise<void> came_back;
  auto first = std::make_unique<ScriptedClient>([&](ScriptedClient& client) {
    client.Begins(/*epoch=*/0, /*step=*/0, /*dropped=*/false);
    client.Begins(/*epoch=*/1, /*step=*/0, /*dropped=*/true);
    came_back.set_value();
  });
  auto second = std::make_unique<ScriptedClient>([&](ScriptedClient& client) {
    came_back.get_future().wait();
    client.Begins(/*epoch=*/1, /*step=*/0, /*dropped=*/true);
  });
  ScriptedClient& died = *first;
  ScriptedClient& other = *second;
  std::vector<std::unique_ptr<OneServerClient>> servers;
  servers.push_back(std::move(first));
  servers.push_back(std::move(second));
  TestWorker worker(MakeJob(1, {100}), 0, MakeShardedPsClient(std::move(servers)));
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  EXPECT_EQ(died.fetched, 1);
  const auto results = worker.Step(0);
  ASSERT_EQ(results.status(), absl::OkStatus());
  EXPECT_FALSE(results->front().went_back);
  // One of them alone would have it twice.
  EXPECT_THAT(died.pushed, ElementsAre(0));
  EXPECT_THAT(other.pushed, ElementsAre(0));
}

TEST(ShardedBegin, WhereNobodyDiedNothingIsFetched) {
  std::vector<std::unique_ptr<OneServerClient>> servers;
  std::vector<ScriptedClient*> scripted;
  for (int i = 0; i < 2; ++i) {
    auto client = std::make_unique<ScriptedClient>(
        [](ScriptedClient& its) { its.Begins(/*epoch=*/0, /*step=*/0, /*dropped=*/false); });
    scripted.push_back(client.get());
    servers.push_back(std::move(client));
  }
  TestWorker worker(MakeJob(1, {100}), 0, MakeShardedPsClient(std::move(servers)));
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  for (const ScriptedClient* client : scripted) EXPECT_EQ(client->fetched, 0);
}

// A step's norm may become known when its workers have all they need, and leave.
TEST(ShardedEnd, WhatAServerSaysWhileTheClientsEndIsCarriedToNobody) {
  std::vector<std::string> told;
  std::vector<std::unique_ptr<OneServerClient>> servers;
  std::vector<ScriptedClient*> scripted;
  for (int i = 0; i < 3; ++i) {
    auto client = std::make_unique<ScriptedClient>(
        [](ScriptedClient& its) { its.Begins(/*epoch=*/0, /*step=*/0, /*dropped=*/false); });
    client->on_send = [&told, i](const message::ToServer&) { told.push_back(absl::StrCat("server ", i)); };
    scripted.push_back(client.get());
    servers.push_back(std::move(client));
  }
  const message::NormPart part{.step = 7, .sum_of_squares = 1};
  for (ScriptedClient* client : scripted) {
    client->on_end = [client, &part] { client->Receives(part); };
  }
  {
    TestWorker worker(MakeJob(1, {100}), 0, MakeShardedPsClient(std::move(servers)));
    ASSERT_EQ(worker.Start(), absl::OkStatus());
    ASSERT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
  }
  EXPECT_THAT(told, ElementsAre());
}

}  // namespace
}  // namespace psring
