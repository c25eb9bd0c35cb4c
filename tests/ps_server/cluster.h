// A parameter server and clients of it: in process or over gRPC, depending on what the test binary links.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "common/base/deadline.h"
#include "common/device/device.h"
#include "ps_server/client/ps_client.h"
#include "ps_server/server/parameter_server.h"
#include "tests/ps_server/test_job.h"

namespace psring {

class Cluster {
 public:
  virtual ~Cluster() = default;
  virtual std::unique_ptr<OneServerClient> NewClient() = 0;
  virtual ParameterServer& server() = 0;
};

std::unique_ptr<Cluster> MakeCluster(const ServerOptions& options);
inline std::unique_ptr<Cluster> MakeCluster(int workers, absl::Duration timeout = absl::Seconds(30)) {
  return MakeCluster(ServerOptions{.workers = workers, .timeout = timeout});
}

// Servers that share a job.
struct Servers {
  Servers(int workers, int count, OnWorkerLoss on_worker_loss = OnWorkerLoss::kByMode) {
    for (int server = 0; server < count; ++server) {
      clusters.push_back(MakeCluster(ServerOptions{.workers = workers,
                                                   .server = server,
                                                   .servers = count,
                                                   .timeout = absl::Seconds(30),
                                                   .on_worker_loss = on_worker_loss}));
    }
  }
  std::unique_ptr<PsClient> NewClient() const {
    std::vector<std::unique_ptr<OneServerClient>> clients;
    for (const auto& cluster : clusters) clients.push_back(cluster->NewClient());
    return MakeShardedPsClient(std::move(clients));
  }
  ParameterServer& server(int i) const { return clusters[i]->server(); }
  int count() const { return static_cast<int>(clusters.size()); }
  // All servers end OK, with what they have counted.
  std::vector<ServerStats> Ends() const {
    std::vector<ServerStats> stats;
    for (const auto& cluster : clusters) {
      EXPECT_EQ(cluster->server().WaitUntilOver(MonotonicNow() + absl::Seconds(30)), absl::OkStatus());
      stats.push_back(cluster->server().stats());
    }
    return stats;
  }

  std::vector<std::unique_ptr<Cluster>> clusters;
};

inline constexpr int64_t kSteps = 3;

// A job in which every worker has made `steps` steps without pauses.
struct JobResult {
  std::vector<std::vector<float>> weights;                          // by rank, at the end
  std::vector<std::vector<std::vector<ExchangeResult>>> exchanges;  // by rank, step, bucket
  std::vector<ServerStats> stats;                                   // by server
};
inline JobResult RunJob(const ServerJob& job, int servers = 1, int64_t steps = kSteps) {
  const Servers all(job.workers, servers);
  JobResult result;
  result.weights.resize(job.workers);
  result.exchanges.resize(job.workers);
  const uint64_t bytes = job.parameters * sizeof(float) * steps;
  RunWorkers(job, all, [&](TestWorker& worker) {
    ASSERT_EQ(worker.weights, InitialWeights(job));
    for (int64_t step = 0; step < steps; ++step) {
      const auto exchanges = worker.Step(step);
      ASSERT_EQ(exchanges.status(), absl::OkStatus());
      result.exchanges[worker.rank].push_back(*exchanges);
    }
    EXPECT_EQ(worker.client->status().traffic.payload_tx_bytes, bytes);
    EXPECT_EQ(worker.client->status().traffic.payload_rx_bytes, bytes);
    result.weights[worker.rank] = worker.weights;
  });
  result.stats = all.Ends();
  uint64_t sent = 0, received = 0;
  for (const ServerStats& stats : result.stats) {
    sent += stats.payload_tx_bytes;
    received += stats.payload_rx_bytes;
    EXPECT_EQ(stats.pushes, static_cast<int64_t>(job.buckets.size() * steps * job.workers));
  }
  EXPECT_EQ(received, bytes * job.workers);
  EXPECT_EQ(sent, received);
  return result;
}

}  // namespace psring
