// A folder, removed by its destructor, or by the next psring if its owner was killed.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"

namespace psring {

class TemporaryFolder {
 public:
  // Creates "BASE/psring-ID-XXXXXX". An empty base is the system's temporary folder (TMPDIR, or /tmp). ID
  // identifies this host, its boot and this PID namespace. The owner holds a lock on a file in the folder.
  //
  // Also removes folders of killed psring processes in BASE, which other machines and containers may share:
  // those of this user with the same ID whose lock is free. A folder without this file, or whose lock cannot
  // be tested, stays. FailedPrecondition: "cannot create a folder in BASE: Read-only file system; REMEDY"; an
  // empty `remedy` advises to set TMPDIR.
  static absl::StatusOr<TemporaryFolder> Create(const std::string& base = "", const std::string& remedy = "");
  TemporaryFolder(TemporaryFolder&& other) noexcept;
  ~TemporaryFolder();

  const std::string& path() const { return path_; }

 private:
  TemporaryFolder(std::string path, FileDescriptor lock);
  std::string path_;
  FileDescriptor lock_;  // invalid: the file system does not support locks
};

}  // namespace psring
