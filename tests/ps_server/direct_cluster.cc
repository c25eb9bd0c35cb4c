#include "tests/ps_server/cluster.h"

namespace psring {
namespace {

class DirectCluster : public Cluster {
 public:
  DirectCluster(int workers, absl::Duration timeout)
      : server_(*device_, {.workers = workers, .timeout = timeout}) {}
  std::unique_ptr<PsClient> NewClient() override { return MakeDirectPsClient(server_); }
  ParameterServer& server() override { return server_; }

 private:
  std::unique_ptr<Device> device_ = MakeCpuDevice();
  ParameterServer server_;
};

}  // namespace

std::unique_ptr<Cluster> MakeCluster(int workers, absl::Duration timeout) {
  return std::make_unique<DirectCluster>(workers, timeout);
}

}  // namespace psring
