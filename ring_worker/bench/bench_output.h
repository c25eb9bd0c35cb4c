// The output of rank 0: nccl-tests' table for users, JSON lines for psring.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "ring_worker/bench/bench_run.h"

namespace psring {

// Both borrow `options` and `out`; the result must outlive the run.
class BenchOutput {
 public:
  virtual ~BenchOutput() = default;
  virtual BenchReport report() = 0;
  virtual void Finish() = 0;  // after the run
};

// A table per combination. With one combination, rows are printed when measured; with several, at the end.
std::unique_ptr<BenchOutput> MakeTableOutput(const BenchOptions& options, FILE* out);

// One line per event:
//   {"event":"start","ranks":[{"host":..,"pid":..,"device":..}],"groups":[{"backend":..,"algorithm":..,"transport":..}]}
//   {"event":"row","combination":0,"type":"float32","op":"sum","bytes":..,"count":..,
//    "out_of_place":{"times_us":[..],"calls_per_turn":..,"wrong":0},"in_place":{..}}
//   {"event":"limit","kind":"shared","collective":"all_reduce","bytes":..,"times_us":[..],
//    "calls_per_turn":..,"wrong":-1}
//   {"event":"progress","done":3,"of":8}
//   {"event":"done"}
std::unique_ptr<BenchOutput> MakeJsonOutput(FILE* out);

// The tables of this build as one JSON object: backends with their algorithms, and the names of collectives.
std::string DescribeJson();

}  // namespace psring
