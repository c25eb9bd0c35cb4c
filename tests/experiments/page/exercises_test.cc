// The answers of a page's exercises, and what counts as right.
#include "experiments/page/exercises.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

namespace psring {
namespace {

using testing::ElementsAre;
using testing::Pair;

UntrustedJson ExerciseRow(const std::string& strategy, int workers, const UntrustedJson& more) {
  UntrustedJson figures = {{"strategy", strategy}, {"workers", workers},    {"parameters", 1000000},
                           {"basis", "measured"},  {"step_ms", 100},        {"compute_ms", 40},
                           {"comm_busy_ms", 90},   {"exposed_comm_ms", 60}, {"samples_per_s", 400},
                           {"link_mbps", 1000}};
  figures.update(more);
  return {{"figures", figures}};
}

// Of 4 workers: single, none, ring, ps-sync and ps-async.
UntrustedJson ClassRun() {
  UntrustedJson server = {{"servers", 1},
                          {"placement", "dedicated"},
                          {"ps_schedule", "serial"},
                          {"server_payload_bytes", 32000000},
                          {"comm_busy_ms", 270},
                          {"samples_per_s", 200}};
  UntrustedJson stale = server;
  stale.update(UntrustedJson{{"staleness_mean", 2.9}, {"samples_per_s", 300}});
  return {
      {"run_id", "class"},
      {"summary",
       {ExerciseRow("single", 1, {{"samples_per_s", 200}}),
        {{"figures", nullptr}},
        ExerciseRow("none", 4, UntrustedJson::object()),
        ExerciseRow("ring", 4,
                    {{"algorithm", "ring"}, {"payload_tx_bytes_per_worker", 6000000}, {"efficiency", 0.5}}),
        ExerciseRow("ps-sync", 4, server),
        ExerciseRow("ps-async", 4, stale)}}};
}

std::map<std::string, Exercise> ExercisesById(const UntrustedJson& run) {
  std::map<std::string, Exercise> exercises;
  for (const Exercise& exercise : ExercisesOf(run)) exercises[exercise.id] = exercise;
  return exercises;
}

TEST(PageExercises, AnswersAreTheRunsFiguresAndTheory) {
  const auto exercises = ExercisesById(ClassRun());
  std::map<std::string, double> values;
  for (const auto& [id, exercise] : exercises) {
    if (exercise.choices.empty()) values[exercise.number] = exercise.value;
  }
  EXPECT_THAT(values,
              ElementsAre(Pair("1.1", 32), Pair("1.2", testing::DoubleNear(1e3 * 8 * 4e6 / 125e6, 1e-9)),
                          Pair("2.1", 6), Pair("2.2", 6), Pair("3.1", 60), Pair("3.2", 30), Pair("3.3", 50),
                          Pair("4.1", 2.9), Pair("4.2", 1.5), Pair("5.1", 3),
                          Pair("6.1", testing::DoubleNear(300. / 11, 1e-9)), Pair("6.2", 4)));
  EXPECT_EQ(exercises.at("ring_limit").choice, "2");
  EXPECT_EQ(exercises.at("small").choice, "ps-sync") << "14 ms of latency against 2";
  EXPECT_TRUE(exercises.at("ring_bytes").exact);
  EXPECT_FALSE(exercises.at("exposed").exact);
  // Places among the rows with figures.
  EXPECT_THAT(exercises.at("ratio").rows, ElementsAre(2u, 3u));
  EXPECT_THAT(exercises.at("ring_bytes").slips,
              ElementsAre(Pair("one_phase", 3), Pair("twice", 8), Pair("whole", 4)));
}

TEST(PageExercises, AskOnlyWhatTheRunHasFiguresFor) {
  std::string asked;
  for (const Exercise& exercise : ExercisesOf(UntrustedJson::object())) asked += exercise.number + " ";
  EXPECT_EQ(asked, "2.1 2.3 5.2 6.1 6.2 ");
  UntrustedJson run = ClassRun();
  for (UntrustedJson& row : run["summary"]) row["has_tables"] = true;
  const auto of_tables = ExercisesById(run);
  for (const char* id : {"server_bytes", "server_time", "ring_bytes", "ratio"})
    EXPECT_FALSE(of_tables.contains(id));
  for (const char* wrong :
       {R"([])", R"({"summary":7,"bench_csv":[]})", R"({"summary":[null,{"figures":[1]}]})",
        R"({"summary":[{"figures":{"workers":1e300,"strategy":"ring"}}]})"})
    EXPECT_EQ(ExercisesOf(ParseUntrusted(wrong)).size(), 5u) << wrong;
}

TEST(PageExercises, OfARingAreNotAboutThatOfPartsOfTheModel) {
  UntrustedJson run = ClassRun();
  run["summary"].push_back(ExerciseRow("ring", 8,
                                       {{"algorithm", "ring"},
                                        {"layout", "dp4xpp2"},
                                        {"program", "1f1b"},
                                        {"payload_tx_bytes_per_worker", 9000000},
                                        {"efficiency", 0.9}}));
  UntrustedJson divided = run;
  divided["summary"].back()["figures"]["program"] = nullptr;
  divided["summary"].back()["figures"]["layout"] = "dp4xtp2";
  for (const UntrustedJson& of_one : {run, divided}) {
    const auto exercises = ExercisesById(of_one);
    for (const char* id : {"ring_bytes", "hidden", "efficiency"})
      EXPECT_EQ(exercises.at(id).rows.front(), 2u) << id;
  }
}

TEST(PageExercises, OfARunThatHidesNothingAskWhatCouldBeHidden) {
  UntrustedJson run = ClassRun();
  for (UntrustedJson& row : run["summary"]) {
    if (row["figures"].is_object()) row["figures"]["exposed_comm_ms"] = 89;
  }
  const Exercise hidden = ExercisesById(run).at("hidden");
  EXPECT_EQ(hidden.texts, "hidden_most");
  EXPECT_EQ(hidden.value, 40);
}

TEST(PageExercises, OfASimulatedRunAllAreExact) {
  UntrustedJson run = ClassRun();
  for (UntrustedJson& row : run["summary"]) {
    if (row["figures"].is_object()) row["figures"]["basis"] = "simulated";
  }
  for (const Exercise& exercise : ExercisesOf(run)) EXPECT_TRUE(exercise.exact) << exercise.id;
}

TEST(PageExercises, OfABenchmarkAskForTheRingsLargestMessage) {
  const UntrustedJson run = {
      {"bench_csv",
       "collective,algorithm,workers,size,out_of_place_algbw_gb_s,out_of_place_busbw_gb_s\n"
       "all_reduce,ring,4,1024,1,1.5\nall_reduce,ring,4,4096,2,3\nall_reduce,direct,4,8192,3,4.5\n"}};
  const Exercise busbw = ExercisesById(run).at("busbw");
  EXPECT_EQ(busbw.value, 1.5);
  EXPECT_THAT(busbw.terms, ElementsAre(4, 2, 3));
}

TEST(PageExercises, AnAnswerIsJudgedByItsToleranceAndKnownMistakes) {
  const Exercise bytes = ExercisesById(ClassRun()).at("ring_bytes");
  for (const auto& [answer, judgement] : std::map<std::string, Judgement>{{"", Judgement::kNone},
                                                                          {" 6.1", Judgement::kRight},
                                                                          {"7", Judgement::kNear},
                                                                          {"8", Judgement::kWrong},
                                                                          {"six", Judgement::kWrong},
                                                                          {"60", Judgement::kWrong}})
    EXPECT_EQ(Judge(bytes, answer), judgement) << answer;
  const Exercise rounds = ExercisesById(ClassRun()).at("ring_rounds");
  EXPECT_EQ(Judge(rounds, "6"), Judgement::kRight);
  EXPECT_EQ(Judge(rounds, "5.9"), Judgement::kWrong);
  EXPECT_EQ(Judge(ExercisesById(ClassRun()).at("small"), "ring"), Judgement::kWrong);
  const Exercise bubble = ExercisesById(ClassRun()).at("bubble");
  EXPECT_THAT(bubble.terms, ElementsAre(4, 8, 24, 33));
  for (const auto& [answer, judgement] : std::map<std::string, Judgement>{{"27.3", Judgement::kRight},
                                                                          {"25", Judgement::kNear},
                                                                          {"37.5", Judgement::kWrong},
                                                                          {"33.3", Judgement::kWrong}})
    EXPECT_EQ(Judge(bubble, answer), judgement) << answer;
}

}  // namespace
}  // namespace psring
