// Citing and packing a run folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cli/version.h"
#include "experiments/analysis/summarise.h"
#include "experiments/page/run_data.h"
#include "experiments/run_folder/recorded_run.h"
#include "experiments/verbs/report/report_verb.h"
#include "tests/experiments/slurp.h"
#include "tests/has.h"
#include "tests/test_folder.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kManifest[] = R"({"started_utc": "2026-11-24T10:00:00Z",
  "versions": {"psring": "0.1.0", "revision": "abc_1"},
  "machine": {"cpu": "A processor", "cores": 2, "memory_mb": 8000, "system": "Debian", "kernel": "6.1"},
  "link": {"shaping": "netns", "mbps": 1000, "latency_ms": 0.5},
  "cost": {"rounds_done": 3, "warmup_steps": 2, "steps": 12}})";

std::string Summary(const std::string& more = "") {
  return absl::StrFormat(
      R"([{"figures": {"strategy": "ring", "workers": 4, "samples_per_s": 93.5, "samples_per_s_lo95": 93.4,
  "samples_per_s_hi95": 93.7, "efficiency": 0.1, "exposed_comm_ms": 1200, "comm_busy_ms": 1237.5, "model": "mlp_small",
  "parameters": 100, "batch_per_worker": 32, "lr": 0.05, "valid": true, "basis": "measured"%s}}])",
      more);
}

TEST(Cite, PrintsBibTexMethodsAndTables) {
  const auto text = CitationOf(kManifest, Summary()).value();
  EXPECT_THAT(text, Has("@software{psring,", "version = {0.1.0}", "revision abc\\_1",
                        "its own link of 1000 Mbit/s (netns), with 0.5 ms of latency",
                        "Each of 3 rounds launched every configuration once",
                        "Learning rates: 0.05; no others were tried.", "All rows are valid",
                        "| ring | 4 | 93.5 | 93.4 to 93.7 | 0.10 | 1200.0 | 37.5 |",
                        "ring & 4 & 93.5 & 93.4 to 93.7 & 0.10 & 1200.0 & 37.5 \\\\"));
}

TEST(Cite, SaysWhichRatesWereTriedAndWhatIsNotValid) {
  const auto text = CitationOf(kManifest, Summary(R"(, "lr_tried": "0.1 0.2", "valid": false)"));
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, Has("Learning rates tried: 0.1 0.2.", "1 of 1 rows are not valid"));
  EXPECT_THAT(*text, Lacks("no others were tried"));
}

TEST(Cite, CountsTheTokensOfTexts) {
  const auto text = CitationOf(kManifest, Summary(R"(, "tokens_per_s": 93.5)")).value();
  EXPECT_NE(text.find("| strategy | workers | tokens/s |"), std::string::npos) << text;
  EXPECT_EQ(text.find("samples/s"), std::string::npos) << text;
}

TEST(Cite, NamesAPipelineByItsLayout) {
  EXPECT_THAT(CitationOf(kManifest, Summary(R"(, "layout": "dp2xpp2", "program": "1f1b")")).value(),
              Has("| dp2xpp2 1f1b | 4 |"));
}

TEST(Cite, RejectsWhatIsNotARun) {
  for (const char* summary : {"", "{}", "[]", "[3]", "[{}]", R"([{"figures": {"workers": 3}}])"})
    EXPECT_FALSE(CitationOf(kManifest, summary).ok()) << summary;
  EXPECT_FALSE(CitationOf("", Summary()).ok());
  EXPECT_TRUE(CitationOf("{}", R"([{"figures": {"strategy": "ring"}}])").ok());
}

TEST(Cite, CitationFileHasTheVersionOfTheBuild) {
  EXPECT_THAT(Slurp(absl::StrCat(PSRING_EXPERIMENTS, "/../CITATION.cff")),
              Has(absl::StrCat("version: ", kVersion)));
}

// Run folders of earlier versions, one for each schema_version of the summary.
TEST(RecordedRuns, OfEverySchemaVersionCanBeReadAndCited) {
  const auto current = std::get<int64_t>(Cells(SummaryRow{}).front().value);
  std::set<std::string> versions;
  for (const auto& entry : fs::directory_iterator(
           absl::StrCat(PSRING_EXPERIMENTS, "/../tests/experiments/run_folder/recorded"))) {
    SCOPED_TRACE(entry.path());
    const std::string name = entry.path().filename().string(), version = name.substr(name.find('-') + 1);
    versions.insert(name);
    EXPECT_THAT(Slurp(entry.path() / "summary.csv"), Has(absl::StrCat("\n", version, ",tiny,")));
    const auto data = ReadRunData(entry.path().string()).value();
    EXPECT_THAT(data.json, Has("\"missing\":[]"));
    EXPECT_EQ(data.workers, std::vector<int>{2});
    EXPECT_THAT(CiteRun(entry.path().string()).value(), Has("| ps-async | 2 |"));
    const auto recorded = RecordedRunFromJson(Slurp(entry.path() / "manifest.json")).value();
    EXPECT_EQ(MakeAgain(recorded, "").arguments,
              std::vector<std::string>(recorded.command_line.begin() + 1, recorded.command_line.end()));
  }
  for (int64_t version = 1; version <= current; ++version)
    EXPECT_TRUE(versions.contains(absl::StrCat("summary-", version)))
        << "add a small run folder of schema_version " << version;
}

class Pack : public testing::Test {
 protected:
  Pack() {
    fs::create_directories(run_ / "records" / std::string(80, 'd') / "checkpoints");
    Write("manifest.json", "{}");
    Write("summary.csv", std::string(1000, 'x'));
    Write(absl::StrCat("records/", std::string(80, 'd'), "/steps.jsonl"), "");
    Write(absl::StrCat("records/", std::string(80, 'd'), "/checkpoints/model"), "weights");
    fs::create_symlink("/etc/passwd", run_ / "link");
  }
  void Write(const std::string& name, const std::string& text) { std::ofstream(run_ / name) << text; }
  int Shell(const std::string& command) {
    return std::system(absl::StrCat("cd ", work_.string(), " && ", command, " >out 2>&1").c_str());
  }

  // Unfinished archives.
  size_t Parts() {
    size_t parts = 0;
    for (const fs::path& folder : {work_, run_}) {
      for (const auto& entry : fs::directory_iterator(folder))
        parts += absl::StartsWith(entry.path().filename().string(), "psring-") ? 1 : 0;
    }
    return parts;
  }

  const TestFolder made_;
  const fs::path work_ = made_.path(), run_ = work_ / "run-1";
};

TEST_F(Pack, WritesAnArchiveWhoseHashesCanBeVerified) {
  const std::string archive = (work_ / "a.tar").string();
  ASSERT_TRUE(PackRun(run_.string(), archive).ok());
  fs::create_directories(work_ / "there");
  ASSERT_EQ(Shell("tar -xf a.tar -C there && cd there/run-1 && sha256sum -c SHA256SUMS"), 0)
      << Slurp((work_ / "out").string());
  EXPECT_EQ(Slurp((work_ / "there/run-1/summary.csv").string()), std::string(1000, 'x'));
  EXPECT_TRUE(fs::exists(work_ / "there/run-1/records" / std::string(80, 'd') / "steps.jsonl"));
  EXPECT_FALSE(fs::exists(work_ / "there/run-1/link"));
  EXPECT_FALSE(fs::exists(work_ / "there/run-1/records" / std::string(80, 'd') / "checkpoints"));
  std::ofstream(work_ / "there/run-1/summary.csv") << "y";
  EXPECT_NE(Shell("cd there/run-1 && sha256sum -c SHA256SUMS"), 0);
}

TEST_F(Pack, EqualFoldersGiveEqualArchivesThatDoNotContainThemselves) {
  const std::string archive = (run_ / "own.tar").string();
  ASSERT_TRUE(PackRun(run_.string(), archive).ok());
  const std::string first = Slurp(archive);
  ASSERT_TRUE(PackRun(run_.string(), archive).ok());
  EXPECT_EQ(first, Slurp(archive));
  EXPECT_EQ(Parts(), 0u);
}

TEST_F(Pack, FollowsNoPlantedLink) {
  std::ofstream(work_ / "victim") << "precious";
  fs::create_symlink(work_ / "victim", work_ / "a.tar");
  ASSERT_TRUE(PackRun(run_.string(), (work_ / "a.tar").string()).ok());
  EXPECT_EQ(Slurp((work_ / "victim").string()), "precious");
  Write("two\nlines", "");
  Write(std::string(150, 'n'), "");
  ASSERT_TRUE(PackRun(run_.string(), (work_ / "b.tar").string()).ok());
  fs::create_directories(work_ / "there");
  EXPECT_EQ(Shell("tar -xf b.tar -C there && cd there/run-1 && sha256sum -c SHA256SUMS"), 0)
      << Slurp((work_ / "out").string());
}

TEST_F(Pack, RejectsOtherFolders) {
  EXPECT_THAT(PackRun(work_.string(), (work_ / "a.tar").string()).message(), Has("not a run's folder"));
  EXPECT_FALSE(fs::exists(work_ / "a.tar"));
  EXPECT_EQ(Parts(), 0u);
}

// Grades of a class.

// A page without figures has the exercises 2.1 (6 rounds), 2.3 ("2") 5.2 ("ps-sync"), 6.1 and 6.2.
constexpr char kGradedRun[] = R"({"run_id":"class","manifest":{"started_utc":"2026-11-28T10:00:00Z"}})";

std::string RoundsAnswers(const std::string& tries, const std::string& start = "2026-11-28T10:00:00Z") {
  return R"({"run_id":"class","started_utc":")" + start +
         R"(","answers":[null,{"id":"ring_rounds","tries":)" + tries + "}]}";
}

TEST(GradeOfAClass, TheFirstTwoTriesOfAKnownRunCount) {
  const std::vector<Grade> grades = GradeAnswers({R"({"run_id":"other"})", kGradedRun},
                                                 {{"anna", RoundsAnswers(R"(["3","6"])")},
                                                  {"bo", RoundsAnswers(R"(["3","4","6"])")},
                                                  {"chen", RoundsAnswers(R"(["6"])", "2026-11-28T11:00:00Z")},
                                                  {"dora", "[]"},
                                                  {"emil", RoundsAnswers("7")},
                                                  {"fay", RoundsAnswers("[6]")}});
  const Json json = Json::parse(GradesJson(grades));
  ASSERT_EQ(json.size(), 6u);
  EXPECT_EQ(json[0]["right"], 1);
  EXPECT_EQ(json[0]["exercises"][0],
            Json({{"exercise", "2.1"}, {"state", "right"}, {"tries", "3, 6"}, {"expected", "6"}}));
  EXPECT_EQ(json[0]["exercises"][2]["state"], "none");
  EXPECT_EQ(json[1]["exercises"][0]["state"], "wrong");
  EXPECT_EQ(json[1]["exercises"][0]["tries"], "3, 4");
  for (const int unknown : {2, 3})
    EXPECT_EQ(json[unknown]["why"], "these are not answers for one of the runs");
  EXPECT_EQ(json[4]["right"], 0);
  EXPECT_EQ(json[5]["right"], 1);
}

TEST(GradeOfAClass, TapHasAPointForEachFileAndExercise) {
  const std::string tap = GradesTap(GradeAnswers(
      {kGradedRun},
      {{"anna", RoundsAnswers(R"(["6"])")}, {"bo # SKIP", RoundsAnswers(R"(["4\nok 9"])")}, {"chen", ""}}));
  EXPECT_EQ(tap,
            "TAP version 13\n1..11\n"
            "ok 1 - anna 2.1\n"
            "not ok 2 - anna 2.3: no answer; expected 2\n"
            "not ok 3 - anna 5.2: no answer; expected ps-sync\n"
            "not ok 4 - anna 6.1: no answer; expected 27.2727\n"
            "not ok 5 - anna 6.2: no answer; expected 4\n"
            "not ok 6 - bo \\# SKIP 2.1: 4\\x0aok 9; expected 6\n"
            "not ok 7 - bo \\# SKIP 2.3: no answer; expected 2\n"
            "not ok 8 - bo \\# SKIP 5.2: no answer; expected ps-sync\n"
            "not ok 9 - bo \\# SKIP 6.1: no answer; expected 27.2727\n"
            "not ok 10 - bo \\# SKIP 6.2: no answer; expected 4\n"
            "not ok 11 - chen: these are not answers for one of the runs\n");
}

TEST(GradeOfAClass, AFolderWithoutAnswersIsAnError) {
  EXPECT_THAT(ReadAnswers("/no/such/folder").status(),
              Fails(absl::StatusCode::kNotFound, "--grade /no/such/folder: there are no files of"));
}

}  // namespace
}  // namespace psring
