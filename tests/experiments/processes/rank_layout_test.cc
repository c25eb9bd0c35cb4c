// Real trainers end with the same weights in every layout of ranks over processes.
#include <gtest/gtest.h>

#include "tests/experiments/ranks_in_processes.h"

namespace psring {
namespace {

class Synchronous : public OneProcessTest, public testing::WithParamInterface<const char*> {};

TEST_P(Synchronous, AllLayoutsEndWithTheSameBits) {
  const std::string flags = absl::StrCat("--strategy ", GetParam(), " ", kShort);
  const std::vector<std::string> apart = Trained(4, 1, flags);
  ASSERT_EQ(apart.size(), 4) << "one process per rank";
  EXPECT_EQ(Trained(2, 2, flags), apart) << "two processes of two ranks";
  EXPECT_EQ(Trained(1, 4, flags), apart) << "one process without a launcher";
}

INSTANTIATE_TEST_SUITE_P(Strategies, Synchronous,
                         testing::Values("none", "ring --transport tcp",
                                         "ring --transport shm --micro_batches 2", "ring --wire bfloat16",
                                         "direct --drop_last false", "double-binary-tree --optimizer adam",
                                         "gloo", "ps-sync --deterministic",
                                         "ps-sync --deterministic --transport tcp --servers 2",
                                         "ps-sync --deterministic --server_placement colocated"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           std::string name;
                           for (const char* c = info.param; *c != 0; ++c) {
                             if (isalnum(*c)) name += *c;
                           }
                           return name;
                         });

TEST_F(OneProcessTest, AsynchronousWorkersTrainInOneProcess) {
  for (const char* strategy : {"ps-async", "ps-ssp:1", "ps-backup:1", "ps-async --transport tcp"}) {
    SCOPED_TRACE(strategy);
    EXPECT_EQ(Trained(1, 3, absl::StrCat("--strategy ", strategy, " ", kShort)).size(), 3);
  }
}

TEST_F(OneProcessTest, TheLastProcessIsTheDedicatedServer) {
  const std::string flags =
      absl::StrCat("--strategy ps-sync --deterministic --server_placement dedicated ", kShort);
  const std::vector<std::string> weights = Trained(3, 2, flags);
  EXPECT_EQ(weights.size(), 4);
  EXPECT_EQ(weights, Trained(2, 2, absl::StrCat("--strategy ps-sync --deterministic ", kShort)));
}

}  // namespace
}  // namespace psring
