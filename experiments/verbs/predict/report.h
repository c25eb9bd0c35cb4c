// The results of a prediction: rows, table and conclusions. Pure.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "experiments/analysis/summarise.h"
#include "experiments/simulator/pipeline.h"
#include "experiments/simulator/prediction.h"
#include "experiments/stats/statistics.h"
#include "experiments/verbs/predict/causes.h"

namespace psring {

struct PredictedRow {
  PredictCase point;
  std::vector<Constants> constants;  // GuessesOf the prediction's causes
  std::vector<Prediction> guesses;   // with these constants
  double single_samples_per_s = 0;   // of one worker
  Situation situation;
  std::string system = "none";  // source of the constants, as --system

  const Prediction& expected() const { return guesses.front(); }
  // In 9 of 10 cases. With --system none, only the model's own error.
  Interval samples_per_s() const;
  double efficiency() const { return expected().samples_per_s / single_samples_per_s / point.workers; }
  // What the calibration does not cover; empty without constants of published systems.
  std::vector<std::string> outside() const;
  double error() const { return ModelError(outside().size()); }
  // Of an asynchronous strategy, if one worker has more than kUnevenShare (row_queries.h) times its equal
  // share: of all samples, its share.
  std::optional<double> uneven_share() const;
  // "ring", "ps-sync on 8 servers"; with the share of that worker.
  std::string name() const;
};

// Conclusions from further simulations.
struct PredictFindings {
  // (workers, servers): the fewest servers with which the first synchronous server strategy is no slower than
  // `matched_strategy`, the first all-reduce, within 0.5%. 0: even one server per worker is slower.
  std::string matched_strategy;
  std::vector<std::pair<int, int>> servers_to_match;
  // (bytes, case): the fastest strategy for one exchange with the most workers, without computing; nothing if
  // none is shown to be. Ascending.
  std::vector<std::pair<double, std::optional<PredictCase>>> fastest_by_size;
  // If the verdict's winner does little: from which rate of the links its workers do half of their work, in
  // bits/s. Infinity: no rate suffices.
  std::optional<double> half_work_bits_per_s;
};

// A pipeline on the devices of the PredictedRow with the same index.
struct PipelineRow {
  PipelineCase point;
  PipelinePrediction prediction;
};

struct PredictReport {
  std::string run_id;
  const Predictor* predictor = nullptr;
  Cluster cluster;
  bool servers_per_node = false;   // --servers nodes
  std::vector<PredictedRow> rows;  // by workers, then in the order of the flags
  PredictFindings findings;
  std::vector<std::string> notes;  // values fitted from a --profile
  // --pp. `predictor` is then that of a data-parallel worker's share of the global batch.
  std::vector<PipelineRow> pipelines;
  const Workload* micro_batch = nullptr;
  // With the most workers: the factor of the links' rate, a power of two, with which the slower one of the
  // two is faster; between nodes, or inside a node if there is one. Nothing: none from 1/kMaxLinkFactor to
  // kMaxLinkFactor.
  std::optional<double> link_factor;

  int64_t GlobalBatch(int workers) const;  // of a synchronous step
};
inline constexpr double kMaxLinkFactor = 1024;

int MostWorkers(const PredictReport& report);

// Whether no row has constants of published systems: --system none.
bool DescribedOnly(const PredictReport& report);

// Whether the workers of `row` do less than half of the work that they would do without communication.
bool DoesLittle(const PredictedRow& row);

// The fastest strategy that communicates, compared with the next, which is another strategy if there is one.
struct PredictionVerdict {
  const PredictedRow* winner = nullptr;
  const PredictedRow* next = nullptr;
  double factor = 1;
  Interval interval;   // both share the causes; each has its own model error
  bool shown = false;  // the interval excludes 1
};
// Empty: fewer than two workers or rows.
std::optional<PredictionVerdict> VerdictAt(const PredictReport& report, int workers);
std::string VerdictText(const PredictReport& report);  // with the most workers

// What flags or measurements narrow: the `given` causes, from `published` to those used. Empty: nothing.
std::string KnownText(const std::set<std::string>& given, const Causes& published, const Causes& used);

// The row's summary columns (summarise.h), with basis "simulated".
std::vector<Cell> PredictedCells(const PredictReport& report, const PredictedRow& row);

// "rank0", "dedicated" or "colocated".
const char* PlaceName(ServerPlace place);

// Those of `report.pipelines[index]`.
std::vector<Cell> PipelineCells(const PredictReport& report, size_t index);

// A column of a table for users. `heading`: its two lines, "range of|9 in 10".
struct HeadedColumn {
  const char* heading;
  size_t columns;  // the first column's text is on the left, that of others on the right; 0: the last, left
};
std::string HeadedTable(const std::vector<HeadedColumn>& columns,
                        const std::vector<std::vector<std::string>>& lines);
// "1.25M", "812K", "14,551", "12.5".
std::string ShortCount(double value);
// Of a time in s; from 100 s on, "250 s".
std::string Milliseconds(double seconds);

constexpr double kEqualSteps = 1.005;  // a factor of step times below is no difference
// The nodes and links of a described network.
std::string NetworkText(const Cluster& cluster);
// That `other` would be faster with `factor` times the rate of the links: between nodes, or inside one if
// there is no other.
std::string FasterWithLinks(const Cluster& cluster, int workers, double factor, const std::string& other);

// A line for each row.
std::string PredictTable(const PredictReport& report);

// The table with pipelines, its legend, what they mean, and the faster of the two with the most workers.
std::string PipelineTable(const PredictReport& report);
std::string PipelineLegend();
std::vector<std::string> PipelineSentences(const PredictReport& report);
std::string PipelineVerdict(const PredictReport& report);

// The case, the table, the findings, and the verdict.
std::string PredictText(const PredictReport& report);

}  // namespace psring
