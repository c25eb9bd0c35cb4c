// Checks the pages of all kinds of runs with axe-core, of which PSRING_AXE names the script.
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/experiments/page/browser.h"

namespace psring {
namespace {

using AxeTest = BrowserTest;

TEST_F(AxeTest, FindsNothingOnAnyKindOfPage) {
  if (std::getenv("PSRING_AXE") == nullptr)
    GTEST_SKIP() << "PSRING_AXE does not name axe.min.js; PyPI's axe-playwright-python contains it";
  const std::string small = " --data synthetic --model mlp-small --samples 2560";
  const std::string simulated =
      "compare --clock virtual --strategies ring,ps-sync,ps-async --workers 4 --compute_ms 10 --network_ms 3 "
      "--straggler 1:3" +
      small;
  for (const std::string& command : std::vector<std::string>{
           "train --strategy ps-async --workers 2 --out train" + small, simulated + " --out one",
           simulated + " --out other",
           "compare --layouts dp2,pp2 --global_batch 128 --link none --steps 4 --warmup_steps 1 --repeats 1 "
           "--no_eval --data synthetic --model mlp-small --out layouts",
           "bench -b 4K -e 64K -f 4 --workers 2 --transport tcp -n 3 -w 1 --out bench",
           "predict --workload resnet50 --strategies ring,ps-sync --workers 4,16 --link 25gbit --out predict",
           "report one other --out pool.html", "report one bench --out both.html",
           "report train one --out beside.html"}) {
    ASSERT_EQ(Psring(command), 0) << command << "\n" << Slurp(root_ / "psring.err");
  }
  for (const char* page : {"train/report.html", "one/report.html", "layouts/report.html", "bench/report.html",
                           "predict/report.html", "pool.html", "both.html", "beside.html"}) {
    for (const int width : {1280, 500}) {
      const nlohmann::json seen = Visit(root_ / page, "axe", width);
      EXPECT_THAT(seen["errors"], testing::IsEmpty()) << page;
      ASSERT_EQ(seen["axe"].size(), 2u) << page << ": English and light, Chinese and dark";
      for (const nlohmann::json& findings : seen["axe"]) EXPECT_THAT(findings, testing::IsEmpty()) << page;
    }
  }
}

}  // namespace
}  // namespace psring
