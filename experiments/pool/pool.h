// Pools runs of one plan on several machines, such as those of a class: what each machine measured, and the
// spread over the machines. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace psring {

// A run to pool: its name, and its data as for a page (RunData::json), which is untrusted.
struct PoolInput {
  std::string name, json;
};

// Over the machines whose row is valid; there is at least one.
struct MachineSpread {
  double least = 0, median = 0, most = 0;
  int machines = 0;
};

// One row on one machine. Figures that the run lacks are empty.
struct MachineFigures {
  std::optional<double> samples_per_s, low, high;  // with the run's 95% interval over rounds
  std::optional<double> efficiency;
  std::optional<double> ratio;  // samples/s divided by those of PoolRow::base on the same machine
  bool valid = true;            // false: other programs disturbed it, so it is not in the spread
};

struct PoolRow {
  std::string strategy;
  int64_t workers = 0, servers = 0;
  std::string base;  // ps-sync with as many workers, else single; empty: neither was run, or it is this row
  double most_samples_share = 0;         // of the summary, the highest of all machines; 0: not asynchronous
  std::vector<MachineFigures> machines;  // as Pool::machines
  std::optional<MachineSpread> samples_per_s, efficiency, ratio;
};

struct PoolMachine {
  std::string name, run_id, processor;
  int64_t cores = 0;
  // The strategies that its verdict recommends; none: it shows none to be faster; empty: an earlier version
  // of psring did not record this.
  std::optional<std::vector<std::string>> recommended;
};

// A run that is not pooled.
struct LeftOut {
  std::string name;
  std::string english, chinese;  // why, in one sentence
};

// Runs of different plans.
struct SideBySide {
  struct Setting {
    std::string name;
    std::vector<std::string> values;  // as `runs`
  };
  std::vector<std::string> runs;  // names
  std::vector<Setting> settings;  // those that differ
  std::vector<PoolRow> rows;      // without spreads; `machines`: as `runs`, their ratio to the first one
};

struct Pool {
  std::vector<PoolMachine> machines;
  std::vector<PoolRow> rows;
  std::vector<LeftOut> left_out;
  SideBySide beside;  // without runs unless no two runs have the same plan
};

// The plan is that of the first run with rows of a comparison or training. Runs with another one (model,
// link, batch, strategies, workers, summary's schema_version, ...), and runs that occur twice, are left out.
Pool PoolRuns(const std::vector<PoolInput>& runs);

// {machines: [{name, run_id, processor, cores, recommended}], rows: [{strategy, workers, servers, base,
// most_samples_share,
//  machines: [{samples_per_s, samples_per_s_lo95, samples_per_s_hi95, efficiency, ratio, valid}],
//  samples_per_s: {least, median, most, machines}, efficiency, ratio: likewise}],
//  left_out: [{name, why: [English, Chinese]}], winners: [[English, Chinese]]}; null if empty.
std::string PoolJson(const Pool& pool);

// {runs: [name], settings: [[name, value, ...]], rows: [{strategy, workers, servers, runs: as the machines of
// PoolJson}]}; null without runs.
std::string BesideJson(const SideBySide& beside);

// The settings that differ, then the samples/s of each run with its interval and the ratio to the first run.
std::string BesideTable(const SideBySide& beside);

// "ring: 5 of 7 machines", one sentence for each recommendation, the most frequent first.
std::vector<std::string> WinnerSentences(const Pool& pool);

// The spread of every row, and the recommendations. At most 100 columns.
std::string PoolTable(const Pool& pool);

}  // namespace psring
