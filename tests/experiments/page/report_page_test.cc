// The report's page without a browser: its data, and that no file of a run folder can inject markup.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/measure/arrivals.h"
#include "common/text/translate.h"
#include "experiments/page/digests.h"
#include "experiments/page/page.h"
#include "experiments/page/schedule_data.h"
#include "experiments/run_folder/run_files.h"
#include "tests/has.h"
#include "tests/test_folder.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class ReportPageTest : public testing::Test {
 protected:
  void Put(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  RunData Read() const { return ReadRunData(folder_.string()).value(); }
  Json ReadJson() const { return Json::parse(Read().json); }
  std::string Page() const { return ReportPage({Read()}); }
  // "file: why" of all that is missing.
  std::string Missing() const {
    std::string text;
    const Json run = ReadJson();
    for (const Json& entry : run["missing"])
      absl::StrAppend(&text, entry["file"].get<std::string>(), ": ", entry["why"].get<std::string>(), "\n");
    return text;
  }

  const TestFolder made_;
  const fs::path folder_ = made_.path();
};

std::string TableOfOneRow() {
  return TableJson({SummaryRow{.configuration = {.strategy = {.name = "ring"}, .workers = 2}}}, std::nullopt,
                   /*cores=*/2);
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(ReportPageTest, TextsOfARunFolderCannotBecomeMarkup) {
  Put("manifest.json", "{}");
  Put("summary.json", "[]");
  const std::string clean = Page();
  const std::string hostile =
      "</script><script>alert(1)</script><img src=x onerror=alert(2)><!--\xe2\x80\xa8 {{script}} {{d3}}";
  const std::string quoted = Json(hostile).dump();
  Put("manifest.json", absl::StrCat("{\"verb\":", quoted, ",\"command_line\":[", quoted, "]}"));
  Put("summary.json", absl::StrCat("[{\"figures\":{\"strategy\":", quoted, ",\"workers\":2}}]"));
  Put("findings.txt", hostile + "\n");
  Json table = Json::parse(TableOfOneRow());
  table["en"]["verdict"] = table["en"]["validity"]["why"] = hostile;
  Put("table.json", table.dump());
  Put("runs.csv", hostile + "\n" + hostile + "\n");
  Put("steps.jsonl", absl::StrCat("{\"strategy\":", quoted, ",\"workers\":2,\"rank\":0,\"loss\":1}\n"));
  Put("trace.json", absl::StrCat("{\"traceEvents\":[{\"ph\":\"X\",\"name\":", quoted, ",\"pid\":0}]}"));
  const std::string page = Page();
  EXPECT_EQ(Count(page, "</script"), Count(clean, "</script"));
  EXPECT_EQ(Count(page, "<script"), Count(clean, "<script"));
  EXPECT_EQ(Count(page, "<!--"), Count(clean, "<!--"));
  EXPECT_THAT(page, Lacks("<img"));
  EXPECT_THAT(page, Has("\\u003c/script\\u003e\\u003cscript\\u003ealert(1)"));
  EXPECT_THAT(page, Has("{{script}}"));           // not expanded a second time
  EXPECT_EQ(ReadJson()["findings"][0], hostile);  // unchanged
}

// The part of a page that a browser shows without JavaScript.
std::string WithoutScript(const std::string& page) {
  const size_t from = page.find("<main"), begin = page.find("<noscript>", from);
  return page.substr(begin, page.find("</noscript>", begin) - begin);
}

TEST_F(ReportPageTest, WithoutJavaScriptAReaderSeesTheVerdictAndItsValidity) {
  Put("manifest.json", R"({"verb":"compare"})");
  Json table = Json::parse(TableOfOneRow());
  table["en"]["verdict"] = "Use ring & not <b>.";
  table["en"]["facts"] = Json::parse(R"([["gain", "2 times"]])");
  table["zh"]["verdict"] = "请用 ring。";
  Put("table.json", table.dump());
  EXPECT_EQ(
      WithoutScript(Page()),
      "<noscript><div><p>Use ring &amp; not &lt;b&gt;.</p><p>gain: 2 times</p><p>Valid with limits. All "
      "ranks share one "
      "machine without links, so the times do not apply to a network.</p><p>This page draws its figures "
      "with JavaScript; the same figures are in summary.csv in its folder.</p></div>");
  EXPECT_THAT(WithoutScript(InLanguage(Language::kChinese, [&] { return Page(); })),
              Has("<div lang=\"zh-CN\"><p>请用 ring。</p><p>有限制地有效。所有 rank"));
  const auto again = RunsOfPage("anna.html", Page()).value();
  EXPECT_THAT(WithoutScript(ReportPage({Read(), again.front()})),
              Has("<p>anna: Use ring &amp; not &lt;b&gt;.</p>"));
}

TEST_F(ReportPageTest, WithoutJavaScriptAReaderSeesTheVerdictOfAPrediction) {
  Put("predict.txt", "Prediction; nothing was run.\n\nstrategy\n\nVerdict (simulated): use\none process.\n");
  Put("predict.zh.txt", "预测\n\n结论（模拟）：请只用\n一个进程。\n");
  Put("summary.json", "[]");
  EXPECT_THAT(WithoutScript(Page()), Has("<div><p>Verdict (simulated): use one process.</p>"));
  EXPECT_THAT(WithoutScript(InLanguage(Language::kChinese, [&] { return Page(); })),
              Has("<p>结论（模拟）：请只用一个进程。</p>"));
}

TEST(ForScriptElementTest, ChangesNoValue) {
  const Json json = {"<a href='x'>&amp;</a>", "\xe2\x80\xa8\xe2\x80\xa9", "<!-- ]]>"};
  const std::string text = ForScriptElement(json.dump());
  EXPECT_EQ(text.find_first_of("<>&"), std::string::npos);
  EXPECT_EQ(Json::parse(text), json);
}

TEST_F(ReportPageTest, ThePageReferencesNoOtherFile) {
  Put("manifest.json", "{}");
  const std::string page = Page();
  EXPECT_THAT(page, Has("default-src 'none'"));
  EXPECT_THAT(page, Has("Michael Bostock"));  // D3's licence
  for (const char* reference : {" src=", "<link", "@import", "url(", "<iframe"})
    EXPECT_THAT(page, Lacks(reference));
  EXPECT_LT(page.size(), 3u << 20);
  EXPECT_THAT(page, Lacks("{{"));
}

TEST_F(ReportPageTest, TheSameFolderGivesTheSameBytes) {
  Put("manifest.json", "{\"verb\":\"compare\"}");
  Put("steps.jsonl",
      "{\"strategy\":\"b\",\"workers\":2,\"rank\":0,\"loss\":1}\n{\"strategy\":\"a\",\"workers\":2,\"rank\":"
      "0}\n");
  EXPECT_EQ(Page(), Page());
}

TEST_F(ReportPageTest, ContainsTheLayoutsOfAComparison) {
  SummaryRow row{.configuration = {.strategy = {.name = "ring"}, .workers = 4}};
  row.configuration.training.pp = 2;
  row.mean.bubble_fraction = 0.125;
  row.mean.memory = {{.measured = {.params_mb = 2, .activations_mb = 5}}};
  Put("manifest.json", "{}");
  Put("summary.json", SummaryJson({row}));
  Put("table.json", TableJson({row}, std::nullopt, /*cores=*/2));
  const Json run = ReadJson(), figures = run["summary"][0]["figures"];
  EXPECT_EQ(figures["layout"], "dp2xpp2");
  EXPECT_EQ(figures["bubble_fraction"], 0.125);
  EXPECT_EQ(run["summary"][0]["memory"]["measured"][0]["activations_mb"], 5);
  EXPECT_THAT(run["table"]["en"]["rows"][0].dump(), Has("dp2xpp2", "1f1b", "12.5"));
  EXPECT_THAT(Page(), Has("dp2xpp2", "bubble_fraction"));
}

TEST_F(ReportPageTest, RunsAreReadBackFromAPageExactly) {
  Put("manifest.json", R"({"verb":"compare","notes":["</script> & \u2028"],"machine":{"cores":2}})");
  Put("summary.json", R"([{"figures":{"strategy":"ring","workers":2,"samples_per_s":221542.14680686535}}])");
  Put("findings.txt", "one <b>\ntwo\n");
  Put("steps.jsonl", "{\"strategy\":\"ring\",\"workers\":2,\"rank\":0,\"loss\":1}\n");
  Put("table.json", TableOfOneRow());
  const RunData folder = Read();
  const std::string page = InLanguage(Language::kChinese, [&] { return ReportPage({folder, folder}); });
  const auto runs = RunsOfPage("anna/report.html", page).value();
  ASSERT_EQ(runs.size(), 2u);
  for (const RunData& run : runs) {
    Json json = Json::parse(run.json);
    EXPECT_EQ(json["source"], "anna/report.html");
    EXPECT_EQ(run.name, "anna/report");
    EXPECT_EQ(run.workers, std::vector<int>{2});
    json.erase("source");
    EXPECT_EQ(json, Json::parse(folder.json));
  }
  // A page of pages keeps the names of the first pages.
  EXPECT_EQ(RunsOfPage("pool.html", ReportPage(runs)).value()[1].json, runs[1].json);
}

TEST_F(ReportPageTest, RejectsPagesThatAreNotPsrings) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">", end = "</script>";
  const auto why = [](const std::string& html) {
    const auto runs = RunsOfPage("x.html", html);
    return runs.ok() ? "" : std::string(runs.status().message());
  };
  EXPECT_EQ(why("<html></html>"), "x.html is not a page of psring report: it contains no run's data");
  EXPECT_EQ(why(begin + "{\"runs\":[{}]}"), "x.html is not a page of psring report: it is truncated");
  for (const char* data : {"", "[]", "{}", "{\"runs\":7}", "{\"runs\":[7]}", "{\"runs\":[{}"})
    EXPECT_EQ(why(begin + data + end), "x.html is not a page of psring report: its data is malformed")
        << data;
  EXPECT_EQ(why(begin + "{\"runs\":[]}" + end),
            "x.html is not a page of psring report: it contains no run's data");
}

TEST_F(ReportPageTest, PartsOfAPageWithAnotherStructureAreLeftOut) {
  const auto runs =
      RunsOfPage(
          "x.html",
          R"(<script type="application/json" id="data">{"runs":[{"run_id":7,"manifest":[],"summary":{},"table":{"en":1},
      "findings":"x","findings_zh":[1,"a"],"steps":{"loss":[3]},"trace":7,"arrivals":[[]],"missing":{},"more":1}]}</script>)")
          .value();
  const Json run = Json::parse(runs.front().json);
  for (const char* part : {"manifest", "summary", "table"}) EXPECT_TRUE(run[part].is_null()) << part;
  EXPECT_EQ(run["run_id"], "");
  EXPECT_EQ(run["findings"].size(), 0u);
  EXPECT_EQ(run["findings_zh"], Json({"a"}));
  EXPECT_EQ(run["steps"], Json::parse(DigestSteps("")));
  EXPECT_EQ(run["trace"], Json::parse(DigestTrace("")));
  EXPECT_EQ(run["arrivals"].size() + run["missing"].size(), 0u);
  EXPECT_FALSE(run.contains("more"));
}

TEST_F(ReportPageTest, ReadsPagesOnlyFromRegularFilesOfLimitedSize) {
  const fs::path pipe = folder_ / "pipe.html", large = folder_ / "large.html";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(ReadRunsOfPage(pipe).status().message(), Has("pipe.html"));
  Put("large.html", "");
  fs::resize_file(large, kMaxPageBytes + 1);
  EXPECT_THAT(ReadRunsOfPage(large).status().message(), Has("large.html"));
  EXPECT_THAT(ReadRunsOfPage(folder_ / "none.html").status().message(), Has("none.html"));
}

TEST_F(ReportPageTest, RejectsFoldersThatAreNotRuns) {
  EXPECT_THAT(ReadRunData((folder_ / "none").string()).status().message(), Has("is not a folder"));
  const fs::path before = fs::current_path();
  fs::create_directories(folder_ / "runs" / "latest");
  fs::current_path(folder_);
  EXPECT_EQ(ReadRunData("latest").status().message(), "latest is not a folder; did you mean runs/latest?");
  fs::current_path(before);
  EXPECT_THAT(ReadRunData(folder_.string()).status().message(), Has("is not a run's folder"));
}

TEST_F(ReportPageTest, ListsMissingAndMalformedFilesAndReadsTheOthers) {
  Put("manifest.json", R"({"verb":"compare","finished":false,"schema_version":7})");
  Put("summary.json", "[{\"figures\":");
  Put("findings.txt", "one\ntwo\n");
  const std::string missing = Missing();
  EXPECT_THAT(missing, Has("summary.json: not valid JSON", "manifest.json: the run did not finish",
                           "manifest.json: has layout 7", "trace.json: missing"));
  EXPECT_EQ(ReadJson()["findings"].size(), 2u);
}

TEST_F(ReportPageTest, ARunWithSomeOfItsRoundsIsNotIncomplete) {
  Put("manifest.json", R"({"verb":"compare","finished":false,"cost":{"rounds_planned":3,"rounds_done":1}})");
  EXPECT_THAT(Missing(), Lacks("the run did not finish"));
  Put("manifest.json", R"({"verb":"compare","finished":false,"cost":{"rounds_planned":3,"rounds_done":0}})");
  EXPECT_THAT(Missing(), Has("manifest.json: the run did not finish"));
}

TEST_F(ReportPageTest, ListsFilesThatAreTooLargeWithTheirSizeAndTheLimit) {
  const std::pair<const char*, uint64_t> limits[] = {{"steps.jsonl", kMaxLongBytes},
                                                     {"trace.json", kMaxLongBytes},
                                                     {"runs.csv", kMaxTextBytes},
                                                     {"table.json", kMaxTextBytes}};
  Put("manifest.json", "{}");
  for (const auto& [name, most] : limits) {
    Put(name, "");
    fs::resize_file(folder_ / name, most + 1);
  }
  const std::string missing = Missing();
  for (const auto& [name, most] : limits)
    EXPECT_THAT(missing, Has(absl::StrCat("/", name, ": it has ", most + 1, " bytes; the limit is ", most)));
}

TEST_F(ReportPageTest, ShowsTheTableThatTheRunWrote) {
  Put("manifest.json", R"({"verb":"compare"})");
  Put("summary.json", R"([{"figures":{"strategy":"ring","workers":2}}])");
  EXPECT_THAT(Missing(), Has("table.json: missing or from another version; repeat the run"));
  const std::string table = TableOfOneRow();
  Put("table.json", table);
  EXPECT_THAT(Missing(), Lacks("table.json"));
  EXPECT_EQ(ReadJson()["table"], Json::parse(table));
  EXPECT_EQ(Json::parse(table)["en"]["columns"][1]["heading"], "workers");
  EXPECT_THAT(Json::parse(table)["en"]["settings"].get<std::string>(), Has("2 workers, valid with limits"));
  EXPECT_EQ(Json::parse(table)["zh"]["rows"][0][0], "ring");
  for (
      const char* broken :
      {"[]", R"({"en":{}})", R"({"en":{"columns":[],"rows":[[1,2]],"legend":[]},"zh":3})",
       R"({"en":{"columns":[],"rows":[],"legend":[],"facts":[["a"]]},"zh":{"columns":[],"rows":[],"legend":[]}})",
       R"({"en":{"columns":[],"rows":[],"legend":[],"facts":7},"zh":{"columns":[],"rows":[],"legend":[]}})",
       R"({"en":{"columns":[],"rows":[],"legend":[],"validity":7},"zh":{"columns":[],"rows":[],"legend":[]}})"}) {
    Put("table.json", broken);
    EXPECT_TRUE(ReadJson()["table"].is_null()) << broken;
  }
}

TEST_F(ReportPageTest, AcceptsFilesOfAnyContent) {
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
    EXPECT_THAT(Page(), Has("</html>")) << text.substr(0, 40);
  }
}

TEST_F(ReportPageTest, ReadsTheOrderOfArrivalsFromTheRecords) {
  Put("manifest.json", "{}");
  EXPECT_EQ(ReadJson()["arrivals"], Json::array());
  for (const char* part : {"cost-1", "cost-2", "hostile"})
    fs::create_directories(folder_ / "records" / part / "ps-async-2");
  const std::string bytes = ToBytes({.consistency = "async", .workers = 2, .updates = {{0, 1}}});
  for (const char* part : {"cost-1", "cost-2"}) {
    Put(absl::StrCat("records/", part, "/ps-async-2/arrivals-server0.bin"), bytes);
    Put(absl::StrCat("records/", part, "/ps-async-2/launch.json"), R"({"strategy":"ps-async","workers":2})");
  }
  Put("records/hostile/ps-async-2/arrivals-server0.bin", "\xff{");
  Put("records/hostile/ps-async-2/launch.json", R"({"strategy":7,"workers":"x"})");
  const Json arrivals = ReadJson()["arrivals"];
  ASSERT_EQ(arrivals.size(), 1u);  // one launch represents its repeats
  EXPECT_EQ(arrivals[0]["name"], "ps-async x 2");
  EXPECT_EQ(arrivals[0]["records"].get<std::string>(), "records/cost-1/ps-async-2");
}

TEST(StalenessJsonTest, LessWaitingIsFasterAndStaler) {
  const Json data = Json::parse(StalenessJson());
  ASSERT_EQ(data["rules"].front(), "sync");
  ASSERT_EQ(data["rules"].back(), "async");
  for (size_t n = 0; n < data["workers"].size(); ++n) {
    const double others = data["workers"][n].get<double>() - 1;
    for (size_t spread = 0; spread < data["spreads"].size(); ++spread) {
      const Json& progress = data["progress"][n][spread];
      const Json& staleness = data["staleness"][n][spread];
      EXPECT_LE(progress.front(), progress.back());
      EXPECT_EQ(staleness.front(), 0);
      EXPECT_NEAR(staleness.back().get<double>(), others, 0.1 * others + 0.05);
      // Bounded staleness K: at most (2K + 1)(N - 1); rule 1 has K = 1.
      EXPECT_LE(data["staleness_max"][n][spread][1].get<double>(), 3 * others);
    }
  }
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

TEST(ProgramsJsonTest, AProgramsActionsAndMessagesAreThoseOfItsWalk) {
  const Json data = Json::parse(ProgramsJson());
  EXPECT_EQ(data["units"], Json::parse(R"({"F":1,"B":2,"I":1,"W":1})"));
  std::set<std::string> names;
  for (const Json& program : data["programs"]) names.insert(program["name"]);
  EXPECT_EQ(names,
            (std::set<std::string>{"gpipe", "1f1b", "interleaved:2", "zb-h1", "pipedream", "pipedream-2bw"}));
  EXPECT_EQ(data["programs"].size(), 6u * 2 * 3);  // ranks and micro-batches
  for (const Json& program : data["programs"]) {
    if (program["name"] != "1f1b" || program["ranks"] != 2 || program["micro_batches"] != 2) continue;
    EXPECT_EQ(program["actions"], Json::parse(R"(["0F0:0 0F1:1 0B0:4 0B1:7", "1F0:1 1B0:2 1F1:4 1B1:5"])"));
    EXPECT_EQ(program["sends"], Json::parse(R"(["0F0>1:1 0F1>1:2", "1B0>0:4 1B1>0:7"])"));
    EXPECT_EQ(program["end"], 9);
    EXPECT_EQ(program["bubble"], 0.3333);
    EXPECT_EQ(program["in_flight"], Json::parse("[2,1]"));
    return;
  }
  ADD_FAILURE() << "no such program";
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
    EXPECT_DOUBLE_EQ(
        seconds,
        ExchangeSeconds({.scheme = Scheme::AllReduce("halving-doubling"), .workers = workers}, bytes, wires));
  }
}

}  // namespace
}  // namespace psring
