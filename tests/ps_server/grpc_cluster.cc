// Over gRPC; the build defines the payload.
#include "common/device_factory/make_device.h"
#include "ps_server/wire/service.h"
#include "tests/ps_server/cluster.h"
#include "tests/test_secret.h"

namespace psring {
namespace {

class GrpcCluster : public Cluster {
 public:
  explicit GrpcCluster(const ServerOptions& options) : server_(*device_, options) {
    auto service =
        Service::Start(server_, {.secret = TestSecret(), .threads = 2});  // also on machines with one core
    PSRING_CHECK(service.ok());
    service_ = std::move(*service);
  }
  std::unique_ptr<OneServerClient> NewClient() override {
    return MakeGrpcPsClient(service_->address(), {.secret = TestSecret(),
                                                  .payload = PSRING_TEST_PAYLOAD,
                                                  .own_connection = PSRING_TEST_OWN_CONNECTION});
  }
  ParameterServer& server() override { return server_; }

 private:
  std::unique_ptr<Device> device_ = *MakeDevice(PSRING_TEST_DEVICE);
  ParameterServer server_;
  std::unique_ptr<Service> service_;
};

}  // namespace

std::unique_ptr<Cluster> MakeCluster(const ServerOptions& options) {
  return std::make_unique<GrpcCluster>(options);
}

}  // namespace psring
