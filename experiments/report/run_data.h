// What the report's page knows of a run: a JSON object made from the run folder. Other people's files are not
// trusted: whatever is missing, too large or no JSON is listed under "missing" and left out.
//
//   folder, run_id   as text
//   missing          [{file, why}]
//   manifest, summary          as they stand in the folder, or null
//   table            TableJson (runs/run_files.h), or null
//   runs_csv, curves_csv, bench_csv    texts, of at most csv_lines lines
//   findings, findings_zh      sentences in English and in Chinese
//   predicted, predicted_zh    the text of a prediction, or empty
//   steps            DigestSteps        trace    DigestTrace        arrivals   [DigestArrivals], see
//   digests.h
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct RunData {
  std::string json;
  std::vector<int> workers;  // of the summary's rows
};
// NotFound: `folder` is none, or holds nothing that a run leaves.
absl::StatusOr<RunData> ReadRunData(const std::string& folder);

}  // namespace psring
