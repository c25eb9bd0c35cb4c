// A run's data for the page: a JSON object made from the untrusted files of the run folder. Files that are
// missing, too large or malformed are listed under "missing" and left out.
//
//   folder, run_id   as text
//   source           the page that the run comes from; absent if it was read from a folder
//   one_launch       whether these are the records of one launch, without a manifest
//   missing          [{file, why}]
//   manifest, summary          as in the folder, or null
//   table            TableJson (run_folder/run_files.h), or null
//   runs_csv, curves_csv, bench_csv    texts, at most csv_lines lines each
//   findings, findings_zh      sentences in English and in Chinese
//   predicted, predicted_zh    the text of a prediction, or empty
//   steps, trace, arrivals     DigestSteps, DigestTrace, [DigestArrivals]; see digests.h
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/read_file.h"
#include "common/io/untrusted_json.h"

namespace psring {

// Of steps.jsonl and of trace.json; other files have at most kMaxTextBytes. A worker records about 600 bytes
// per step, so this is enough for 50,000 steps of 8 workers; a full trace of one rank has 8 MB.
inline constexpr uint64_t kMaxLongBytes = uint64_t{256} << 20;

struct RunData {
  std::string name;  // the folder, or the page without .html
  std::string json;
  std::vector<int> workers;         // of the summary's rows
  std::vector<std::string> answer;  // AnswerOf
};

// NotFound: `folder` is not the folder of a run. If `files` has any, these texts by name are read instead of
// the files in the folder (page.h).
absl::StatusOr<RunData> ReadRunData(const std::string& folder,
                                    const std::map<std::string, std::string>& files = {});

// Of the text of a report.html, which is untrusted, in the page's order; `name`: its path. Values are those
// that the page was made from. Parts of a run with another structure are left out, as if its folder lacked
// them. InvalidArgument: `html` is not a page of psring, or contains no run.
absl::StatusOr<std::vector<RunData>> RunsOfPage(const std::string& name, const std::string& html);
// Of a file of at most kMaxPageBytes.
inline constexpr uint64_t kMaxPageBytes = kMaxTextBytes;
absl::StatusOr<std::vector<RunData>> ReadRunsOfPage(const std::string& path);

// The verdict, its facts and the line on validity, as far as the run has them, or the last paragraph of a
// prediction, in the current language.
// `run`: an object as described above.
std::vector<std::string> AnswerOf(const UntrustedJson& run);
// Whether `json` has the structure of TableJson.
bool IsTable(const UntrustedJson& json);
// The valid worker counts in the rows of a summary.
std::vector<int> WorkersOf(const UntrustedJson& summary);

}  // namespace psring
