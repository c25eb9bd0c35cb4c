// A run's data for the page: a JSON object made from the untrusted files of the run folder. Files that are
// missing, too large or malformed are listed under "missing" and left out.
//
//   folder, run_id   as text
//   missing          [{file, why}]
//   manifest, summary          as in the folder, or null
//   table            TableJson (runs/run_files.h), or null
//   runs_csv, curves_csv, bench_csv    texts, at most csv_lines lines each
//   findings, findings_zh      sentences in English and in Chinese
//   predicted, predicted_zh    the text of a prediction, or empty
//   steps, trace, arrivals     DigestSteps, DigestTrace, [DigestArrivals]; see digests.h
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct RunData {
  std::string json;
  std::vector<int> workers;  // of the summary's rows
};

// NotFound: `folder` is not the folder of a run.
absl::StatusOr<RunData> ReadRunData(const std::string& folder);

}  // namespace psring
