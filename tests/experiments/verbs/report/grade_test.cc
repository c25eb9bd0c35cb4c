// Grades of a class.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "experiments/verbs/report/report_verb.h"
#include "tests/has.h"

namespace psring {
namespace {

using Json = nlohmann::json;

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
