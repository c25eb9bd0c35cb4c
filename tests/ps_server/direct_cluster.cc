#include "common/device_factory/make_device.h"
#include "tests/ps_server/cluster.h"
#include "tests/ps_server/direct_client.h"

namespace psring {
namespace {

class DirectCluster : public Cluster {
 public:
  explicit DirectCluster(const ServerOptions& options) : server_(*device_, options) {}
  std::unique_ptr<OneServerClient> NewClient() override { return MakeDirectPsClient(server_); }
  ParameterServer& server() override { return server_; }

 private:
  std::unique_ptr<Device> device_ = *MakeDevice(PSRING_TEST_DEVICE);
  ParameterServer server_;
};

}  // namespace

std::unique_ptr<Cluster> MakeCluster(const ServerOptions& options) {
  return std::make_unique<DirectCluster>(options);
}

}  // namespace psring
