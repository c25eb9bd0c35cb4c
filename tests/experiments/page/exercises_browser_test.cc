// The lesson's run (experiments/lecture/lecture.toml, shortened) and the exercises of its page.
#include <algorithm>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "tests/experiments/page/browser.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class ExercisesBrowserTest : public BrowserTest {
 protected:
  // The figures of a row in summary.json; null: there is none.
  Json Figures(const std::string& run, const std::string& strategy, int workers) const {
    for (const Json& row : Json::parse(Slurp(root_ / run / "summary.json"))) {
      const Json& figures = row["figures"];
      if (figures["strategy"] == strategy && figures["workers"] == workers) return figures;
    }
    return nullptr;
  }
};

// The answers by exercise, after all have been judged.
std::map<std::string, Json> AnswersOf(const Json& seen) {
  EXPECT_THAT(seen["errors"], IsEmpty());
  std::map<std::string, Json> answers;
  for (const Json& question : seen["questions"]) {
    EXPECT_THAT(question["wrong"].get<std::string>(), HasSubstr("Not quite.")) << question;
    // A hint first, and the solution after two tries.
    EXPECT_THAT(question["wrong"].get<std::string>(), Not(HasSubstr("The answer is "))) << question;
    EXPECT_GT(question["wrong"].get<std::string>().size(), std::string("Not quite. ").size()) << question;
    if (!question["twice"].is_null()) {
      EXPECT_THAT(question["twice"].get<std::string>(), HasSubstr("The answer is ")) << question;
    }
    EXPECT_THAT(question["said"].get<std::string>(), HasSubstr("Right.")) << question;
    answers[question["id"]] = question["value"];
  }
  return answers;
}

// Those whose answers do not depend on the run.
void ExpectTheoryAnswers(const std::map<std::string, Json>& answers) {
  EXPECT_EQ(answers.at("ring_limit"), "2");
  const Wires wires{.latency_s = 1e-3, .bytes_per_s = 1.25e8};
  const double ring = ExchangeSeconds({.scheme = Scheme::AllReduce("ring"), .workers = 8}, 4e3, wires);
  const double server = ExchangeSeconds(
      {.scheme = Scheme::kServerSync, .workers = 8, .place = ServerPlace::kDedicated, .pipelined = false},
      4e3, wires);
  EXPECT_EQ(answers.at("small"), ring < server ? "ring" : "ps-sync");
  EXPECT_NEAR(answers.at("bubble").get<double>(), 100 * 3. / 11, 1e-9);
  EXPECT_EQ(answers.at("in_flight"), 4);
}

TEST_F(ExercisesBrowserTest, AnswersAreThoseOfTheSummaryAndOfTheory) {
  const std::string run = absl::StrCat(
      "compare --config ", PSRING_LECTURE,
      "/lecture.toml --link 100mbit --model mlp-small --workers 2 --steps 1 --repeats 1 --out class");
  // A busy machine may not carry the rate at the moment.
  for (int tries = 0; tries < 3 && Psring(run) != 0;) ++tries;
  ASSERT_TRUE(std::filesystem::exists(root_ / "class/report.html")) << Slurp(root_ / "psring.err");
  const Json seen = Visit(root_ / "class/report.html", "answers");
  const std::map<std::string, Json> answers = AnswersOf(seen);
  ExpectTheoryAnswers(answers);
  const Json ring = Figures("class", "ring", 2), server = Figures("class", "ps-sync", 2),
             async = Figures("class", "ps-async", 2), single = Figures("class", "single", 1);
  const auto number = [](const Json& row, const char* column) { return row[column].get<double>(); };
  const auto answer = [&](const char* id) { return answers.at(id).get<double>(); };

  const double bytes = 4 * number(ring, "parameters");
  EXPECT_EQ(server["placement"], "dedicated");
  EXPECT_EQ(server["ps_schedule"], "serial");
  EXPECT_NEAR(answer("ring_bytes"), number(ring, "payload_tx_bytes_per_worker") / 1e6, 1e-9);
  EXPECT_NEAR(answer("ring_bytes"), 2.0 * 1 / 2 * bytes / 1e6, 0.01 * answer("ring_bytes"));
  EXPECT_NEAR(answer("server_bytes"), number(server, "server_payload_bytes") / 1e6, 1e-9);
  EXPECT_NEAR(answer("server_bytes"), 2.0 * 2 * bytes / 1e6, 0.01 * answer("server_bytes"));
  EXPECT_EQ(answer("ring_rounds"), 2 * (2 - 1));
  const Json wires = Json::parse(Slurp(root_ / "class/manifest.json"))["link"]["wires"];
  const double through =
      TermsOf(
          {.scheme = Scheme::kServerSync, .workers = 2, .place = ServerPlace::kDedicated, .pipelined = false},
          bytes)
          .link_bytes;
  EXPECT_NEAR(answer("server_time"), 1e3 * through / (1e6 * wires["mb_per_s"].get<double>()),
              1e-6 * answer("server_time"));
  const double per_worker = number(ring, "samples_per_s") / number(single, "samples_per_s") / 2;
  EXPECT_NEAR(answer("efficiency"), 100 * per_worker, 1 * per_worker);
  EXPECT_NEAR(answer("staleness"), number(async, "staleness_mean"), 1e-9);
  EXPECT_NEAR(answer("speedup"), number(async, "samples_per_s") / number(server, "samples_per_s"), 1e-9);
  const auto moved = [&](const Json& row) {
    return number(row, "comm_busy_ms") - (row["wait_ms"].is_null() ? 0 : number(row, "wait_ms"));
  };
  EXPECT_NEAR(answer("ratio"), moved(server) / moved(ring), 1e-9);
  // From theory to the step, in one table.
  const Json factors = seen["english"]["factors"];
  ASSERT_EQ(factors.size(), 4) << factors;
  const auto factor = [](double server_takes, double ring_takes) {
    return absl::StrFormat("%.2f (", server_takes / ring_takes);
  };
  EXPECT_THAT(factors[0][1].get<std::string>(), StartsWith(factor(through / bytes, 1))) << "2N over 2(N-1)/N";
  EXPECT_THAT(factors[1][1].get<std::string>(),
              StartsWith(factor(number(server, "predicted_comm_ms"), number(ring, "predicted_comm_ms"))));
  EXPECT_THAT(factors[2][1].get<std::string>(), StartsWith(factor(moved(server), moved(ring))));
  EXPECT_THAT(factors[3][1].get<std::string>(),
              StartsWith(factor(number(ring, "samples_per_s"), number(server, "samples_per_s"))));
  const bool shorter =
      moved(server) < number(server, "predicted_comm_ms") || moved(ring) < number(ring, "predicted_comm_ms");
  EXPECT_EQ(absl::StrContains(factors[2][0].get<std::string>(), "shorter than theory"), shorter);
  const auto [least, most] = std::minmax({number(ring, "compute_ms"), number(server, "compute_ms")});
  EXPECT_EQ(absl::StrContains(factors[3][0].get<std::string>(), "as long in both"),
            most - least <= 0.1 * least);
  // The buckets, and what the server's link lets asynchronous workers push, by the cost model.
  std::map<std::string, std::string> here;
  for (const Json& sentence : seen["english"]["here"]) here[sentence["key"]] = sentence["text"];
  double sizes = 0;
  for (const Json& row : Json::parse(Slurp(root_ / "class/summary.json"))) {
    if (row["figures"]["strategy"] != "ring") continue;
    for (const Json& size : row["buckets"]["bytes"]) {
      EXPECT_THAT(here["here_sizes"], HasSubstr(absl::StrFormat("%.3g", 1e-6 * size.get<double>())));
      sizes += size.get<double>();
    }
  }
  EXPECT_NEAR(sizes, bytes, 0.01 * bytes);
  const auto most_pushes = [&](int workers) {
    const CommPattern all{
        .scheme = Scheme::kServerSync, .workers = workers, .place = ServerPlace::kDedicated};
    const double s = TermsOf(all, bytes).link_bytes / workers / (1e6 * wires["mb_per_s"].get<double>());
    const double own_ms = number(async, "compute_ms") + number(async, "predicted_comm_ms");
    return std::min(1e3 * workers / own_ms, 1 / s);
  };
  EXPECT_THAT(here["here_queue"],
              HasSubstr(absl::StrFormat("4 workers push at most %.3g times", most_pushes(4))));
  EXPECT_THAT(here["here_queue"], HasSubstr(absl::StrFormat("64 at most %.3g times", most_pushes(64))));
  // If almost nothing was hidden, the exercise is about what could be.
  const double all = std::max(number(ring, "comm_busy_ms"), number(ring, "exposed_comm_ms"));
  const double hidden = all - number(ring, "exposed_comm_ms");
  EXPECT_NEAR(answer("hidden"), hidden < 0.05 * all ? std::min(all, number(ring, "compute_ms")) : hidden,
              1e-9);
  EXPECT_TRUE(answers.contains("exposed"));
  // Bytes and rounds follow from the plan; times and staleness were measured.
  const Json& exact = seen["handed_in"]["marks"];
  for (const char* id : {"ring_rounds", "ring_bytes", "server_bytes", "small"})
    EXPECT_EQ(exact[id], true) << id;
  for (const char* id : {"exposed", "efficiency", "staleness", "speedup"}) EXPECT_EQ(exact[id], false) << id;

  // All that the lesson names (documents_test.py): those of exercises.cc but 2.4, which needs a benchmark.
  std::string numbers;
  for (const Json& question : seen["questions"]) numbers += question["number"].get<std::string>();
  EXPECT_EQ(
      numbers,
      "Exercise 1.1. Exercise 1.2. Exercise 2.1. Exercise 2.2. Exercise 2.3. Exercise 3.1. Exercise 3.2. "
      "Exercise 3.3. Exercise 4.1. Exercise 4.2. Exercise 5.1. Exercise 5.2. Exercise 6.1. Exercise 6.2. ");

  // The same page if worker 0 had made most of the samples.
  Json summary = Json::parse(Slurp(root_ / "class/summary.json"));
  for (Json& row : summary) {
    if (row["figures"]["strategy"] != "ps-async") continue;
    row["figures"]["most_samples_share"] = 0.9;
    for (Json& worker : row["workers"]["figures"])
      worker["samples_per_s"] = worker["worker"] == 0 ? 900 : 100;
  }
  std::ofstream(root_ / "class/summary.json") << summary;
  ASSERT_EQ(Failure("report class"), "");
  const Json uneven = Visit(root_ / "class/report.html", "reads")["english"];
  std::vector<std::string> bars;
  for (const Json& row : uneven["figures"]["split"]) {
    if (row["strategy"] == "ps-async") bars.push_back(row["of_workers"]);
  }
  EXPECT_EQ(bars, (std::vector<std::string>{"worker 0", "others"})) << "a bar for each class of workers";
  for (const char* figure : {"split", "bytes"})
    EXPECT_THAT(uneven["captions"][figure].get<std::string>(),
                HasSubstr("One worker makes 90% of the samples of ps-async × 2"));
}

// On a virtual clock, communication follows the computation.
TEST_F(ExercisesBrowserTest, OfARunThatHidesNothingAskWhatCouldBeHidden) {
  ASSERT_EQ(
      Failure("compare --clock virtual --strategies ring,ps-sync --workers 4 --compute_ms 10 --network_ms 30 "
              "--samples 2560 --data synthetic --model mlp-small --repeats 1 --out apart"),
      "");
  const Json seen = Visit(root_ / "apart/report.html", "answers");
  EXPECT_NEAR(AnswersOf(seen).at("hidden").get<double>(), 10, 1e-6);
  const std::string reason = seen["english"]["reasons"][0].back();
  EXPECT_THAT(reason, HasSubstr("Nothing was hidden. The computation takes 10 ms"));
  // The timeline is that of a recorded run, which hides half.
  const Json& page = seen["english"];
  const auto example = std::ranges::find_if(
      page["here"], [](const Json& sentence) { return sentence["key"] == "here_example"; });
  ASSERT_NE(example, page["here"].end());
  EXPECT_THAT(
      (*example)["text"].get<std::string>(),
      HasSubstr("ring × 2 of the lesson at 200 Mbit/s (measured): 210 ms of communication = 113 hidden + "
                "89.6 exposed + 7.3 waiting"));
  ASSERT_FALSE(page["figures"]["step"].empty());
  for (const Json& span : page["figures"]["step"]) EXPECT_EQ(span["run_id"], "lecture.toml") << span;
  EXPECT_THAT(page["captions"]["step"].get<std::string>(), HasSubstr("This step took 283 ms (measured)."))
      << "of a simulated run, too";
}

// Of a model with tables, bytes and times do not follow from the size of a gradient.
TEST_F(ExercisesBrowserTest, OfTablesAskNothingAboutTheSizeOfAGradient) {
  ASSERT_EQ(
      Failure("compare --model dlrm-small --data zipf:3000:1.05 --strategies ring,ps-sync,hybrid --workers "
              "2 --steps 3 --repeats 1 --batch 32 --no_eval --link none --out tables"),
      "");
  const Json seen = Visit(root_ / "tables/report.html", "answers");
  const std::map<std::string, Json> answers = AnswersOf(seen);
  ExpectTheoryAnswers(answers);
  for (const char* id : {"server_bytes", "server_time", "ring_bytes", "ratio"})
    EXPECT_FALSE(answers.contains(id)) << id;
  EXPECT_THAT(seen["english"]["captions"]["map"].get<std::string>(),
              HasSubstr("The model of this run has tables."));
  for (const Json& sentence : seen["english"]["here"]) EXPECT_NE(sentence["key"], "here_ring") << sentence;
  EXPECT_THAT(seen["english"]["factors"], IsEmpty());
}

// A page without a run on this machine: the lecturer's, from a prediction.
TEST_F(ExercisesBrowserTest, NeedOnlyTheLecturersPage) {
  ASSERT_EQ(Failure("predict --workload resnet50 --strategies ring,ps-sync --workers 4,8 --link 1gbit "
                    "--server_placement dedicated --ps_schedule serial --out lecturer"),
            "");
  const Json seen = Visit(root_ / "lecturer/report.html", "answers");
  const std::map<std::string, Json> answers = AnswersOf(seen);
  ExpectTheoryAnswers(answers);
  EXPECT_EQ(answers.at("ring_rounds"), 2 * (8 - 1));
  // N²/(N-1)
  EXPECT_NEAR(answers.at("ratio").get<double>(), 64.0 / 7, 0.02 * 64 / 7);
  for (const char* id : {"server_bytes", "server_time", "ring_bytes"})
    EXPECT_TRUE(answers.contains(id)) << id;

  // Answers of a class.
  const Json& handed_in = seen["handed_in"];
  EXPECT_EQ(handed_in["hidden"], false) << "the button to download them";
  for (const auto& [id, exact] : handed_in["marks"].items())
    EXPECT_EQ(exact, true) << id << " of a prediction";
  std::filesystem::create_directory(root_ / "answers");
  const std::string file = handed_in["file"];
  std::ofstream(root_ / "answers/anna.json") << file;
  Json right = Json::parse(file);
  for (size_t i = 0; i < right["answers"].size(); ++i)
    right["answers"][i]["tries"] = {seen["questions"][i]["value"]};
  std::ofstream(root_ / "answers/bo.json") << right;
  ASSERT_EQ(Failure("report lecturer/report.html --grade answers"), "");
  const Json grades = Json::parse(Slurp(root_ / "grades.json"));
  ASSERT_EQ(grades.size(), 2);
  EXPECT_EQ(grades[0]["right"], 2) << "those with choices; of the others, the first two tries were wrong";
  EXPECT_EQ(grades[0]["exercises"].size(), answers.size());
  EXPECT_EQ(grades[1]["right"], answers.size());
}

}  // namespace
}  // namespace psring
