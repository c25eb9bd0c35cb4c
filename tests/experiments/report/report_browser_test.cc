// Real reports of real runs in a headless Chromium: opened from disk, read, played, switched. Skipped,
// visibly, where there is no Chromium (Debian: apt-get install chromium).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "experiments/predict/cost_model.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Slurp(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string FindChromium() {
  const char* path = std::getenv("PATH");
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    for (absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
      const std::string file = absl::StrCat(folder, "/", name);
      if (access(file.c_str(), X_OK) == 0) return file;
    }
  }
  return "";
}

class ReportBrowserTest : public testing::Test {
 protected:
  void SetUp() override {
    chromium_ = FindChromium();
    if (chromium_.empty()) GTEST_SKIP() << "no chromium here; apt-get install chromium";
    root_ = fs::path(testing::TempDir()) / absl::StrCat("psring-browser-", getpid());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  int Shell(const std::string& command) const {
    const int status = std::system(absl::StrCat("cd ", root_.string(), " && ", command).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int Psring(const std::string& arguments) const {
    return Shell(absl::StrCat("timeout 120 ", PSRING_BINARY, " ", arguments, " >psring.out 2>psring.err"));
  }

  // What the probe saw in the page, which is a file and nothing else.
  Json Visit(const fs::path& page) const {
    const std::string probe = absl::StrCat("<head><script>", Slurp(PSRING_PROBE), "</script>");
    std::ofstream(root_ / "probed.html") << absl::StrReplaceAll(Slurp(page), {{"<head>", probe}});
    // Virtual time: a film of a minute takes as long as drawing it does.
    const int status = Shell(absl::StrCat(
        "timeout 100 ", chromium_,
        " --headless=new --no-sandbox --disable-gpu --disable-crash-reporter --user-data-dir=profile "
        "--virtual-time-budget=70000 --enable-logging=stderr --dump-dom file://",
        (root_ / "probed.html").string(), " >dom 2>log"));
    EXPECT_EQ(status, 0) << Slurp(root_ / "log");
    EXPECT_THAT(Slurp(root_ / "log"), ::testing::Not(HasSubstr("CONSOLE")));
    const std::string dom = Slurp(root_ / "dom");
    const size_t begin = dom.find(">PROBE"), end = dom.find("EBORP<");
    if (begin == std::string::npos || end == std::string::npos) {
      ADD_FAILURE() << "the probe left nothing: " << dom.substr(0, 500);
      return Json::object();
    }
    return Json::parse(dom.substr(begin + 6, end - begin - 6));
  }

  // What holds for every page.
  void ExpectSound(const Json& seen) const {
    EXPECT_THAT(seen["errors"], IsEmpty());
    EXPECT_EQ(seen["violations"], 0);
    EXPECT_EQ(seen["requests"], 0);
    EXPECT_THAT(seen["untranslated"], IsEmpty());
    EXPECT_NE(seen["english"]["headings"], seen["chinese"]["headings"]);
    for (const auto& [figure, rows] : seen["english"]["figures"].items()) {
      if (figure == "step") continue;  // another launch is chosen by then
      EXPECT_TRUE(rows == seen["chinese"]["figures"][figure]) << figure;
    }
    for (const Json& slider : seen["sliders"]) EXPECT_EQ(slider["moves"], true) << slider;
    EXPECT_EQ(seen["sliders"].size(), 5u);
    EXPECT_GT(seen["after_one_round"], 0);
    EXPECT_EQ(seen["after_back"], 0);
    EXPECT_EQ(seen["played"].size(), 5u);
    for (const Json& panel : seen["played"]) {
      EXPECT_THAT(panel["done"].get<std::string>(), HasSubstr("\xe2\x9c\x93")) << panel;  // a tick
    }
    ExpectScoresAreTheory(seen);
  }

  // Played rounds end with the sums everywhere, after the theory's time.
  static void ExpectScoresAreTheory(const Json& seen) {
    const std::map<std::string, Scheme> schemes = {{"ring", Scheme::kRing},
                                                   {"star", Scheme::kStar},
                                                   {"direct", Scheme::kDirect},
                                                   {"halving-doubling", Scheme::kHalvingDoubling}};
    const Json& wish = seen["wish"];
    const Wires wires{
        .latency_s = wish["latency"], .bytes_per_s = wish["bandwidth"], .add_s_per_byte = wish["adding"]};
    int compared = 0;
    for (const Json& score : seen["scores"]) {
      EXPECT_EQ(score["complete"], true) << score;
      const int ranks = score["ranks"];
      const auto scheme = schemes.find(score["algorithm"]);
      if (scheme == schemes.end() || (ranks & (ranks - 1)) != 0) continue;
      const double theory = ExchangeSeconds({.scheme = scheme->second, .workers = ranks},
                                            wish["gradient"].get<double>(), wires);
      EXPECT_NEAR(score["seconds"].get<double>(), theory, 1e-9 * theory) << score;
      ++compared;
    }
    EXPECT_GE(compared, 12);
  }

  std::string chromium_;
  fs::path root_;
};

TEST_F(ReportBrowserTest, AComparisonsPageShowsItsFiguresAndPlays) {
  ASSERT_EQ(Psring("compare --strategies ring,ps-sync,ps-async --workers 2 --data synthetic --steps 6 "
                   "--warmup_steps 1 "
                   "--repeats 2 --samples 2560 --out run"),
            0)
      << Slurp(root_ / "psring.err");
  EXPECT_LT(fs::file_size(root_ / "run/report.html"), 3u << 20);
  const Json seen = Visit(root_ / "run/report.html");
  ExpectSound(seen);
  const Json& page = seen["english"];
  EXPECT_THAT(page["not_drawn"].dump(), ::testing::Not(HasSubstr("could not be drawn")));
  for (const char* figure :
       {"communication", "throughput", "split", "bytes", "learning", "staleness", "step", "curves"}) {
    EXPECT_TRUE(page["figures"].contains(figure)) << figure;
  }
  EXPECT_THAT(page["lead"].get<std::string>(), HasSubstr("a step without any communication takes"));
  EXPECT_THAT(page["command"].get<std::string>(), HasSubstr("--strategies ring,ps-sync,ps-async"));

  // What the page shows is what stands in the folder.
  const Json summary = Json::parse(Slurp(root_ / "run/summary.json"));
  ASSERT_EQ(page["table"].size(), summary.size());
  std::map<std::string, Json> figures;
  for (size_t i = 0; i < summary.size(); ++i) {
    const Json& row = summary[i]["figures"];
    figures[absl::StrCat(row["strategy"].get<std::string>(), row["workers"].get<int>())] = row;
    EXPECT_EQ(page["table"][i][0], row["strategy"]);
    EXPECT_EQ(page["table"][i][1], absl::StrCat(row["workers"].get<int>()));
    const std::string digits = absl::StrReplaceAll(page["table"][i][2].get<std::string>(), {{",", ""}});
    EXPECT_NEAR(std::stod(digits), row["samples_per_s"].get<double>(), 0.51);
  }
  int compared = 0;
  for (const char* figure : {"communication", "throughput", "split", "bytes"}) {
    for (const Json& shown : page["figures"][figure]) {
      const Json& row =
          figures[absl::StrCat(shown["strategy"].get<std::string>(), shown["workers"].get<int>())];
      for (const auto& [column, value] : shown.items()) {
        if (!row.contains(column)) continue;
        EXPECT_EQ(value, row[column]) << figure << " " << column;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 50);
}

TEST_F(ReportBrowserTest, TheOtherVerbsPages) {
  ASSERT_EQ(Psring("train --strategy ring --workers 2 --data synthetic --samples 2560 --out train"), 0)
      << Slurp(root_ / "psring.err");
  const Json training = Visit(root_ / "train/report.html");
  ExpectSound(training);
  EXPECT_THAT(training["english"]["lead"].get<std::string>(), HasSubstr("ring with 2 workers took"));
  ASSERT_EQ(Psring("bench -b 4K -e 64K -f 4 --workers 2 --transport tcp -n 3 -w 1 --out bench"), 0)
      << Slurp(root_ / "psring.err");
  const Json bench = Visit(root_ / "bench/report.html");
  ExpectSound(bench);
  EXPECT_THAT(bench["english"]["lead"].get<std::string>(), HasSubstr("GB/s"));
  EXPECT_TRUE(bench["english"]["figures"].contains("bench-2"));
  ASSERT_EQ(
      Psring(
          "predict --workload resnet50 --strategies ring,ps-sync --workers 4,16 --link 25gbit --out predict"),
      0)
      << Slurp(root_ / "psring.err");
  const Json prediction = Visit(root_ / "predict/report.html");
  ExpectSound(prediction);
  EXPECT_THAT(prediction["english"]["table"][0][0].get<std::string>(), HasSubstr("(simulated)"));
  // Two in one page.
  ASSERT_EQ(Psring("report train bench --out both.html --lang zh"), 0);
  EXPECT_THAT(Visit(root_ / "both.html")["errors"], IsEmpty());
}

TEST_F(ReportBrowserTest, HostileAndBrokenFoldersMakeAPageThatRunsNothing) {
  fs::create_directories(root_ / "run");
  const std::string hostile =
      Json("</script><script>seen.errors.push('ran')</script><img src=x onerror=\"seen.errors.push('ran')\">")
          .dump();
  std::ofstream(root_ / "run/manifest.json")
      << "{\"verb\":" << hostile << ",\"command_line\":[" << hostile << "],\"machine\":" << hostile << "}";
  std::ofstream(root_ / "run/summary.json")
      << "[{\"figures\":{\"strategy\":" << hostile
      << ",\"workers\":2,\"step_ms\":1,\"compute_ms\":1,\"comm_busy_ms\":1,\"samples_per_s\":1,\"note\":"
      << hostile << "}},{\"figures\":{\"workers\":3,\"strategy\":{\"a\":1},\"step_ms\":\"x\"}},7]";
  std::ofstream(root_ / "run/findings.txt") << Json::parse(hostile).get<std::string>() << "\n";
  std::ofstream(root_ / "run/runs.csv") << "<b>,\"\n";
  std::ofstream(root_ / "run/curves.csv") << "strategy,samples\n";
  ASSERT_EQ(Psring("report run"), 0);
  const Json seen = Visit(root_ / "run/report.html");
  EXPECT_THAT(seen["errors"], IsEmpty());
  EXPECT_EQ(seen["violations"], 0);
  EXPECT_EQ(seen["requests"], 0);
  EXPECT_THAT(seen["english"]["title"].get<std::string>(), HasSubstr("<script>"));  // as text
}

TEST_F(ReportBrowserTest, WhatIsNoRunIsOneLine) {
  EXPECT_EQ(Psring("report nowhere"), 2);
  EXPECT_EQ(Slurp(root_ / "psring.err"), "psring report: nowhere is no folder\n");
  fs::create_directories(root_ / "empty");
  EXPECT_EQ(Psring("report empty"), 2);
  EXPECT_THAT(Slurp(root_ / "psring.err"), HasSubstr("psring report: empty is not a run's folder"));
}

}  // namespace
}  // namespace psring
