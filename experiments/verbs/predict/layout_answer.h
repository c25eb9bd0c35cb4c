// psring predict --layouts: the best ways to divide a transformer's training among many devices.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/layouts/layout_search.h"
#include "experiments/verbs/predict/predict.h"

namespace psring {

void AddLayoutFlags(CLI::App& verb, RawPredictFlags& raw);

// With --layouts: a workload, a number of workers, and a described network with its devices, if no flag gives
// them.
RawPredictFlags WithLayoutDefaults(RawPredictFlags raw);

// Sets what --layouts needs of `flags`, whose others are understood. InvalidArgument, with a message of one
// line: flags that exclude each other, several numbers of workers, an unknown memory, or a layout that is
// named and not possible.
absl::Status UnderstandLayoutSearch(const RawPredictFlags& raw, PredictFlags& flags);

// A found layout under each guess of what is lost (GuessesOf); `found` has the expected price.
struct RangedLayout {
  FoundLayout found;
  bool gathers = false;      // weights, so that its causes are those of such programs
  std::vector<double> logs;  // of the guesses' speeds, for RatiosOf
};
// Of the speed of `one` over that of `other`. Programs of one family share their causes. `error`: of the
// model, for each of them.
Interval RatioOf(const RangedLayout& one, const RangedLayout& other, double error);

// Which of `best` the trainer rejects for what they combine, and why it rejects the first of these; empty:
// none.
std::string WhatIsNotTrained(const LayoutQuestion& question, const std::vector<FoundLayout>& best);

// The question that `flags`, all understood, ask. Errors: those of LayoutModelOf.
absl::StatusOr<LayoutQuestion> QuestionOf(const PredictFlags& flags);

// The best five layouts, and each that is named, with their range, memory, traffic and bubble, the winner if
// its ratio to the next excludes 1, what would have to change for another one to be fastest, and which of
// them the trainer does not support. Pure. Errors: those of LayoutModelOf and FindLayouts.
struct LayoutsReport {
  std::string text;
  std::string csv;  // a line for each of them
};
absl::StatusOr<LayoutsReport> ReportOfLayouts(const PredictFlags& flags,
                                              const CheckStop& check = absl::OkStatus);
// Prints it, and writes it to the folder of --out, if one is given.
absl::Status SearchLayouts(const PredictFlags& flags, const Interrupt& interrupt, Display& display);

}  // namespace psring
