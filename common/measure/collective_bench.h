// What the programs that measure collectives share: how the times of all ranks become samples, and what rank
// 0 prints.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

// How the ranks' times are combined: nccl-tests' -a.
enum class AcrossRanks { kRankZero = 0, kMean = 1, kMin = 2, kMax = 3 };

// A turn, which is timed, has as many calls as take this time.
inline constexpr int64_t kTurnNs = 200'000;

// Of one placement and size, in order, combined over ranks.
struct Samples {
  std::vector<double> times_us = {};  // of one call; empty: it was not measured
  int64_t calls_per_turn = 0;
  int64_t wrong = -1;  // wrong elements: 0, or -1 if not checked; others are errors
};

// The calls of a turn of each of `cases`. `call_ns`: of each rank, "NS NS ...", the time of one call of each
// case; the slowest rank's decides. `given`: the answer, unless it is 0. Pure.
std::vector<int64_t> CallsPerTurn(const std::vector<std::string>& call_ns, size_t cases, int given);

// By case. `turn_ns`: of each rank, "NS NS ...", the times of the first case's turns, then the next one's.
// `calls`: of a turn, by case. Pure. Internal: a rank sent another number of times.
absl::StatusOr<std::vector<Samples>> SamplesOf(const std::vector<std::string>& turn_ns,
                                               const std::vector<int64_t>& calls, size_t turns,
                                               AcrossRanks across);

struct RankInfo {
  std::string host;
  int pid = 0;
  std::string device = "cpu";  // "cuda:1"
};
// As a rank sends it to rank 0, and what rank 0 reads of what all have sent. Pure. A text that is not of a
// rank gives the default.
std::string RankText(const RankInfo& rank);
std::vector<RankInfo> RanksFrom(const std::vector<std::string>& texts);

// What one table measures, as it was made.
struct MeasuredCombination {
  std::string title;  // "all_reduce, native ring over shm, shared buffers"
  std::string collective, backend, algorithm, transport;
  bool reduces = true;
  int root = -1;  // -1: it has none
};

struct BenchRow {
  size_t combination = 0;
  std::string type, op;
  uint64_t bytes = 0;  // of a rank's larger buffer
  uint64_t count = 0;
  Samples out_of_place, in_place = {};
};

struct LimitRow {
  std::string kind, collective;
  uint64_t bytes = 0;  // of the collective; time x busbw = BusFactor x bytes
  Samples samples;
};

// Rank 0's output, during the run.
class BenchOutput {
 public:
  virtual ~BenchOutput() = default;
  virtual void Start(const std::vector<RankInfo>& ranks,
                     const std::vector<MeasuredCombination>& combinations) = 0;
  virtual void Row(const BenchRow& row) = 0;
  virtual void Limit(const LimitRow& row) = 0;
  virtual void Progress(size_t done, size_t of) = 0;  // sizes, over all types and reductions
  virtual void Finish() = 0;
};

// nccl-tests' table for each combination. With one, rows are printed when measured; with several, at the end.
std::unique_ptr<BenchOutput> MakeTableOutput(const std::string& program, int turns, FILE* out);

// For psring, one line per event:
//   {"event":"start","ranks":[{"host":..,"pid":..,"device":..}],"groups":[{"backend":..,"algorithm":..,"transport":..}]}
//   {"event":"row","combination":0,"type":"float32","op":"sum","bytes":..,"count":..,
//    "out_of_place":{"times_us":[..],"calls_per_turn":..,"wrong":0},"in_place":{..}}
//   {"event":"limit","kind":"shared","collective":"all_reduce","bytes":..,"times_us":[..],
//    "calls_per_turn":..,"wrong":-1}
//   {"event":"progress","done":3,"of":8}
//   {"event":"done"}
std::unique_ptr<BenchOutput> MakeJsonOutput(FILE* out);

}  // namespace psring
