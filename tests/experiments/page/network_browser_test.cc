// The page of a benchmark on several machines has the rates and latencies between them.
#include <cmath>

#include "absl/strings/str_format.h"
#include "tests/experiments/page/browser.h"
#include "tests/experiments/started.h"
#include "tests/has.h"

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

// The page of runs of one plan on several machines, made from their pages.

class PoolBrowserTest : public BrowserTest {
 protected:
  // A short run in the folder `name`.
  void Compare(const std::string& name, const std::string& more = "") {
    ASSERT_EQ(
        Failure(absl::StrCat("compare --strategies ring,ps-sync --workers 2 --data synthetic --link none "
                             "--steps 3 --warmup_steps 1 --repeats 2 --no_eval --model mlp-small --out ",
                             name, " ", more)),
        "");
  }
  std::string Errors() const { return Slurp(root_ / "psring.err"); }
};

// The figures of a row in a run's summary.csv.
Json FiguresOf(const std::filesystem::path& run, const std::string& strategy) {
  for (const Json& row : Json::parse(Slurp(run / "summary.json"))) {
    if (row["figures"]["strategy"] == strategy) return row["figures"];
  }
  return nullptr;
}

TEST_F(PoolBrowserTest, ShowsRunsOfOnePlanTogetherAndOthersSideBySide) {
  for (const char* name : {"anna", "bo"}) Compare(name);
  Compare("other", "--batch 64");
  ASSERT_EQ(Psring("report anna/report.html bo/report.html other --out pool.html"), 0) << Errors();
  EXPECT_EQ(
      Errors(),
      "psring report: not pooled: other: batch_per_worker of single x 1 is 64, but 128 in anna/report\n");
  EXPECT_THAT(Slurp(root_ / "psring.out"), Has("2 machines ran the same plan", "pool.html"));

  const Json seen = Visit(root_ / "pool.html");
  EXPECT_THAT(seen["errors"], IsEmpty());
  EXPECT_EQ(seen["violations"], 0);
  EXPECT_THAT(seen["untranslated"], IsEmpty());
  EXPECT_THAT(seen["wordless"], IsEmpty());
  const Json& pool = seen["english"]["pool"];
  EXPECT_EQ(pool["lead"], "2 machines ran the same plan.");
  EXPECT_NE(pool["lead"], seen["chinese"]["pool"]["lead"]);
  EXPECT_EQ(pool["left_out"].size(), 1u);
  EXPECT_THAT(pool["winners"][0].get<std::string>(), Has("of 2 machines"));

  double least = INFINITY, most = 0;
  for (const char* name : {"anna", "bo"}) {
    const Json ring = FiguresOf(root_ / name, "ring"), server = FiguresOf(root_ / name, "ps-sync");
    const double ratio = ring["samples_per_s"].get<double>() / server["samples_per_s"].get<double>();
    const bool counted = ring["valid"] && server["valid"];  // a disturbed machine is not
    if (counted) {
      least = std::min(least, ratio);
      most = std::max(most, ratio);
    }
    int found = 0;
    for (const Json& row : pool["each-machine-table"]) {
      if (row[0] != name || row[2] != "ring") continue;
      ++found;
      const std::string samples = absl::StrReplaceAll(row[4].get<std::string>(), {{",", ""}});
      EXPECT_NEAR(std::stod(samples), ring["samples_per_s"].get<double>(), 0.51);
      if (counted) {
        EXPECT_EQ(row[7], absl::StrFormat("%.2f", ratio));
      }
    }
    EXPECT_EQ(found, 1) << name;
  }
  for (const Json& row : pool["spread-table"]) {
    if (row[0] != "ring" || most == 0) continue;
    EXPECT_THAT(row[4].get<std::string>(), Has(absl::StrFormat("(%.2f to %.2f) × ps-sync", least, most)));
  }

  ASSERT_EQ(Psring("report anna other --out both.html"), 0) << Errors();
  EXPECT_EQ(Errors(), "") << "nothing is left out";
  EXPECT_THAT(Slurp(root_ / "psring.out"),
              Has("runs of different plans", "batch_per_worker", "ring x 2", "both.html"));
  const Json both = Visit(root_ / "both.html");
  EXPECT_THAT(both["errors"], IsEmpty());
  EXPECT_THAT(both["wordless"], IsEmpty());
  EXPECT_EQ(both["english"]["title"], "Runs of different plans, side by side");
  const Json ring = FiguresOf(root_ / "other", "ring");
  const double ratio =
      ring["samples_per_s"].get<double>() / FiguresOf(root_ / "anna", "ring")["samples_per_s"].get<double>();
  int found = 0;
  for (const Json& row : both["english"]["beside"]) {
    if (row[0] == "batch_per_worker") {
      ++found;
      EXPECT_EQ(row[1], "128");
      EXPECT_EQ(row[2], "64");
    }
    if (row[0] != "ring × 2") continue;
    ++found;
    EXPECT_THAT(row[2].get<std::string>(), Has(absl::StrFormat("× %.2f", ratio)));
  }
  EXPECT_EQ(found, 2) << both["english"]["beside"];
}

// A page whose run has the structure of psring's and hostile values.
TEST_F(PoolBrowserTest, HostilePagesCannotRunScripts) {
  const std::string hostile =
      Json("</script><script>seen.errors.push('ran')</script><img src=x onerror=\"seen.errors.push('ran')\">")
          .dump();
  for (const char* name : {"a", "b"}) {
    std::ofstream(root_ / absl::StrCat(name, ".html"))
        << "<script type=\"application/json\" id=\"data\">{\"runs\":[{\"run_id\":"
        << absl::StrReplaceAll(hostile, {{"<", "\\u003c"}}) << ",\"manifest\":{\"started_utc\":\"" << name
        << "\",\"machine\":{\"cpu\":" << absl::StrReplaceAll(hostile, {{"<", "\\u003c"}})
        << "}},\"table\":{\"recommended\":[1]},\"summary\":[{"
           "\"figures\":"
           "{\"strategy\":"
        << absl::StrReplaceAll(hostile, {{"<", "\\u003c"}})
        << ",\"workers\":2,\"samples_per_s\":3}}]}]}</script>";
  }
  ASSERT_EQ(Psring("report a.html b.html --out pool.html"), 0) << Errors();
  const Json seen = Visit(root_ / "pool.html");
  for (const Json& error : seen["errors"]) EXPECT_THAT(error.get<std::string>(), Lacks("ran"));
  EXPECT_EQ(seen["violations"], 0) << seen["errors"];
  EXPECT_EQ(seen["requests"], 0) << seen["errors"];
}

}  // namespace
}  // namespace psring
