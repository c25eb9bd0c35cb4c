// A key-value store in a file that all of its users can access: on one host, or on a network file system
// whose locks work between hosts (NFS's do). Values are only added. Each user holds a lock in the file, which
// the kernel releases when the process ends, even by a crash. Locks distinguish live users from dead ones,
// and a file in use from that of an earlier run.
//
// Contents: a header (type, the run's token, the number of valid bytes), then entries. Locks are on bytes
// beyond any content: one for the current reader or writer, one for each user.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/file_descriptor.h"

namespace psring {

// One thread at a time.
class FileStore {
 public:
  using Values = std::map<std::string, std::string>;
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 30;  // of the file

  // Creates the file if it does not exist. A file without users is a leftover and is emptied.
  // InvalidArgument: the file is not a rendezvous file, and is left unchanged; Unavailable: it cannot be
  // created or locked, with the system's reason; DeadlineExceeded: another process keeps it locked.
  static absl::StatusOr<std::unique_ptr<FileStore>> Open(const std::string& path, absl::Duration timeout);
  ~FileStore();
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  // Calls `change` with all values while no other process reads or writes, and adds the values that it
  // returns. Returns the error of `change`, or Open's. DataLoss: another program has changed the file;
  // ResourceExhausted: it has no space for the values, and none is added.
  using Change = std::function<absl::StatusOr<Values>(const Values& values)>;
  absl::Status Update(const Change& change);

  // Only within `change`: marks user `number` as alive until this store is destroyed.
  absl::Status Hold(int64_t number);
  // Whether another process, or another store of this one, holds `number`.
  bool IsHeld(int64_t number) const;
  // Only within `change`: whether no other user exists.
  bool IsAlone() const;
  // Only within `change`: removes the file.
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
  absl::Status Corrupt() const;

  const std::string path_;
  const absl::Duration timeout_;
  FileDescriptor file_;
  std::string token_;  // of this store's run; empty: of none yet
  uint64_t read_ = 0;  // the end of what has been read
  Values values_;
};

}  // namespace psring
