// What the report's page knows of a run: a JSON object made from the run folder. Other people's files are not
// trusted: whatever is missing, too large or no JSON is listed under "missing" and left out.
//
//   folder, run_id   as text
//   missing          [{file, why}]
//   manifest, summary          as they stand in the folder, or null
//   runs_csv, curves_csv, bench_csv    texts, of at most csv_lines lines
//   findings         sentences
//   predicted        the text of a prediction, or empty
//   steps            DigestSteps        trace    DigestTrace
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

// From the text of steps.jsonl: {lines, skipped, most_points, staleness: [{strategy, workers, counts:
// {staleness: buckets}}], loss: [{strategy, workers, part, repeat, points: [[samples of all workers, seconds,
// loss]]}]}. Of every bucket of every step the staleness; the loss of rank 0, neighbours averaged to at most
// most_points a curve. Lines that are none are counted as skipped. Pure.
std::string DigestSteps(const std::string& text);

// From the text of trace.json: {most_spans, launches: [{name, ms, spans: [[rank, lane, bucket, begin_ms,
// ms]]}]}. Of each launch rank 0's step of median length and all of the other ranks that overlaps it; at most
// most_spans spans, the longest. Pure.
std::string DigestTrace(const std::string& text);

// At most `lines` of a CSV's lines, its first and last among them, evenly spaced. Pure.
std::string ThinCsv(const std::string& text, size_t lines);

}  // namespace psring
