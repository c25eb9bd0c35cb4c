// The start and end of a worker of several servers, in orders of events that are rare with real servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/deadline.h"
#include "ps_server/client/ps_client.h"
#include "tests/ps_server/test_job.h"

namespace psring {
namespace {

using ::testing::ElementsAre;

// The client of one server. `on_start` simulates the server's messages. It counts calls, and after the server
// went back it answers pushes with `went_back` until a Fetch, as ClientSession does.
class ScriptedClient : public OneServerClient {
 public:
  explicit ScriptedClient(std::function<void(ScriptedClient&)> on_start) : on_start_(std::move(on_start)) {}
  ~ScriptedClient() override { on_end(); }

  // The server sends a Welcome.
  void Welcomes(int64_t epoch, int64_t step, bool went_back) {
    if (went_back) went_back_ = true;
    listener_(message::Welcome{.step = step, .epoch = epoch, .went_back = went_back});
  }
  void Receives(const message::ToWorker& message) { listener_(message); }
  std::function<void()> on_end = [] {};
  std::function<void(const message::ToServer&)> on_send = [](const message::ToServer&) {};
  std::string_view payload = "scripted";
  std::vector<int64_t> pushed;  // steps
  int fetched = 0;

  absl::Status Start(int, const ServerJob&, const WorkerBuffers&, MonotonicTime) override {
    on_start_(*this);
    return absl::OkStatus();
  }
  void PushPull(const Exchange& exchange, Done done) override {
    if (!went_back_) pushed.push_back(exchange.step);
    done(ExchangeResult{.version = went_back_ ? 0 : exchange.step + 1, .went_back = went_back_});
  }
  absl::StatusOr<std::optional<int64_t>> Barrier(int, MonotonicTime) override { return std::nullopt; }
  absl::StatusOr<bool> Read(const ReadRequest&, MonotonicTime) override {
    ++fetched;
    went_back_ = false;
    return true;
  }
  absl::Status Leave(MonotonicTime) override { return absl::OkStatus(); }
  void Abort(absl::Status) override {}
  absl::Status Pull(int64_t, absl::Span<const RowPull>, MonotonicTime) override { return absl::OkStatus(); }
  void Push(int64_t, int64_t, absl::Span<const RowPush>) override {}
  absl::Status Put(const RowPut&, MonotonicTime) override { return absl::OkStatus(); }
  ClientStatus status() const override { return {.payload = payload, .wires = {payload}}; }
  void SetListener(std::function<void(const message::ToWorker&)> listener) override {
    listener_ = std::move(listener);
  }
  void Send(const message::ToServer& message) override { on_send(message); }

 private:
  const std::function<void(ScriptedClient&)> on_start_;
  std::function<void(const message::ToWorker&)> listener_;
  bool went_back_ = false;
};

// Clients of several servers, each of which begins once, at step 0.
struct Scripted {
  explicit Scripted(int count) {
    for (int i = 0; i < count; ++i) {
      auto client = std::make_unique<ScriptedClient>(
          [](ScriptedClient& its) { its.Welcomes(/*epoch=*/0, /*step=*/0, /*went_back=*/false); });
      clients.push_back(client.get());
      servers.push_back(std::move(client));
    }
  }
  std::vector<ScriptedClient*> clients;
  std::vector<std::unique_ptr<OneServerClient>> servers;
};

TEST(ShardedStatus, NamesTheWiresOfAllServers) {
  Scripted scripted(3);
  scripted.clients[1]->payload = "another";
  const auto client = MakeShardedPsClient(std::move(scripted.servers));
  EXPECT_EQ(client->status().payload, "mixed");
  EXPECT_THAT(client->status().wires, ElementsAre("scripted", "another"));
}

// The first server dies between its Welcome and the second one's. A faster worker has already moved the
// second server to the new epoch, so both agree, but the client of the first one knows only that its server
// went back.
TEST(ShardedBegin, WeightsAreFetchedFromAServerThatRestartedDuringStart) {
  std::promise<void> restarted;
  auto first = std::make_unique<ScriptedClient>([&](ScriptedClient& client) {
    client.Welcomes(/*epoch=*/0, /*step=*/0, /*went_back=*/false);
    client.Welcomes(/*epoch=*/1, /*step=*/0, /*went_back=*/true);
    restarted.set_value();
  });
  auto second = std::make_unique<ScriptedClient>([&](ScriptedClient& client) {
    restarted.get_future().wait();
    client.Welcomes(/*epoch=*/1, /*step=*/0, /*went_back=*/true);
  });
  ScriptedClient& restarted_server = *first;
  ScriptedClient& other = *second;
  std::vector<std::unique_ptr<OneServerClient>> servers;
  servers.push_back(std::move(first));
  servers.push_back(std::move(second));
  TestWorker worker(MakeJob(1, {100}), 0, MakeShardedPsClient(std::move(servers)));
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  EXPECT_EQ(restarted_server.fetched, 1);
  const auto results = worker.Step(0);
  ASSERT_EQ(results.status(), absl::OkStatus());
  EXPECT_FALSE(results->front().went_back);
  // Each server gets the push once.
  EXPECT_THAT(restarted_server.pushed, ElementsAre(0));
  EXPECT_THAT(other.pushed, ElementsAre(0));
}

TEST(ShardedBegin, NothingIsFetchedIfNoServerRestarted) {
  Scripted scripted(2);
  TestWorker worker(MakeJob(1, {100}), 0, MakeShardedPsClient(std::move(scripted.servers)));
  ASSERT_EQ(worker.Start(), absl::OkStatus());
  for (const ScriptedClient* client : scripted.clients) EXPECT_EQ(client->fetched, 0);
}

// The norm of the last step may arrive when its workers already leave.
TEST(ShardedEnd, MessagesThatArriveWhileClientsAreDestroyedAreNotRelayed) {
  std::vector<std::string> relayed;
  Scripted scripted(3);
  const message::NormPart part{.step = 7, .sum_of_squares = 1};
  for (ScriptedClient* client : scripted.clients) {
    client->on_send = [&](const message::ToServer&) { relayed.push_back("a message"); };
    client->on_end = [client, &part] { client->Receives(part); };
  }
  {
    TestWorker worker(MakeJob(1, {100}), 0, MakeShardedPsClient(std::move(scripted.servers)));
    ASSERT_EQ(worker.Start(), absl::OkStatus());
    ASSERT_EQ(worker.client->Leave(Soon()), absl::OkStatus());
  }
  EXPECT_THAT(relayed, ElementsAre());
}

}  // namespace
}  // namespace psring
