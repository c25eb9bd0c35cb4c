// Streams between workers and a real server that are cut at random bytes.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <latch>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "ps_server/protocol/pieces.h"
#include "tests/common/net/relay.h"
#include "tests/ps_server/server_process.h"
#include "tests/ps_server/test_job.h"
#include "tests/random_moments.h"
#include "tests/test_folder.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr int kWorkers = 2;

// The number of descriptors that a process has open.
int OpenDescriptors(pid_t pid) {
  int open = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    (void)entry;
    ++open;
  }
  return open;
}

// Real servers of one job, with a proxy in front of each.
class CutServers {
 public:
  CutServers(int count, size_t most_bytes, std::mt19937& random) {
    for (int server = 0; server < count; ++server) {
      children_.push_back(std::make_unique<Child>(ServerCommand(
          PS_SERVER_BINARY, *store_, kWorkers,
          {"--record", folder_, "--timeout", "60", "--worker_timeout", "30", "--on_worker_loss", "stop"},
          server, count)));
    }
    for (int server = 0; server < count; ++server) {
      proxies_.push_back(std::make_unique<Relay>("127.0.0.1", *ParseAddress(AddressIn(*store_, server)),
                                                 most_bytes, static_cast<uint32_t>(random())));
    }
  }

  std::unique_ptr<PsClient> NewClient(Payload payload, bool own_connection = false) const {
    std::vector<std::unique_ptr<OneServerClient>> clients;
    for (const auto& proxy : proxies_) {
      clients.push_back(MakeGrpcPsClient(
          proxy->address(), {.secret = TestSecret(), .payload = payload, .own_connection = own_connection}));
    }
    return MakeShardedPsClient(std::move(clients));
  }
  void Cut(bool cuts) {
    for (const auto& proxy : proxies_) proxy->Cut(cuts);
  }
  int cuts() const {
    int cuts = 0;
    for (const auto& proxy : proxies_) cuts += proxy->cuts();
    return cuts;
  }
  int open_descriptors() const {
    int most = 0;
    for (const auto& child : children_) most = std::max(most, OpenDescriptors(child->pid()));
    return most;
  }
  // Waits for all servers to end with exit code 0; their results.
  std::vector<ServerResult> Results() {
    std::vector<ServerResult> results;
    for (size_t server = 0; server < children_.size(); ++server) {
      EXPECT_EQ(children_[server]->Wait(), 0) << children_[server]->both();
      const auto text = ReadFile(absl::StrCat(folder_, "/result-server", server, ".json"));
      EXPECT_TRUE(text.ok()) << text.status();
      results.push_back(ServerResultFromJson(text.value_or("")).value_or(ServerResult()));
    }
    return results;
  }

 private:
  const TestFolder made_;
  const std::string folder_ = made_.path();
  std::unique_ptr<RendezvousServer> store_ = NewStore();
  std::vector<std::unique_ptr<Child>> children_;
  std::vector<std::unique_ptr<Relay>> proxies_;
};

struct Outcome {
  std::vector<std::vector<float>> weights;  // by rank
  int cuts = 0;
  int descriptors = 0;  // the most that a server had open at the end
  std::vector<ServerResult> servers;
};

// Makes all steps, and a Fetch if `fetch`.
absl::Status MakeSteps(TestWorker& worker, int64_t steps, bool fetch) {
  for (int64_t step = 0; step < steps; ++step) {
    PSRING_ASSIGN_OR_RETURN(const std::vector<ExchangeResult> results, worker.Step(step));
    for (const ExchangeResult& result : results) EXPECT_FALSE(result.went_back);
  }
  PSRING_RETURN_IF_ERROR(worker.client->Barrier(2, Soon()).status());
  return fetch ? worker.Fetch() : absl::OkStatus();
}

enum class Way { kGrpc, kOwnConnection, kSharedMemory };

// Every worker makes `steps` steps and leaves; from the first step on its streams are cut repeatedly.
Outcome Train(const ServerJob& job, int servers, int64_t steps, Way way, bool cut, std::mt19937& random) {
  // Over a wire, enough for a push and its answer, because a cut push is sent from its beginning. Otherwise
  // there are only control messages.
  const bool over_wire = way != Way::kSharedMemory;
  const Payload payload = over_wire ? Payload::kGrpc : Payload::kAuto;
  const size_t step_bytes = 2 * sizeof(float) * static_cast<size_t>(job.parameters);
  CutServers cluster(servers, over_wire ? 4 * step_bytes : 4000, random);
  Outcome outcome{.weights = std::vector<std::vector<float>>(kWorkers)};
  std::atomic<int> begun = 0, done = 0;
  std::latch finished(kWorkers);
  ForEachRank(kWorkers, [&](int rank) {
    TestWorker worker(job, rank, cluster.NewClient(payload, way == Way::kOwnConnection));
    absl::Status status = worker.Start();
    // A worker whose stream is cut before the start is lost.
    if (++begun == kWorkers) cluster.Cut(cut);
    if (status.ok()) status = MakeSteps(worker, steps, /*fetch=*/over_wire);
    outcome.weights[static_cast<size_t>(rank)] = worker.weights;
    if (++done == kWorkers) outcome.descriptors = cluster.open_descriptors();
    finished.arrive_and_wait();
    if (status.ok()) status = worker.client->Leave(Soon());
    EXPECT_EQ(status, absl::OkStatus()) << "worker " << rank;
  });
  outcome.cuts = cluster.cuts();
  outcome.servers = cluster.Results();
  return outcome;
}

// Each push is in the weights once, and the servers have released its memory.
void ExpectNoLeaks(const Outcome& cut, const Outcome& uninterrupted) {
  EXPECT_GT(cut.cuts, 3);
  std::printf("%d cuts\n", cut.cuts);
  for (size_t server = 0; server < cut.servers.size(); ++server) {
    EXPECT_EQ(cut.servers[server].pushes, uninterrupted.servers[server].pushes);
    EXPECT_TRUE(cut.servers[server].lost_workers.empty());
    // A leak of one chunk per cut would exceed this.
    EXPECT_LT(cut.servers[server].peak_memory_mb, uninterrupted.servers[server].peak_memory_mb + 24);
  }
  // Each worker's last connection may still be closing: a socket, and the descriptors of shared memory.
  EXPECT_LE(cut.descriptors, uninterrupted.descriptors + 5 * kWorkers);
}

ServerJob Job(const std::string& consistency) {
  return MakeJob(kWorkers, {1000, 3 * kChunkBytes / sizeof(float) + 3, 70}, {.consistency = consistency});
}

constexpr int64_t kSteps = 15;

// No stream lasts long enough for the largest bucket.
TEST(CutsTest, ALinkThatIsAlwaysCutIsGivenUpAndNamed) {
  AtRandomMoments(1, [](std::mt19937& random) {
    const ServerJob job = Job("sync");
    CutServers cluster(1, kChunkBytes, random);
    std::latch begun(kWorkers);
    ForEachRank(kWorkers, [&](int rank) {
      TestWorker worker(job, rank, cluster.NewClient(Payload::kGrpc));
      ASSERT_EQ(worker.Start(), absl::OkStatus());
      begun.arrive_and_wait();
      cluster.Cut(true);
      const std::string error(worker.Step(0).status().message());
      // The first worker that gives up ends the job for the other.
      const bool of_its_own = absl::StrContains(
          error, absl::StrCat("the stream of worker ", rank, " to the parameter server at "));
      if (of_its_own) {
        EXPECT_TRUE(absl::StrContains(error, "consecutive times before bucket ")) << error;
        EXPECT_TRUE(absl::StrContains(error, " of step 0 was answered")) << error;
      } else {
        EXPECT_TRUE(absl::StrContains(error, absl::StrCat("worker ", 1 - rank))) << error;
      }
    });
  });
}

TEST(CutsTest, ASynchronousJobHasTheWeightsOfAnUninterruptedOne) {
  AtRandomMoments(1, [](std::mt19937& random) {
    for (const auto& [way, servers] :
         {std::pair{Way::kGrpc, 2}, {Way::kOwnConnection, 1}, {Way::kSharedMemory, 2}}) {
      SCOPED_TRACE(absl::StrCat(servers, " servers, way ", static_cast<int>(way)));
      ServerJob job = Job("sync");
      // The sum of two gradients does not depend on their order.
      job.deterministic = way != Way::kSharedMemory && servers == 2;
      const Outcome uninterrupted = Train(job, servers, kSteps, way, /*cut=*/false, random);
      const Outcome cut = Train(job, servers, kSteps, way, /*cut=*/true, random);
      const std::vector<float> expected = TrainAlone(job, kSteps);
      for (int rank = 0; rank < kWorkers; ++rank) {
        EXPECT_EQ(uninterrupted.weights[static_cast<size_t>(rank)], expected);
        EXPECT_EQ(cut.weights[static_cast<size_t>(rank)], expected);
      }
      ExpectNoLeaks(cut, uninterrupted);
    }
  });
}

TEST(CutsTest, InAsynchronousJobsEveryPushCountsOnce) {
  AtRandomMoments(1, [](std::mt19937& random) {
    for (const auto& [consistency, way] :
         {std::pair{"ssp:2", Way::kGrpc}, {"async", Way::kOwnConnection}, {"async", Way::kSharedMemory}}) {
      SCOPED_TRACE(absl::StrCat(consistency, ", way ", static_cast<int>(way)));
      const ServerJob job = Job(consistency);
      const Outcome uninterrupted = Train(job, 1, kSteps, way, /*cut=*/false, random);
      const Outcome cut = Train(job, 1, kSteps, way, /*cut=*/true, random);
      EXPECT_EQ(cut.servers[0].pushes, kWorkers * kSteps * static_cast<int64_t>(job.buckets.size()));
      ExpectNoLeaks(cut, uninterrupted);
    }
  });
}

}  // namespace
}  // namespace psring
