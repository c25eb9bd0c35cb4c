// psring explain zero2, fsdp, tp, cp: what a sharded or divided model sends, keeps and costs, with a drawing.
#pragma once

#include <string>

#include "trainer/strategies/table/strategy_table.h"

namespace psring {

inline constexpr char kTensorParallel[] = "tp";
inline constexpr char kContextParallel[] = "cp";

// A step's computation and exchanges on a time axis, of at most two micro-batches; the state that a replica
// keeps; and what it sends. Lines of at most 110 characters. Pure. `strategy`: one that shards updates.
// `replicas`, `micro_batches`: at least 1.
std::string ExplainShards(const StrategyRow& strategy, int replicas, int micro_batches);

// The division of a transformer's MLP among `ranks`, at least 1, and what a layer sends and keeps. Likewise.
std::string ExplainTensorParallel(int ranks);
// The division of sequences, and what attention sends and computes. Likewise.
std::string ExplainContextParallel(int ranks);

}  // namespace psring
