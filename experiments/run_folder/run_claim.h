// Reserves a folder for a run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_descriptor.h"

namespace psring {

// The claim is an empty manifest.json created with O_EXCL, which also works between machines that share the
// file system. It is the first file in a run's folder; the run later replaces it by its manifest.
class RunClaim {
 public:
  // Claims `out`, which must be missing or an empty folder. If `out` is "", claims runs/<UTC time>-<verb>,
  // with "-2", "-3", ... appended if that name is taken. FailedPrecondition names the path and the reason.
  static absl::StatusOr<std::unique_ptr<RunClaim>> Make(const std::string& out, const std::string& verb,
                                                        absl::Time now);
  // Claims the folder of an earlier run, to continue it; nothing in it is ever removed. FailedPrecondition:
  // another psring uses it.
  static absl::StatusOr<std::unique_ptr<RunClaim>> Reopen(const std::string& run);
  RunClaim(const RunClaim&) = delete;
  // Without Keep, removes what Make created.
  ~RunClaim();

  const std::string& path() const { return path_; }  // without a trailing slash

  // Keeps the folder. If Make chose its name, points runs/latest to it.
  absl::Status Keep();

 private:
  RunClaim(std::string path, bool named_here) : path_(std::move(path)), named_here_(named_here) {}

  // AlreadyExists: another run has the folder, or it is not empty.
  absl::Status Take();
  absl::Status LinkLatest() const;
  // Locks the folder for the life of this object. False: another process has locked it.
  bool Lock();
  // 0, or errno: ENOENT if another process has removed the folder or a part of its path.
  int CreateManifest();
  std::string manifest() const { return path_ + "/manifest.json"; }

  const std::string path_;
  const bool named_here_;
  std::vector<std::string> made_;  // folders, outermost first
  FileDescriptor lock_;
  bool claimed_ = false;
  bool kept_ = false;
};

}  // namespace psring
