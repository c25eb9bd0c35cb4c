// A parameter server and clients of it: in process or over gRPC, depending on what the test binary links.
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
// `server`: its number, if `servers` share the job.
inline std::unique_ptr<Cluster> MakeCluster(int workers, absl::Duration timeout = absl::Seconds(30),
                                            int server = 0, int servers = 1) {
  return MakeCluster(
      ServerOptions{.workers = workers, .server = server, .servers = servers, .timeout = timeout});
}

}  // namespace psring
