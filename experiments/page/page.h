// The report: one self-contained HTML file, made from page/ and D3, which CMake embeds in the program.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/page/run_data.h"
#include "experiments/pool/pool.h"

namespace psring {

// The page opens in the current language. `pool`: PoolRuns of `runs`, shown if it has several machines or
// runs side by side. Deterministic.
std::string ReportPage(const std::vector<RunData>& runs, const Pool& pool = {});

// Writes FOLDER/report.html at the end of a run.
absl::Status WriteRunReport(const std::string& folder);

// `json` with <, >, & and JavaScript's two line separators as \u escapes, so that it cannot end a script
// element or start a comment. Values do not change.
std::string ForScriptElement(const std::string& json);

// A run's trace in the format of PyTorch's profiler (Kineto), as HolisticTraceAnalysis reads it: a folder per
// launch, a file per rank. HolisticTraceAnalysis recognizes events by name: communication kernels begin with
// "nccl", so a bucket's exchange is always called ncclKernel_psring; steps are ProfilerStep#N. Pure.
// `trace_json`: the untrusted text of a run's trace.json. Returns file contents by path such as
// "ring-x-4/rank-0.json"; empty if no launch has spans.
std::map<std::string, std::string> KinetoTraces(const std::string& trace_json);

// `name` as a file name: every character except letters, digits, '.' and '_' becomes '-'; never starts with
// '.'.
std::string FileName(const std::string& name);

// Whether `folder` has the records of a launch and is not a run folder.
bool HasLaunchRecords(const std::string& folder);

// These records (`trainer --record`) as the files of a run folder, so that the page can show them:
// summary.json, table.json, findings.txt, findings.zh.txt, runs.csv, curves.csv, steps.jsonl and trace.json
// by name, without a manifest. Errors are one line that says what is missing or invalid: a rank's records,
// what it trained (earlier versions do not record it), or a common clock of the ranks.
absl::StatusOr<std::map<std::string, std::string>> LaunchFiles(const std::string& folder);

}  // namespace psring
