// A key-value store in a file that all of its users see: on one host, or on a network file system whose locks
// hold between hosts (NFS's do). Values are only ever added. Who uses it holds a lock of its own in it, which
// the kernel takes away when the process ends, however it ends: so the living are told from the dead, and a
// file that an earlier run has left from one that is in use.
//
// Bytes of the file: a header (what it is, the run's token, how much behind it counts), then entries. Locks
// are of bytes beyond any content: one for whoever reads or writes, one for each user.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_descriptor.h"

namespace psring {

// One thread at a time.
class FileStore {
 public:
  using Values = std::map<std::string, std::string>;

  // Makes the file where it is not there. One that nobody uses is a left-over, and emptied. InvalidArgument:
  // what stands there is not ours, and is not touched; Unavailable: it cannot be made or locked, with the
  // system's reason; DeadlineExceeded: somebody keeps it locked.
  static absl::StatusOr<std::unique_ptr<FileStore>> Open(const std::string& path, absl::Duration timeout);
  ~FileStore();
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  // Calls `change` with all values while nobody else reads or writes; what it returns is added. Its error, or
  // Open's.
  using Change = std::function<absl::StatusOr<Values>(const Values& values)>;
  absl::Status Update(const Change& change);

  // Only within `change`: marks user `number` as alive, for as long as this store lives.
  absl::Status Hold(int64_t number);
  // Whether another process, or another store of this one, holds `number`.
  bool IsHeld(int64_t number) const;
  // Only within `change`: nobody else holds any number.
  bool IsAlone() const;
  // Only within `change`: takes the file away.
  void Remove();

 private:
  FileStore(std::string path, absl::Duration timeout) : path_(std::move(path)), timeout_(timeout) {}

  absl::Status OpenFile();
  absl::Status Lock();
  void Unlock();
  bool StillThere() const;
  absl::Status ReadOrBegin();
  absl::Status Read();
  absl::Status Append(const Values& values);
  absl::Status Failed(const std::string& what) const;

  const std::string path_;
  const absl::Duration timeout_;
  FileDescriptor file_;
  std::string token_;  // of the run that this store is of; empty: of none yet
  uint64_t read_ = 0;  // up to here
  Values values_;
};

}  // namespace psring
