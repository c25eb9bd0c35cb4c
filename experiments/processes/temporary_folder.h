// A folder, removed by its destructor.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace psring {

class TemporaryFolder {
 public:
  // Creates "BASE/psring-PID-XXXXXX"; an empty base is the system's temporary folder. Removes folders of
  // killed psring processes there. FailedPrecondition names the path that cannot be created.
  static absl::StatusOr<TemporaryFolder> Create(const std::string& base = "");
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  ~TemporaryFolder();

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace psring
