// Messages between processes of one host, which can carry open files. Addresses are abstract names without a
// file, so nothing remains after a process ends, even by a crash.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/deadline.h"
#include "common/base/file_descriptor.h"

namespace psring {

// One end of a connection, or a listener (PendingConnections accepts); one thread at a time. Every wait ends
// at its deadline with DeadlineExceeded.
class UnixSocket {
 public:
  struct Message {
    std::string text;
    std::vector<FileDescriptor> files;
  };
  static constexpr size_t kMaxText = 4096;
  static constexpr size_t kMaxFiles = 8;

  // An invalid socket.
  UnixSocket() = default;
  // Takes a socket that was connected by other means.
  explicit UnixSocket(FileDescriptor fd) : fd_(std::move(fd)) {}

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }  // non-blocking; for poll() and for bytes without files

  // `name`: at most 100 characters. AlreadyExists if another process listens there.
  static absl::StatusOr<UnixSocket> Listen(const std::string& name);
  // Unavailable if no process listens under that name in this network namespace. DeadlineExceeded: too many
  // others connect at the same time.
  static absl::StatusOr<UnixSocket> Connect(const std::string& name, MonotonicTime deadline);

  // Sends a whole message of 1 to kMaxText bytes, or nothing. The caller keeps ownership of `files`.
  absl::Status Send(const std::string& text, const std::vector<int>& files, MonotonicTime deadline) const;
  // Unavailable: the peer has closed. InvalidArgument: longer than a message may be.
  absl::StatusOr<Message> Receive(MonotonicTime deadline) const;

 private:
  FileDescriptor fd_;
};

}  // namespace psring
