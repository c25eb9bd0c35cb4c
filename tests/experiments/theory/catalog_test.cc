#include "experiments/theory/catalog.h"

#include <gtest/gtest.h>

namespace psring {
namespace {

TEST(CatalogTest, AnUnknownStrategySuggestsTheOneWithThatOtherNameOrTheNearest) {
  const auto catalog = CatalogFromJson(R"({
      "strategies": [{"name": "dp"}, {"name": "ring", "also_called": "ddp,allreduce"},
                     {"name": "ps-sync", "also_called": "ps"}],
      "models": []})");
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  const auto says = [&](const std::string& name) {
    return std::string(FindStrategy(*catalog, name).status().message());
  };
  EXPECT_EQ(says("ddp"), "unknown strategy 'ddp'; did you mean 'ring'?") << "not dp, which is nearer";
  EXPECT_EQ(says("AllReduce"), "unknown strategy 'AllReduce'; did you mean 'ring'?");
  EXPECT_EQ(says("ps"), "unknown strategy 'ps'; did you mean 'ps-sync'?");
  EXPECT_EQ(says("rign"), "unknown strategy 'rign'; did you mean 'ring'?");
  EXPECT_EQ(says("gossip"), "unknown strategy 'gossip'; use one of dp, ring, ps-sync");
  EXPECT_EQ(says("hierarchical"),
            "'hierarchical' is a schedule that psring predict and psring explain know, but no strategy "
            "trains with it; "
            "use ring");
  EXPECT_TRUE(FindStrategy(*catalog, "ring").ok());
}

}  // namespace
}  // namespace psring
