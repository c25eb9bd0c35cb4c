// Collects the workers' measurements over rounds, computes the tables' figures and checks --require_busbw.
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "common/io/json_object.h"
#include "common/measure/collective_table.h"
#include "experiments/verbs/bench/plan.h"

namespace psring {

// The limit of a collective: the minimum work for its result, measured by the same processes alternately with
// the collective (--limits of ring_worker and ps_worker).
//
//   over shared memory  every rank adds its part of all ranks' buffers in place and writes the sum to all of
//                       them, between two barriers (other collectives: only the necessary copies). Nothing is
//                       copied twice, so this is the minimum.
//   over TCP            every rank sends as many bytes to the next rank as in a ring, all at once: the ring
//                       without rounds and additions. L bytes/s over all N links are a busbw of L / N.
//   parameter server    over TCP, *raw*: the same round over plain sockets, without messages or framework;
//                       over shared memory, *fused*: adding all gradients, updating the weights and writing
//                       them for every worker in one pass.
//
// This class has all of a run.
class MeasuredLimits {
 public:
  void Add(int workers, const std::string& kind, const std::string& collective, uint64_t bytes,
           const std::vector<double>& times_us);

  bool empty() const { return times_us_.empty(); }

  // In 10^9 bytes/s, comparable with the collective's busbw. nullopt if not measured, or with one worker.
  // `transport`: the one that the collective used.
  std::optional<double> BusBandwidth(const BenchCombination& combination, const std::string& transport,
                                     uint64_t bytes) const;

  // A table with a line per size; every line begins with #.
  std::string Text(int workers) const;

 private:
  using Key = std::tuple<int, std::string, std::string, uint64_t>;
  std::optional<double> MedianUs(const Key& key) const;
  std::map<Key, std::vector<double>> times_us_;
};

// All samples of one placement, in us per call.
struct SampleFigures {
  std::vector<double> times_us;
  int64_t calls_per_turn = 0;
  int64_t wrong = -1;

  double Median() const, Mean() const, Least() const, Most() const, StandardDeviation() const;
  // The percentile as in nccl-tests (nearest rank): the smallest sample with `percent` of all at or below it.
  double NearestRank(int percent) const;
};

struct BenchCell {
  std::string type, op;  // the workers' names
  uint64_t bytes = 0, count = 0;
  SampleFigures out_of_place, in_place;  // a parameter server's round has only out_of_place
};

struct BenchTable {
  BenchCombination combination;
  std::string algorithm, transport;  // as reported by the group
  std::vector<BenchCell> cells;
  std::vector<double> foreign_cpu_pct;  // CPU use by other programs, of each launch

  // `algorithm`, or what psring's default takes for this size.
  std::string AlgorithmOf(const BenchCell& cell) const;
};

struct BenchRank {
  std::string host;
  int pid = 0;
  std::string device = "cpu";  // "cuda:1"

  int device_index() const;
  std::string device_kind() const { return device.substr(0, device.find(':')); }  // "cpu", "cuda"
};

class BenchResult {
 public:
  explicit BenchResult(const BenchPlan& plan);

  // Adds a line printed by a worker of `launch`. Returns false if it is not a line of the benchmark. Invalid
  // lines count as missing.
  bool Note(const BenchLaunch& launch, const std::string& line);
  void NoteForeignCpu(const BenchLaunch& launch, double percent);

  // DataLoss names the first combination and size without enough samples.
  absl::Status RequireComplete() const;

  const BenchPlan& plan() const { return plan_; }
  const std::vector<BenchTable>& tables() const { return tables_; }
  const MeasuredLimits& limits() const { return limits_; }
  const std::map<int, std::vector<BenchRank>>& ranks() const { return ranks_; }  // by number of workers
  size_t done() const { return done_; }  // of of() in the current launch
  size_t of() const { return of_; }

  // The row for the text output and the files.
  CollectiveRow RowOf(const BenchTable& table, const BenchCell& cell, int root) const;

 private:
  // The lines of each event. InvalidArgument: a field is missing or invalid.
  absl::Status NoteStart(const BenchLaunch& launch, const JsonObject& json);
  absl::Status NoteRow(const BenchLaunch& launch, const JsonObject& json);
  absl::Status NoteLimit(const BenchLaunch& launch, const JsonObject& json);
  BenchCell& CellOf(BenchTable& table, const std::string& type, const std::string& op, uint64_t bytes);

  const BenchPlan& plan_;
  std::vector<BenchTable> tables_;  // by combination
  MeasuredLimits limits_;
  std::map<int, std::vector<BenchRank>> ranks_;
  size_t done_ = 0, of_ = 0;
};

// Aborted unless, for every number of workers above 1, the fastest all-reduce of the largest size has the
// required bus bandwidth. The message names that all-reduce, then `slowest` (the slowest node or link), or,
// if it is empty, the slowest of several all-reduces.
absl::Status CheckBusbw(const BenchRequest& request, const BenchResult& result, const std::string& slowest);

}  // namespace psring
