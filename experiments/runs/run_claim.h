// Gives each run a folder that no other run uses.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace psring {

// The claim is an empty manifest.json, created exclusively (O_EXCL), also against machines that share the
// file system. It is the first file in a run's folder. The run replaces it by its own manifest.
class RunClaim {
 public:
  // Claims `out`, which may exist as an empty folder. If `out` is empty, claims runs/<UTC time>-<verb>, or
  // the same with "-2", "-3", ... if other runs have that name. Creates missing folders. FailedPrecondition
  // names the path: it is not empty, it is a file, permission is missing.
  static absl::StatusOr<std::unique_ptr<RunClaim>> Make(const std::string& out, const std::string& verb,
                                                        absl::Time now);
  RunClaim(const RunClaim&) = delete;
  // Without Keep: removes what Make has created.
  ~RunClaim();

  const std::string& path() const { return path_; }  // without a slash at its end

  // The run starts: its folder stays. If Make chose the name, points runs/latest to it.
  absl::Status Keep();

 private:
  RunClaim(std::string path, bool named_here) : path_(std::move(path)), named_here_(named_here) {}

  // AlreadyExists: another run has the folder, or it is not empty.
  absl::Status Take();
  absl::Status LinkLatest() const;
  // 0, or errno: ENOENT if somebody else has just removed the folder or a part of its path.
  int CreateManifest();
  std::string manifest() const { return path_ + "/manifest.json"; }

  const std::string path_;
  const bool named_here_;
  std::vector<std::string> made_;  // folders, outermost first
  bool claimed_ = false;
  bool kept_ = false;
};

}  // namespace psring
