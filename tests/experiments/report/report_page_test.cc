// The report's page without a browser: what of a run folder gets into it, and that nothing there gets out of
// place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "experiments/predict/cost_model.h"
#include "experiments/report/digests.h"
#include "experiments/report/page.h"
#include "experiments/report/schedule_data.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class ReportPageTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / absl::StrCat("psring-report-", getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Put(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  RunData Read() const { return ReadRunData(folder_.string()).value(); }
  Json ReadJson() const { return Json::parse(Read().json); }
  std::string Page() const { return ReportPage({Read()}, "en"); }
  // "file: why" of all that is missing.
  std::string Missing() const {
    std::string text;
    const Json run = ReadJson();
    for (const Json& entry : run["missing"]) {
      absl::StrAppend(&text, entry["file"].get<std::string>(), ": ", entry["why"].get<std::string>(), "\n");
    }
    return text;
  }

  fs::path folder_;
};

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(ReportPageTest, NothingFromARunFolderBecomesMarkupOrScript) {
  Put("manifest.json", "{}");
  Put("summary.json", "[]");
  const std::string clean = Page();
  const std::string hostile =
      "</script><script>alert(1)</script><img src=x onerror=alert(2)><!--\xe2\x80\xa8 {{script}} {{d3}}";
  const std::string quoted = Json(hostile).dump();
  Put("manifest.json", absl::StrCat("{\"verb\":", quoted, ",\"command_line\":[", quoted, "]}"));
  Put("summary.json", absl::StrCat("[{\"figures\":{\"strategy\":", quoted, ",\"workers\":2}}]"));
  Put("findings.txt", hostile + "\n");
  Put("runs.csv", hostile + "\n" + hostile + "\n");
  Put("steps.jsonl", absl::StrCat("{\"strategy\":", quoted, ",\"workers\":2,\"rank\":0,\"loss\":1}\n"));
  Put("trace.json", absl::StrCat("{\"traceEvents\":[{\"ph\":\"X\",\"name\":", quoted, ",\"pid\":0}]}"));
  const std::string page = Page();
  EXPECT_EQ(Count(page, "</script"), Count(clean, "</script"));
  EXPECT_EQ(Count(page, "<script"), Count(clean, "<script"));
  EXPECT_EQ(Count(page, "<!--"), Count(clean, "<!--"));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, HasSubstr("\\u003c/script\\u003e\\u003cscript\\u003ealert(1)"));
  EXPECT_THAT(page, HasSubstr("{{script}}"));     // is not filled in a second time
  EXPECT_EQ(ReadJson()["findings"][0], hostile);  // the text itself is what it was
}

TEST(ForScriptElementTest, ChangesNoValue) {
  const Json json = {"<a href='x'>&amp;</a>", "\xe2\x80\xa8\xe2\x80\xa9", "<!-- ]]>"};
  const std::string text = ForScriptElement(json.dump());
  EXPECT_EQ(text.find_first_of("<>&"), std::string::npos);
  EXPECT_EQ(Json::parse(text), json);
}

TEST_F(ReportPageTest, ThePageIsOneFileThatNamesNoOther) {
  Put("manifest.json", "{}");
  const std::string page = Page();
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("Michael Bostock"));  // D3's licence
  for (const char* door : {" src=", "<link", "@import", "url(", "<iframe"})
    EXPECT_THAT(page, Not(HasSubstr(door)));
  EXPECT_LT(page.size(), 3u << 20);
  EXPECT_THAT(page, Not(HasSubstr("{{")));
}

TEST_F(ReportPageTest, TheSameFolderGivesTheSameBytes) {
  Put("manifest.json", "{\"verb\":\"compare\"}");
  Put("steps.jsonl",
      "{\"strategy\":\"b\",\"workers\":2,\"rank\":0,\"loss\":1}\n{\"strategy\":\"a\",\"workers\":2,\"rank\":"
      "0}\n");
  EXPECT_EQ(Page(), Page());
}

TEST_F(ReportPageTest, AFolderThatIsNoRunIsRefused) {
  EXPECT_THAT(ReadRunData((folder_ / "none").string()).status().message(), HasSubstr("is no folder"));
  EXPECT_THAT(ReadRunData(folder_.string()).status().message(), HasSubstr("is not a run's folder"));
}

TEST_F(ReportPageTest, WhatIsMissingOrBrokenIsListedAndTheRestStands) {
  Put("manifest.json", R"({"verb":"compare","finished":false,"schema_version":7})");
  Put("summary.json", "[{\"figures\":");
  Put("findings.txt", "one\ntwo\n");
  const std::string missing = Missing();
  EXPECT_THAT(missing, HasSubstr("summary.json: broken: no JSON"));
  EXPECT_THAT(missing, HasSubstr("manifest.json: says that the run did not end"));
  EXPECT_THAT(missing, HasSubstr("manifest.json: layout 7"));
  EXPECT_THAT(missing, HasSubstr("trace.json: not there"));
  EXPECT_EQ(ReadJson()["findings"].size(), 2u);
}

TEST_F(ReportPageTest, FilesOfOtherTypesThanOursEndNothing) {
  for (const std::string& text :
       {std::string("[]"), std::string("3"), std::string("\"x\""), std::string("\xff\xfe"),
        std::string(100'000, '['), std::string("{\"traceEvents\":3}"),
        std::string("[{\"figures\":3},{\"figures\":{\"workers\":\"two\"}},7]"),
        std::string("{\"traceEvents\":[1,{\"ph\":\"X\",\"args\":4,\"ts\":\"a\"}]}"),
        std::string("{\"rank\":0,\"workers\":1e300,\"buckets\":[1,{\"staleness\":1e300}]}")}) {
    for (const char* name :
         {"manifest.json", "summary.json", "steps.jsonl", "trace.json", "runs.csv", "findings.txt"}) {
      Put(name, text);
    }
    EXPECT_THAT(Page(), HasSubstr("</html>")) << text.substr(0, 40);
  }
}

TEST(DigestStepsTest, CountsTheStalenessOfEveryBucketAndKeepsOneRoundsLoss) {
  std::string text = "no json\n";
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (int rank = 0; rank < 2; ++rank) {
      absl::StrAppend(
          &text, R"({"part":"cost","strategy":"ps-async","workers":2,"repeat":)", repeat, R"(,"rank":)", rank,
          R"(,"samples":8,"begin_ns":1000000000,"loss":0.5,"buckets":[{"staleness":1},{"staleness":3},{"staleness":-1}]})",
          "\n");
    }
  }
  const Json digest = Json::parse(DigestSteps(text));
  EXPECT_EQ(digest["lines"], 5);
  EXPECT_EQ(digest["skipped"], 1);
  EXPECT_EQ(digest["staleness"][0]["counts"], (Json{{"1", 4}, {"3", 4}}));
  ASSERT_EQ(digest["loss"].size(), 1u);
  EXPECT_EQ(digest["loss"][0]["points"], Json::parse("[[16.0,0.0,0.5]]"));
}

TEST(DigestStepsTest, LongCurvesAreAveragedToAFewPoints) {
  std::string text;
  for (int step = 0; step < 1001; ++step) {
    absl::StrAppend(
        &text, R"({"part":"training","strategy":"ring","workers":1,"repeat":0,"rank":0,"samples":1,"loss":)",
        step, "}\n");
  }
  const Json points = Json::parse(DigestSteps(text))["loss"][0]["points"];
  EXPECT_EQ(points.size(), 143u);
  EXPECT_EQ(points[0][2], 3.0);  // of 0 to 6
}

TEST(DigestTraceTest, ShowsTheMedianStepOfRankZeroAndWhatOverlapsIt) {
  std::string text = "{\"traceEvents\":[";
  const int lengths[] = {50, 10, 30};  // us; the median is step 2, from 60 to 90
  int begin = 0;
  for (int step = 0; step < 3; ++step) {
    absl::StrAppend(&text, R"({"ph":"X","pid":0,"name":"forward","ts":)", begin, ",\"dur\":", lengths[step],
                    ",\"args\":{\"step\":", step, "}},");
    begin += lengths[step];
  }
  text += R"({"ph":"X","pid":1,"name":"communication","ts":50,"dur":15,"args":{"step":1,"bucket":4}},)";
  text += R"({"ph":"X","pid":1,"name":"early","ts":20,"dur":15,"args":{"step":1}},)";
  text += R"({"ph":"X","pid":1000000,"name":"ring x 2","ts":0,"dur":90}]})";
  const Json launch = Json::parse(DigestTrace(text))["launches"][0];
  EXPECT_EQ(launch["name"], "ring x 2");
  EXPECT_EQ(launch["spans"],
            Json::parse(R"([[0.0,"forward",-1.0,0.0,0.03],[1.0,"communication",4.0,-0.01,0.015]])"));
}

TEST(ThinCsvTest, KeepsHeaderFirstAndLast) {
  EXPECT_EQ(ThinCsv("h\n1\n2\n3\n4\n5\n", 4), "h\n1\n3\n5\n");
  EXPECT_EQ(ThinCsv("h\n1\n", 4), "h\n1\n");
}

TEST(SchedulesJsonTest, ARingsRoundsAreThoseOfItsSchedule) {
  const Json list = Json::parse(SchedulesJson({4, 2, 4, 1, 99}))["schedules"];
  EXPECT_EQ(list.size(), 10u);  // five algorithms, two and four ranks
  for (const Json& schedule : list) {
    if (schedule["algorithm"] != "ring" || schedule["ranks"] != 4) continue;
    EXPECT_EQ(schedule["rounds"].size(), 6u);
    EXPECT_EQ(schedule["rounds"][0][1], Json::parse("[0,1,0,1,1]"));
    EXPECT_EQ(schedule["rounds"][5][1], Json::parse("[0,1,3,1,0]"));
    EXPECT_EQ(schedule["added"], Json::parse("[1,1,1,0,0,0]"));
  }
}

TEST(TheoryJsonTest, ItsTermsGiveTheCostModelsSeconds) {
  const Json theory = Json::parse(TheoryJson());
  const Wires wires{
      .latency_s = 3e-5, .bytes_per_s = 2e9, .add_s_per_byte = 1e-10, .medium_bytes_per_s = 5e9};
  const double bytes = 7e6;
  for (int workers : {2, 5, 64}) {
    const Json terms = theory["schemes"]["halving-doubling"][workers - 1];
    const double seconds = terms[0].get<double>() * wires.latency_s +
                           std::max(terms[1].get<double>() * bytes / wires.bytes_per_s,
                                    terms[2].get<double>() * bytes / wires.medium_bytes_per_s) +
                           terms[3].get<double>() * bytes * wires.add_s_per_byte;
    EXPECT_DOUBLE_EQ(seconds,
                     ExchangeSeconds({.scheme = Scheme::kHalvingDoubling, .workers = workers}, bytes, wires));
  }
}

}  // namespace
}  // namespace psring
