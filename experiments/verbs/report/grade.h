// psring report --grade: the answers of a class to the exercises of a run's page.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// A file of the page's "Download my answers" (answersText in questions.js), which is untrusted.
struct AnswersFile {
  std::string name, text;
};

struct GradedExercise {
  std::string number;    // "1.1"
  std::string state;     // of the best of the first two tries: right, near or wrong; none: no answer
  std::string tries;     // these, as typed: "3, 4"
  std::string expected;  // the right answer
};

struct Grade {
  std::string name, run_id;
  bool known = false;  // whether these are answers for one of the runs; false: `exercises` is empty
  std::vector<GradedExercise> exercises;
};

// One for each file. `runs`: as in run_data.h; a file is judged by the run with its run_id and start.
std::vector<Grade> GradeAnswers(const std::vector<std::string>& runs, const std::vector<AnswersFile>& files);

// [{name, run_id, right (a number), exercises: [{exercise, state, tries, expected}]}], or {name, why}.
std::string GradesJson(const std::vector<Grade>& grades);
// In the Test Anything Protocol: a point for each file and exercise.
std::string GradesTap(const std::vector<Grade>& grades);

// The .json files in `folder`, by name. NotFound: it has none. Other errors: a file cannot be read.
absl::StatusOr<std::vector<AnswersFile>> ReadAnswers(const std::string& folder);

}  // namespace psring
