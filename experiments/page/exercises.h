// The exercises of a run's page: their answers, from the run's figures and psring's cost models. The page
// adds the texts (web/questions.js), and `psring report --grade` judges the answers of a class. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "common/io/untrusted_json.h"

namespace psring {

// The answer is a number, unless there are choices.
struct Exercise {
  std::string id, number;  // "ring_bytes", and "2.2", as the lesson calls it
  std::string texts = id;  // the texts to use, by the id of an exercise
  double value = 0;
  std::string choice;  // the right one of `choices`
  std::vector<std::string> choices;
  double tolerance = 0.03;  // relative: for what is computed from rounded figures; more for estimates
  bool exact = false;       // the answer is the same on every machine
  // What the texts state: rows by their places among the summary's rows with figures, and figures of the cost
  // models or of a benchmark.
  std::vector<size_t> rows;
  std::vector<double> terms;
  std::vector<std::pair<std::string, double>> slips;  // wrong answers that have an explanation, by its text
};

// Of a run as in run_data.h, which may be untrusted: those for which it has figures, in the lesson's order.
std::vector<Exercise> ExercisesOf(const UntrustedJson& run);

// The same for the page: [{id, number, texts, value (the number or the choice), choices, tolerance, exact,
// rows, terms, slips: [[text, value]]}].
std::string ExercisesJson(const std::string& run);

enum class Judgement { kNone, kWrong, kNear, kRight };
// Of an answer as typed; kNone if it is empty.
Judgement Judge(const Exercise& exercise, const std::string& answer);

}  // namespace psring
