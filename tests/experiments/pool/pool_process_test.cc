// The run of a class (experiments/lecture/lecture.toml, shortened), and pages given to `psring report`.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/experiments/psring_in_a_folder.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

using PoolProcessTest = PsringInAFolder;

TEST_F(PoolProcessTest, TheClassRunsOnePlanAndItsPagesArePooled) {
  const Outcome run = RunOnLinks({"compare", "--config", absl::StrCat(PSRING_LECTURE, "/lecture.toml"),
                                  "--workers", "2", "--strategies", "ring,ps-sync", "--model", "mlp-small",
                                  "--steps", "1", "--repeats", "1", "--out", "anna"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const fs::path work = root_ / "work";
  const Json summary = Json::parse(Slurp(work / "anna/summary.json"));
  ASSERT_EQ(summary.size(), 4u);  // single, none, ring, ps-sync
  for (const Json& row : summary) {
    const Json& figures = row["figures"];
    EXPECT_EQ(figures["link_mbps"], 200);
    EXPECT_EQ(figures["shaping"], "userspace") << "as in containers, which cannot create namespaces";
    if (figures["strategy"] != "ring" && figures["strategy"] != "ps-sync") continue;
    // The transports limit the rate.
    const double payload = figures["payload_tx_bytes_per_worker"];
    EXPECT_GT(figures["comm_busy_ms"].get<double>(), 0.9 * 1e3 * payload / 25e6) << figures;
    EXPECT_EQ(figures["transport"], figures["strategy"] == "ring" ? "tcp" : "grpc");
  }
  // The same page twice is one machine, and a page of another start is another one.
  fs::copy_file(work / "anna/report.html", work / "copy.html");
  std::string page = Slurp(work / "anna/report.html");
  const std::string started = Json::parse(Slurp(work / "anna/manifest.json"))["started_utc"];
  page.replace(page.find(started), started.size(), "2026-01-01T00:00:00Z");
  std::ofstream(work / "bo.html") << page;
  const Outcome pool = Succeed("report anna copy.html bo.html --out class.html");
  EXPECT_EQ(pool.err, "psring report: not pooled: copy: it is the same run as anna\n");
  EXPECT_THAT(pool.out, Has("2 machines ran the same plan.", "class.html"));
  EXPECT_GT(fs::file_size(work / "class.html"), fs::file_size(work / "bo.html"));
  // A page of the pool can be pooled again.
  EXPECT_THAT(Succeed("report class.html --out again.html --lang zh").out, Has("2 台机器运行了同一计划"));
}

TEST_F(PoolProcessTest, RejectsOtherFilesInOneLineAndKeepsItsInputs) {
  std::ofstream(root_ / "work/report.html") << "<html></html>";
  EXPECT_EQ(Refused("report report.html"),
            "psring report: the result would overwrite report.html; name another file with --out\n");
  EXPECT_THAT(Refused("report report.html missing.html --out x.html"),
              testing::AllOf(testing::StartsWith("psring report: report.html is not a page of psring report: "
                                                 "it contains no run's data\npsring report: "),
                             Has("missing.html")));
  EXPECT_FALSE(fs::exists(root_ / "work/x.html"));
  for (const char* flag : {"--cite", "--pack"})
    EXPECT_EQ(Refused(absl::StrCat("report report.html ", flag)),
              absl::StrCat("psring report: ", flag,
                           " needs a run folder, but report.html is a file; give the folder of the run\n"));
}

}  // namespace
}  // namespace psring
