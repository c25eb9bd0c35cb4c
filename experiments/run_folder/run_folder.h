// Reads a launch's records and writes a run's folder. run_files.h formats the files.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experiments/analysis/summarise.h"
#include "experiments/design/plan.h"
#include "experiments/run_folder/manifest.h"
#include "experiments/run_folder/run_claim.h"
#include "experiments/run_folder/run_files.h"
#include "experiments/run_folder/run_trace.h"

namespace psring {

// Reads the records of a launch, without lost workers. NotFound: a file is missing. InvalidArgument,
// DataLoss: a file is malformed, or all workers were lost.
absl::StatusOr<RunRecords> ReadRecords(const std::string& folder, int ranks, int servers);

// Of the launch with its records in `folder`. Lost workers have no trace, and without rank 0's result the
// trace has no arrows.
LaunchTrace TraceOf(const std::string& folder, const Configuration& configuration);

class RunFolder {
 public:
  // Keeps the claimed folder (RunClaim::Keep).
  static absl::StatusOr<RunFolder> Open(RunClaim& claim);
  // Open, then Clear.
  static absl::StatusOr<RunFolder> Create(RunClaim& claim);
  // Resets the files that Append extends: only CSV headers remain.
  absl::Status Clear();

  const std::string& path() const { return path_; }
  std::string run_id() const;  // the folder's name

  // The folder `records` (RunLabel) for a launch's records; creates it.
  absl::StatusOr<std::string> RecordFolder(const std::string& records);

  absl::Status Write(const std::string& name, const std::string& text) const;
  // The same, and the file is on disk when this returns.
  absl::Status WriteToDisk(const std::string& name, const std::string& text) const;
  // Writes manifest.json, and config.toml, which repeats the run, if it has finished with its rounds, steps
  // and samples.
  absl::Status WriteManifest(const Manifest& manifest) const;
  // Forces the launch's records to disk.
  absl::Status ForceToDisk(const RunLabel& label) const;
  // Appends the launch to runs.csv, curves.csv, steps.jsonl, ddp.jsonl.
  absl::Status Append(const RunLabel& label, const Configuration& configuration, const RunRecords& records,
                      const RunFigures& figures);
  // Adds the launch's trace to WriteTrace's output.
  void KeepTrace(const RunLabel& label, const Configuration& configuration);
  absl::Status WriteTrace() const;

 private:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::vector<LaunchTrace> traces_;
};

}  // namespace psring
