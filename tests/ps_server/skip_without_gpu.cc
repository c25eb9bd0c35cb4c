// Linked into tests that need a GPU: without one all of them are skipped with the reason.
#include <gtest/gtest.h>

#include "common/device_factory/make_device.h"

namespace psring {
namespace {

class WantsAGpu : public ::testing::Environment {
 public:
  void SetUp() override {
    const auto device = MakeDevice("cuda");
    if (!device.ok()) GTEST_SKIP() << device.status().message();
  }
};

[[maybe_unused]] const ::testing::Environment* const wants_a_gpu =
    ::testing::AddGlobalTestEnvironment(new WantsAGpu);

}  // namespace
}  // namespace psring
