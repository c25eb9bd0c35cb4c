#include "common/rendezvous/meeting_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {
namespace {

// The content is this line and one with the address.
constexpr char kMagic[] = "psring rendezvous\n";
constexpr size_t kMaxBytes = 4096;

std::string Text(const std::string& path, const std::string& what) {
  return absl::StrCat("rendezvous file ", path, " ", what);
}

absl::Status Failed(const std::string& path, const std::string& what) {
  return Unavailable("rendezvous file ", path, ": ", what, ": ", std::strerror(errno));
}

// Readers create it, too: NFS remembers for many seconds that a file did not exist. O_NOFOLLOW: in a
// world-writable folder such as /tmp, another user's link could point anywhere.
absl::StatusOr<FileDescriptor> Open(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return Failed(path, "it cannot be opened");
  struct stat status;
  if (fstat(file.get(), &status) != 0) return Failed(path, "its status cannot be read");
  if (!S_ISREG(status.st_mode)) return InvalidArgument(Text(path, "is not a file; choose another"));
  if (status.st_uid != geteuid()) {
    return InvalidArgument(Text(path, "belongs to another user; choose another"));
  }
  return file;
}

// Of the entire file, for F_OFD_SETLK and F_OFD_GETLK. Such a lock belongs to the open file.
flock WriteLock() {
  flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

// Whether the name still refers to the open file: its last user may have removed it before we locked it.
bool IsStillThere(const FileDescriptor& file, const std::string& path) {
  struct stat opened, named;
  return fstat(file.get(), &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

absl::StatusOr<std::string> Content(const FileDescriptor& file, const std::string& path) {
  std::string text(kMaxBytes, 0);
  const ssize_t bytes = pread(file.get(), text.data(), text.size(), 0);
  if (bytes < 0) return Failed(path, "it cannot be read");
  text.resize(static_cast<size_t>(bytes));
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MeetingFile>> MeetingFile::Publish(const std::string& path,
                                                                  const HostPort& store) {
  FileDescriptor file;
  for (bool is_locked = false; !is_locked || !IsStillThere(file, path);) {
    PSRING_ASSIGN_OR_RETURN(file, Open(path));
    flock lock = WriteLock();
    is_locked = fcntl(file.get(), F_OFD_SETLK, &lock) == 0;
    if (is_locked || errno == EINTR) continue;
    if (errno != EAGAIN && errno != EACCES) {
      return Failed(path,
                    "its file system does not support locks (choose another folder, or tcp://host:port)");
    }
    return AlreadyExists("cannot be rank 0 of the rendezvous file ", path,
                         ", which is taken by another process; concurrent runs need different files");
  }
  PSRING_ASSIGN_OR_RETURN(const std::string old, Content(file, path));
  if (!old.empty() && !absl::StartsWith(old, kMagic)) {
    return InvalidArgument(Text(path, "is not a rendezvous file; choose one that does not exist"));
  }
  const std::string text = absl::StrCat(kMagic, PublishedText(store), "\n");
  // On NFS, other machines see it when it has been forced to the server.
  if (ftruncate(file.get(), 0) != 0 ||
      pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      fdatasync(file.get()) != 0) {
    return Failed(path, "it cannot be written");
  }
  return std::unique_ptr<MeetingFile>(new MeetingFile(path, std::move(file)));
}

MeetingFile::~MeetingFile() { (void)unlink(path_.c_str()); }

absl::StatusOr<HostPort> ReadMeetingFile(const std::string& path) {
  PSRING_ASSIGN_OR_RETURN(const FileDescriptor file, Open(path));
  flock lock = WriteLock();
  const bool is_held = fcntl(file.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  PSRING_ASSIGN_OR_RETURN(const std::string text, Content(file, path));
  absl::string_view address = text;
  if (!is_held || !absl::ConsumePrefix(&address, kMagic) || !absl::ConsumeSuffix(&address, "\n")) {
    return NotFound("rank 0 has not published its address");
  }
  return ParseAddress(std::string(address));
}

}  // namespace psring
