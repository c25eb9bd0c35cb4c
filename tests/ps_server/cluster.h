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

}  // namespace psring
