// A parameter server and the way to reach it: in process or over gRPC, whichever the test binary is linked
// with.
#pragma once

#include <memory>

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
// `server`: which one it is, where `servers` share a job.
inline std::unique_ptr<Cluster> MakeCluster(int workers, absl::Duration timeout = absl::Seconds(30),
                                            int server = 0, int servers = 1) {
  return MakeCluster(
      ServerOptions{.workers = workers, .server = server, .servers = servers, .timeout = timeout});
}

}  // namespace psring
