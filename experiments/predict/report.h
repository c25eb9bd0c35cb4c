// What a prediction comes to: rows, the table, what it means. Pure.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/simulator/prediction.h"
#include "experiments/stats/statistics.h"
#include "experiments/summary/summarise.h"
#include "experiments/texts/phrase.h"

namespace psring {

// What is not known exactly of a network that is only described: the part of the links' rate that a program
// gets, and latency. Every case is predicted at each of these; the interval is what they span.
struct NetworkGuess {
  const char* name;
  double rate, latency;  // factors
};
inline constexpr NetworkGuess kNetworkGuesses[] = {
    {"as described", 1, 1}, {"slower", 0.9, 2}, {"faster", 1.1, 0.5}};
Cluster Guessed(const Cluster& cluster, const NetworkGuess& guess);

struct PredictedRow {
  PredictCase point;
  std::vector<Prediction> guesses;  // in the order of kNetworkGuesses
  double single_samples_per_s = 0;  // of one worker

  const Prediction& expected() const { return guesses.front(); }
  Interval samples_per_s() const;
  double efficiency() const { return expected().samples_per_s / single_samples_per_s / point.workers; }
  std::string name(Language language = Language::kEnglish) const;  // "ring", "ps-sync, 8 servers"
};

// Answers beyond the rows.
struct PredictFindings {
  // By number of workers: the fewest servers with which ps-sync is no slower than the first all-reduce; 0:
  // none up to as many as there are workers.
  std::string matched_strategy;
  std::vector<std::pair<int, int>> servers_to_match;
  // Of one exchange with most workers, nothing computed: sizes in bytes, ascending, and the fastest strategy.
  std::vector<std::pair<double, PredictCase>> fastest_by_size;
};

struct PredictReport {
  std::string run_id;
  const Predictor* predictor = nullptr;
  Cluster cluster;
  std::vector<PredictedRow> rows;  // by workers, then as asked
  PredictFindings findings;
  std::vector<std::string> notes;  // what was fitted, where from
};

// Why the question lies outside what the predictor was checked on; empty: it does not.
std::vector<std::string> OutsideValidatedRange(const PredictReport& report,
                                               Language language = Language::kEnglish);

// Of the strategies that communicate, with most workers: the fastest, by how much, whether that holds for
// every guess.
struct PredictionVerdict {
  const PredictedRow* winner = nullptr;
  const PredictedRow* next = nullptr;
  double factor = 1;
  Interval interval;
  bool shown = false;  // the interval excludes 1
};
std::optional<PredictionVerdict> VerdictOf(const PredictReport& report);

// The columns of the summary (summarise.h), basis simulated.
std::vector<Cell> PredictedCells(const PredictReport& report, const PredictedRow& row);

// The question, the table, the sentences, the verdict last.
std::string PredictText(const PredictReport& report, Language language = Language::kEnglish);

}  // namespace psring
