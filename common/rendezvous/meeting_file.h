// The file of a rendezvous, in which rank 0 publishes where its store is: on one host, or on a network file
// system whose locks work between hosts (NFS's do). Rank 0 holds a lock on it, which the kernel releases when
// the process ends, even by a crash; so a file without a lock is a leftover of an earlier run.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"
#include "common/net/address.h"

namespace psring {

// Rank 0's.
class MeetingFile {
 public:
  // Creates the file, or replaces the content of a leftover. AlreadyExists: another rank 0 uses it;
  // InvalidArgument: it is not a rendezvous file, and is left unchanged; Unavailable: it cannot be created or
  // locked, with the system's reason.
  static absl::StatusOr<std::unique_ptr<MeetingFile>> Publish(const std::string& path, const HostPort& store);
  // Removes it.
  ~MeetingFile();

 private:
  MeetingFile(std::string path, FileDescriptor file) : path_(std::move(path)), file_(std::move(file)) {}

  const std::string path_;
  const FileDescriptor file_;  // locked
};

// The store's address. NotFound: rank 0 has not published it yet. Other errors as above.
absl::StatusOr<HostPort> ReadMeetingFile(const std::string& path);

}  // namespace psring
