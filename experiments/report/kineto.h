// A run's trace as HolisticTraceAnalysis reads one: a folder a launch, a file a rank, spans as PyTorch's
// profiler (Kineto) writes a GPU's kernels. That tool tells kinds by names, and knows communication by a name
// that begins with "nccl": so a bucket's exchange is called ncclKernel_psring here, whoever moved it. Steps
// are ProfilerStep#N. Pure.
#pragma once

#include <map>
#include <string>

namespace psring {

// From the text of a run's trace.json, which may be anybody's: texts by path, "ring-x-4/rank-0.json". Empty:
// it has no launch with spans.
std::map<std::string, std::string> KinetoTraces(const std::string& trace_json);

}  // namespace psring
