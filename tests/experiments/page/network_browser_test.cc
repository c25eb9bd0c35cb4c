// The page of a benchmark on several machines has the rates and latencies between them.
#include <cmath>

#include "absl/strings/str_format.h"
#include "tests/experiments/page/browser.h"
#include "tests/experiments/started.h"

namespace psring {
namespace {

using Json = nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kMachines = 3;

class NetworkBrowserTest : public BrowserTest {
 protected:
  // A benchmark on processes that represent machines, with its results in run/.
  void Bench() const {
    ForgetLauncher();
    const int port = FreePort();
    StartedOnes machines;
    for (size_t node = 0; node < kMachines; ++node) {
      machines.push_back(std::make_unique<Started>(
          Command(PSRING_BINARY,
                  absl::StrFormat("bench --backend native --algorithm ring -b 4K -e 64K -n 2 -w 0 --rounds 1 "
                                  "--nnodes %d --node_rank %d --master_addr 127.0.0.1 --master_port %d "
                                  "--timeout 20 --out %s",
                                  kMachines, node, port, (root_ / "run").string())),
          std::vector<std::string>()));
    }
    EXPECT_TRUE(WaitForAll(machines));
    for (const auto& machine : machines) EXPECT_TRUE(machine->Succeeded()) << machine->Story();
  }
};

// The page prints three digits, with separators from 1000 on.
void ExpectShown(const Json& cell, double value) {
  const std::string digits = absl::StrReplaceAll(cell["text"].get<std::string>(), {{",", ""}});
  ASSERT_FALSE(digits.empty());
  EXPECT_NEAR(std::stod(digits), value, 0.006 * value) << cell;
}

TEST_F(NetworkBrowserTest, ShowsTheRatesBetweenTheMachinesOfABenchmark) {
  Bench();
  if (HasFailure()) return;
  const Json manifest = Json::parse(Slurp(root_ / "run/manifest.json"));
  const Json& network = manifest["link"]["network"];
  const Json seen = Visit(root_ / "run/report.html", "reads");
  EXPECT_THAT(seen["errors"], IsEmpty());
  EXPECT_EQ(seen["violations"], 0);
  EXPECT_THAT(seen["untranslated"], IsEmpty());
  EXPECT_THAT(seen["wordless"], IsEmpty());
  const Json &page = seen["english"], &shown = page["network"];
  EXPECT_THAT(page["headings"], Contains("Network between 3 machines, Gbit/s"));
  EXPECT_THAT(seen["chinese"]["headings"], testing::Not(Contains("Network between 3 machines, Gbit/s")));
  // The machines, then what all send to each, and what each sends to the next.
  ASSERT_EQ(shown["head"].size(), 1 + kMachines + 2);
  ASSERT_EQ(shown["cells"].size(), kMachines);
  for (size_t from = 0; from < kMachines; ++from) {
    const Json& row = shown["cells"][from];
    ASSERT_EQ(row.size(), 1 + kMachines + 2);
    EXPECT_EQ(row[0]["text"],
              absl::StrFormat("%d (%s)", from, manifest["machines"][from].get<std::string>()));
    for (size_t to = 0; to < kMachines; ++to) {
      const Json& cell = row[1 + to];
      if (from == to) {
        EXPECT_EQ(cell["text"], "");
        continue;
      }
      ExpectShown(cell, network["pair_mb_per_s"][from][to].get<double>() * 8e-3);
      EXPECT_THAT(cell["title"].get<std::string>(), HasSubstr(absl::StrFormat("from %d to %d: ", from, to)));
      EXPECT_THAT(cell["title"].get<std::string>(), HasSubstr(", latency "));
    }
    ExpectShown(row[1 + kMachines], network["into_each_mb_per_s"][from].get<double>() * 8e-3);
    ExpectShown(row[2 + kMachines], network["all_at_once_mb_per_s"][from].get<double>() * 8e-3);
  }
  EXPECT_THAT(shown["note"].get<std::string>(),
              HasSubstr(network["slowest"]["much_slower"].get<bool>()
                            ? "The slowest is "
                            : "No node or link is much slower than the others."));
  EXPECT_EQ(seen["chinese"]["network"]["cells"].size(), kMachines);
}

}  // namespace
}  // namespace psring
