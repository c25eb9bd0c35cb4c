// A run's trace in the format of PyTorch's profiler (Kineto), as HolisticTraceAnalysis reads it: a folder per
// launch, a file per rank. HolisticTraceAnalysis recognizes events by name: communication kernels begin with
// "nccl", so a bucket's exchange is always called ncclKernel_psring; steps are ProfilerStep#N. Pure.
#pragma once

#include <map>
#include <string>

namespace psring {

// `trace_json`: the untrusted text of a run's trace.json. Returns file contents by path such as
// "ring-x-4/rank-0.json"; empty if no launch has spans.
std::map<std::string, std::string> KinetoTraces(const std::string& trace_json);

// `name` as a file name: every character except letters, digits, '.' and '_' becomes '-'; never starts with
// '.'.
std::string FileName(const std::string& name);

}  // namespace psring
