// Opens reports of real runs in a headless Chromium. Skipped without Chromium (Debian: apt-get install
// chromium).
#include <map>
#include <sstream>

#include "tests/experiments/page/sound_page.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

int Occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// As the charts have it: communication minus waiting for peers.
double Moved(const Json& row) {
  return row["comm_busy_ms"].get<double>() - (row["wait_ms"].is_null() ? 0 : row["wait_ms"].get<double>());
}

TEST_F(ReportBrowserTest, ShowsAComparison) {
  ASSERT_EQ(
      Failure(
          "compare --model mlp --strategies ring,ps-sync,ps-async --workers 2 --data synthetic --link none "
          "--steps 6 --warmup_steps 1 --repeats 1 --samples 2560 --out run"),
      "");
  EXPECT_LT(fs::file_size(root_ / "run/report.html"), 700'000u);
  const Json seen = Visit(root_ / "run/report.html");
  ExpectSound(seen, "run");
  const Json& page = seen["english"];
  EXPECT_THAT(page["not_drawn"].dump(), ::testing::Not(HasSubstr("could not be drawn")));
  for (const char* figure : {"split", "bytes", "staleness", "step", "curves", "map", "lens-chart"})
    EXPECT_TRUE(page["figures"].contains(figure)) << figure;
  // The head is the verdict, with the settings below it; the time stamp is only in the footer.
  const Json table = Json::parse(Slurp(root_ / "run/table.json"))["en"];
  EXPECT_EQ(page["lead"], table["verdict"]);
  EXPECT_EQ(page["title"], table["verdict"]);
  EXPECT_EQ(page["subtitle"], table["settings"]);
  EXPECT_EQ(page["stamp"], "run");
  ASSERT_EQ(page["facts"].size(), table["facts"].size());
  for (size_t i = 0; i < table["facts"].size(); ++i) EXPECT_EQ(page["facts"][i], table["facts"][i][1]);
  ASSERT_EQ(page["speeds"].size(), page["table"].size());
  for (size_t i = 0; i < page["speeds"].size(); ++i) EXPECT_EQ(page["speeds"][i][1], page["table"][i][2]);
  EXPECT_LE(Occurrences(page["said"], "one server on rank 0's host"), 3);
  EXPECT_THAT(page["command"].get<std::string>(), HasSubstr("--strategies ring,ps-sync,ps-async"));

  // The page shows the figures of the folder.
  const Json summary = Json::parse(Slurp(root_ / "run/summary.json"));
  ASSERT_EQ(page["table"].size(), summary.size());
  std::map<std::string, Json> figures;
  for (size_t i = 0; i < summary.size(); ++i) {
    const Json& row = summary[i]["figures"];
    figures[absl::StrCat(row["strategy"].get<std::string>(), row["workers"].get<int>())] = row;
    EXPECT_EQ(page["table"][i][0], row["strategy"]);
    EXPECT_THAT(page["table"][i][1].get<std::string>(),
                testing::StartsWith(absl::StrCat(row["workers"].get<int>())));  // may have a mark
    const std::string digits = absl::StrReplaceAll(page["table"][i][2].get<std::string>(), {{",", ""}});
    EXPECT_NEAR(std::stod(digits), row["samples_per_s"].get<double>(), 0.51);
  }
  int compared = 0;
  for (const char* figure : {"split", "bytes"}) {
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
  EXPECT_GT(compared, 30);

  // The map, and the guess after its reveal, have the run's own points.
  for (const Json& point : page["figures"]["map"]) {
    if (point["basis"] != "measured") continue;
    EXPECT_NEAR(point["server_over_ring"].get<double>(), Moved(figures["ps-sync2"]) / Moved(figures["ring2"]),
                1e-9);
    ++compared;
  }
  ASSERT_FALSE(seen["guess"].is_null());
  EXPECT_EQ(seen["guess"]["before"], 0);  // hidden until revealed
  for (const char* works : {"keyboard", "pointer"}) EXPECT_EQ(seen["guess"][works], true) << works;
  EXPECT_EQ(seen["guess"]["measured"][0]["ms"], Moved(figures["ring2"]));
  EXPECT_THAT(seen["guess"]["said"].get<std::string>(), HasSubstr("you drew"));
  EXPECT_GE(seen["questions"].size(), 10u);

  // Arrows, and the stepper on this run's clock.
  EXPECT_GE(seen["arrows"]["ring x 2"], 2);
  EXPECT_GE(seen["arrows"]["ps-sync x 2"], 4);
  EXPECT_EQ(seen["arrows_drawn"]["before"], 0) << "only at the bucket that is pointed at";
  EXPECT_GE(seen["arrows_drawn"]["most"], 1);
  EXPECT_EQ(seen["arrows_drawn"]["after"], 0);
  EXPECT_NE(seen["zoom"]["in"], seen["zoom"]["whole"]);
  EXPECT_EQ(seen["zoom"]["out"], seen["zoom"]["whole"]);
  EXPECT_EQ(seen["trace_link"], "trace.json");
  int traced = 0;
  for (const Json& score : seen["scores"]) {
    if (score["traced"].is_null()) continue;
    EXPECT_EQ(score["algorithm"], "ring");
    const std::vector<double> recorded = TracedRounds(root_ / "run", "ring x 2");
    ASSERT_EQ(score["traced"].size(), recorded.size());
    ASSERT_EQ(recorded.size(), 2u);
    for (size_t round = 0; round < recorded.size(); ++round) {
      EXPECT_NEAR(score["traced"][round][0], round == 0 ? 0 : recorded[round - 1], 2e-7);
      EXPECT_NEAR(score["traced"][round][1], recorded[round], 2e-7);
      EXPECT_THAT(seen["traced_clock"].get<std::vector<double>>(),
                  Contains(testing::DoubleNear(recorded[round], 2e-7)));
    }
    ++traced;
  }
  EXPECT_EQ(traced, 1);

  // The lens: the staleness of every update is what the server recorded.
  ASSERT_FALSE(seen["lens"].is_null());
  EXPECT_THAT(seen["lens"]["first"].get<std::string>(), HasSubstr("computed on version 0"));
  std::map<int, int64_t> stale;
  for (const Json& update : seen["lens"]["rows"]) ++stale[update["staleness"]];
  std::map<int, int64_t> recorded;
  const std::string lens_part =
      seen["lens"]["rows"][0]["records"] == "records/accuracy-1/ps-async-2" ? "accuracy" : "cost";
  std::istringstream steps(Slurp(root_ / "run/steps.jsonl"));
  for (std::string line; std::getline(steps, line);) {
    const Json step = Json::parse(line);
    if (step["strategy"] != "ps-async" || step["part"] != lens_part || step["repeat"] != 0) continue;
    for (const Json& bucket : step["buckets"]) {
      if (bucket["bucket"] == 0) ++recorded[bucket["staleness"]];
    }
  }
  EXPECT_EQ(stale, recorded);
  Photograph(root_ / "run/report.html", "compare");
}

TEST_F(ReportBrowserTest, ShowsTheOtherVerbs) {
  ASSERT_EQ(
      Failure(
          "train --strategy ring --workers 2 --data synthetic --model mlp-small --samples 2560 --out train"),
      "");
  const Json training = Visit(root_ / "train/report.html");
  ExpectSound(training, "train");
  EXPECT_THAT(training["english"]["lead"].get<std::string>(), HasSubstr("The bytes sent match theory"));
  ASSERT_EQ(Failure("bench -b 4K -e 64K -f 4 --workers 2 --transport tcp -n 3 -w 1 --out bench"), "");
  const Json bench = Visit(root_ / "bench/report.html");
  ExpectSound(bench, "bench");
  EXPECT_THAT(bench["english"]["lead"].get<std::string>(), HasSubstr("GB/s"));
  EXPECT_TRUE(bench["english"]["figures"].contains("bench-2"));
  ASSERT_EQ(
      Failure(
          "predict --workload resnet50 --strategies ring,ps-sync --workers 4,16 --link 25gbit --out predict"),
      "");
  const Json prediction = Visit(root_ / "predict/report.html");
  ExpectSound(prediction, "predict");
  EXPECT_THAT(Slurp(root_ / "predict/predict.txt"), HasSubstr("every figure is simulated"));
  // Two in one page.
  ASSERT_EQ(Psring("report train bench --out both.html --lang zh"), 0);
  EXPECT_THAT(Visit(root_ / "both.html", "reads")["errors"], IsEmpty());
}

// Runs of other kinds: ExpectSoundTexts compares every sentence with summary.json.
TEST_F(ReportBrowserTest, SentencesDescribeTheirRun) {
  const auto texts = [](const Json& seen) {
    std::string all = seen["english"]["lead"].get<std::string>() + "\n";
    for (const Json& sentence : seen["english"]["here"]) all += sentence["text"].get<std::string>() + "\n";
    return all;
  };
  const std::string virtual_clock =
      "compare --clock virtual --strategies ring,ps-sync,ps-async --workers 4 --compute_ms 10 --network_ms 3 "
      "--samples 2560 --data synthetic --model mlp-small ";
  ASSERT_EQ(Failure(virtual_clock + "--straggler 1:3 --out slow"), "");
  const Json slow = Visit(root_ / "slow/report.html", "reads");
  ExpectSoundTexts(slow, "slow");
  EXPECT_THAT(texts(slow),
              HasSubstr("do not wait for the slowest: in the synchronous run the slowest computed 30 ms"));
  EXPECT_THAT(texts(slow), HasSubstr("The update rules differ"));
  EXPECT_THAT(texts(slow), HasSubstr(" with ps-async × 4 (")) << "its accuracy";
  EXPECT_THAT(slow["english"]["reasons"][0].back().get<std::string>(),
              HasSubstr("15 ms of the exposed time is waiting for peers"));
  ASSERT_EQ(Failure(virtual_clock + "--out even"), "");
  const std::string printed = absl::StrReplaceAll(Slurp(root_ / "psring.out"), {{"\n", " "}});
  const Json even = Visit(root_ / "even/report.html", "reads");
  ExpectSoundTexts(even, "even");
  // The badge is the line on validity that the run printed.
  const Json table = Json::parse(Slurp(root_ / "even/table.json"));
  const auto line = [&](const char* language, const char* gap) {
    const Json& validity = table[language]["validity"];
    return validity["title"].get<std::string>() + gap + validity["why"].get<std::string>();
  };
  EXPECT_EQ(even["english"]["trust"], line("en", " "));
  EXPECT_EQ(even["chinese"]["trust"], line("zh", ""));
  EXPECT_EQ(even["english"]["trust_state"], "badge simulated");
  EXPECT_THAT(printed, HasSubstr(line("en", " ")));
  EXPECT_THAT(texts(even), testing::Not(HasSubstr("the slowest computed"))) << "there was no straggler";
  EXPECT_THAT(even["english"]["said"].get<std::string>(),
              HasSubstr("With 64 workers (derived): the busiest link"));
  EXPECT_THAT(even["english"]["said"].get<std::string>(), testing::Not(HasSubstr("Then run: ")));
  // A run that is not valid has the command that repeats it.
  Json wrong = table;
  for (const char* language : {"en", "zh"}) wrong[language]["validity"]["state"] = "invalid";
  std::ofstream(root_ / "even/table.json") << wrong;
  ASSERT_EQ(Psring("report even --out wrong.html"), 0);
  EXPECT_THAT(Visit(root_ / "wrong.html", "reads")["english"]["said"].get<std::string>(),
              testing::ContainsRegex("Then run: [^ ]+ compare --config [^ ]*even/config.toml"));
  ASSERT_EQ(
      Psring("predict --workload resnet50 --strategies ring,ps-sync --servers 8 --workers 8 --link 10gbit "
             "--ps_schedule serial --server_placement rank0 --out shared"),
      0);
  const Json shared = Visit(root_ / "shared/report.html", "reads");
  ExpectSoundTexts(shared, "shared");
  EXPECT_THAT(texts(shared), HasSubstr("All servers share rank 0's link"));
  ASSERT_EQ(
      Failure(
          "compare --strategies ring,ps-sync --workers 1 --link none --data synthetic --steps 3 --repeats 1 "
          "--no_eval --model mlp-small --out once"),
      "");
  const Json once = Visit(root_ / "once/report.html", "reads");
  ExpectSoundTexts(once, "once");
  ASSERT_EQ(Psring("report slow shared once --out several.html"), 0);
  EXPECT_THAT(Visit(root_ / "several.html", "reads")["errors"], IsEmpty());
}

TEST_F(ReportBrowserTest, CountsTheTokensOfAText) {
  ASSERT_EQ(
      Failure("compare --strategies ps-sync,ps-async --workers 2 --model gpt-nano --layers 1 --width 16 "
              "--heads 1 --context 16 --batch 4 --link none --steps 6 --warmup_steps 1 --repeats 1 "
              "--samples 320 --out run"),
      "");
  const Json page = Visit(root_ / "run/report.html", "reads")["english"];
  std::string said;
  for (const Json& sentence : page["here"]) absl::StrAppend(&said, sentence["text"].get<std::string>(), " ");
  EXPECT_THAT(said, HasSubstr("tokens/s, ps-sync "));
  EXPECT_THAT(said, testing::Not(HasSubstr("samples")));
  EXPECT_THAT(page["glossary"].get<std::vector<std::string>>(),
              testing::AllOf(testing::Contains("rank"), testing::Not(testing::Contains("bubble"))));
  EXPECT_THAT(page["captions"]["split"].get<std::string>(), testing::Not(HasSubstr("Bubble")));
}

TEST_F(ReportBrowserTest, ShowsAPipelineAsItRanAboveItsSimulation) {
  ASSERT_EQ(Failure("train --workers 2 --pp 2 --micro_batches 4 --batch 8 --model mlp-small --data synthetic "
                    "--steps 6 --out run"),
            "");
  EXPECT_LT(fs::file_size(root_ / "run/report.html"), 700'000u);
  const Json seen = Visit(root_ / "run/report.html", "reads");
  EXPECT_THAT(seen["errors"], IsEmpty());
  EXPECT_EQ(seen["english"]["step_rows"],
            Json::parse(R"(["rank 0", "rank 1", "rank 0", "rank 1", "The same step, simulated"])"));
  EXPECT_THAT(seen["english"]["glossary"].get<std::vector<std::string>>(), testing::Contains("bubble"));
  EXPECT_EQ(seen["chinese"]["step_rows"][4], "同一步，模拟");
  // Every action once in each half.
  std::map<std::string, std::map<std::string, int>> times;
  std::map<std::string, std::map<std::string, double>> bubbles;
  for (const Json& span : seen["english"]["figures"]["step"]) {
    const std::string basis = span["basis"], action = span["action"], rank = span["rank"].dump();
    if (!action.empty()) ++times[basis][action];
    if (span["span"] == "bubble") bubbles[basis][rank] += span["ms"].get<double>();
  }
  EXPECT_EQ(times["measured"].size(), 2 * (8 + 8));  // F and B, messages of each stage
  EXPECT_EQ(times["measured"], times["simulated"]);
  for (const auto& [action, number] : times["measured"]) EXPECT_EQ(number, 1) << action;
  EXPECT_GT(bubbles["simulated"]["1"], 0) << "it waits for the first stage's first pass";
  EXPECT_THAT(seen["english"]["captions"]["step"].get<std::string>(), HasSubstr("waited"));
  // What has not begun by the clock is pale.
  EXPECT_THAT(seen["pale"][0]["time"].get<std::string>(), testing::StartsWith("0 of "));
  EXPECT_GT(seen["pale"][0]["spans"], seen["pale"][1]["spans"]);
  EXPECT_GT(seen["pale"][1]["spans"], 0);
  EXPECT_EQ(seen["pale"][2]["spans"], 0);
}

TEST_F(ReportBrowserTest, HostileFoldersCannotRunScripts) {
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

TEST_F(ReportBrowserTest, RejectsOtherFoldersInOneLine) {
  EXPECT_EQ(Psring("report nowhere"), 2);
  EXPECT_EQ(Slurp(root_ / "psring.err"), "psring report: nowhere is not a folder\n");
  fs::create_directories(root_ / "empty");
  EXPECT_EQ(Psring("report empty"), 2);
  EXPECT_THAT(Slurp(root_ / "psring.err"), HasSubstr("psring report: empty is not a run's folder"));
}

}  // namespace
}  // namespace psring
