#include "common/rendezvous/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/net/random_token.h"
#include "common/rendezvous/roster.h"

namespace psring {
namespace {

constexpr off_t kMutex = off_t{1} << 40, kFirstUser = kMutex + 1;
constexpr std::array<char, 16> kMagic = {'p', 's', 'r', 'i', 'n', 'g', ' ',  's',
                                         't', 'o', 'r', 'e', ' ', '1', '\n', '\n'};

struct Header {
  std::array<char, 16> magic = kMagic;
  std::array<char, 16> token = {};
  uint64_t end = sizeof(Header);  // of valid data: an unfinished entry is not part of it
};
static_assert(sizeof(Header) == 40);

struct EntryHead {
  uint32_t key_bytes = 0;
  uint64_t value_bytes = 0;
} __attribute__((packed));

// Locks belong to the open file, so two stores of one process are two users.
flock LockOf(short type, off_t first, off_t bytes) {
  flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = first;
  lock.l_len = bytes;  // 0: to the end of the file
  return lock;
}

// All `bytes` by pread or pwrite. False: errno says why.
template <typename Transfer, typename Byte>
bool TransferAll(const Transfer& transfer, int fd, Byte* data, size_t bytes, off_t at) {
  while (bytes > 0) {
    const ssize_t n = transfer(fd, data, bytes, at);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;
    if (n <= 0) return false;
    data += n, at += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool ReadAt(int fd, void* to, size_t bytes, off_t at) {
  return TransferAll(pread, fd, static_cast<char*>(to), bytes, at);
}

bool WriteAt(int fd, const void* from, size_t bytes, off_t at) {
  return TransferAll(pwrite, fd, static_cast<const char*>(from), bytes, at);
}

}  // namespace

absl::Status FileStore::Failed(const std::string& what) const {
  return absl::UnavailableError(
      absl::StrCat("rendezvous file ", path_, ": ", what, ": ", std::strerror(errno)));
}

absl::Status FileStore::Corrupt() const {
  return absl::DataLossError(absl::StrCat("rendezvous file ", path_, " is corrupt; remove it"));
}

absl::StatusOr<std::unique_ptr<FileStore>> FileStore::Open(const std::string& path, absl::Duration timeout) {
  std::unique_ptr<FileStore> store(new FileStore(path, timeout));
  PSRING_RETURN_IF_ERROR(store->OpenFile());
  return store;
}

FileStore::~FileStore() = default;

// O_NOFOLLOW: in a world-writable folder such as /tmp, another user's link could point anywhere.
absl::Status FileStore::OpenFile() {
  file_ = FileDescriptor(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file_.valid()) return Failed("it cannot be opened");
  struct stat status;
  if (fstat(file_.get(), &status) != 0) return Failed("its status cannot be read");
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rendezvous file ", path_, " is not a file; choose another"));
  }
  if (status.st_uid != geteuid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rendezvous file ", path_, " belongs to another user; choose another"));
  }
  return absl::OkStatus();
}

// By polling: a blocking lock has no deadline.
absl::Status FileStore::Lock() {
  const MonotonicTime deadline = MonotonicNow() + timeout_;
  for (absl::Duration pause = absl::Milliseconds(1);; pause = std::min(2 * pause, absl::Milliseconds(20))) {
    flock lock = LockOf(F_WRLCK, kMutex, 1);
    if (fcntl(file_.get(), F_OFD_SETLK, &lock) == 0) return absl::OkStatus();
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
      return Failed("its file system does not support locks (choose another folder, or tcp://host:port)");
    }
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("waited ", SecondsText(timeout_),
                                                      " for the lock of the rendezvous file ", path_,
                                                      ", which another process holds"));
    }
    absl::SleepFor(pause);
  }
}

void FileStore::Unlock() {
  flock lock = LockOf(F_UNLCK, kMutex, 1);
  (void)fcntl(file_.get(), F_OFD_SETLK, &lock);
}

// Whether the name still refers to the open file: its last user may have removed it before we locked it.
bool FileStore::StillThere() const {
  struct stat opened, named;
  return fstat(file_.get(), &opened) == 0 && stat(path_.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

absl::Status FileStore::Update(const Change& change) {
  PSRING_RETURN_IF_ERROR(Lock());
  while (token_.empty() && !StillThere()) {
    PSRING_RETURN_IF_ERROR(OpenFile());
    PSRING_RETURN_IF_ERROR(Lock());
  }
  absl::Status status = ReadOrBegin();
  if (status.ok()) {
    const absl::StatusOr<Values> added = change(values_);
    status = added.ok() ? Append(*added) : added.status();
  }
  Unlock();
  return status;
}

absl::Status FileStore::ReadOrBegin() {
  struct stat status;
  if (fstat(file_.get(), &status) != 0) return Failed("its status cannot be read");
  if (!token_.empty() || (status.st_size > 0 && !IsAlone())) return Read();
  // Empty, or without users: a new run begins.
  Header old;
  const bool ours =
      status.st_size >= off_t{sizeof old} && ReadAt(file_.get(), &old, sizeof old, 0) && old.magic == kMagic;
  if (status.st_size > 0 && !ours) {
    return absl::InvalidArgumentError(
        absl::StrCat("rendezvous file ", path_, " is not a rendezvous file; choose one that does not exist"));
  }
  Header header;
  token_ = RandomToken(16);
  std::copy(token_.begin(), token_.end(), header.token.begin());
  if (ftruncate(file_.get(), 0) != 0 || !WriteAt(file_.get(), &header, sizeof header, 0)) {
    return Failed("it cannot be written");
  }
  read_ = sizeof header;
  values_.clear();
  return absl::OkStatus();
}

absl::Status FileStore::Read() {
  Header header;
  if (!ReadAt(file_.get(), &header, sizeof header, 0)) return Failed("it cannot be read");
  const std::string token(header.token.begin(), header.token.end());
  if (token_.empty()) {
    token_ = token;
    read_ = sizeof header;
  }
  if (header.magic != kMagic || token != token_ || header.end < read_) {
    return absl::UnavailableError(absl::StrCat(
        "rendezvous file ", path_, " was taken over by another run; concurrent runs need different files"));
  }
  struct stat status;
  if (fstat(file_.get(), &status) != 0) return Failed("its status cannot be read");
  if (header.end > kMaxBytes || header.end > static_cast<uint64_t>(status.st_size)) return Corrupt();
  std::string bytes(header.end - read_, 0);
  if (!ReadAt(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(read_))) {
    return Failed("it cannot be read");
  }
  for (size_t at = 0; at < bytes.size();) {
    EntryHead head;
    if (bytes.size() - at >= sizeof head) std::memcpy(&head, bytes.data() + at, sizeof head);
    at += sizeof head;
    if (at > bytes.size() || head.key_bytes > bytes.size() - at ||
        head.value_bytes > bytes.size() - at - head.key_bytes) {
      return Corrupt();
    }
    values_[bytes.substr(at, head.key_bytes)] = bytes.substr(at + head.key_bytes, head.value_bytes);
    at += head.key_bytes + head.value_bytes;
  }
  read_ = header.end;
  return absl::OkStatus();
}

absl::Status FileStore::Append(const Values& values) {
  if (values.empty()) return absl::OkStatus();
  std::string bytes;
  for (const auto& [key, value] : values) {
    const EntryHead head = {static_cast<uint32_t>(key.size()), value.size()};
    if (key.size() > kMaxBytes || value.size() > kMaxBytes ||
        sizeof head + key.size() + value.size() > kMaxBytes - std::min(read_ + bytes.size(), kMaxBytes)) {
      return absl::ResourceExhaustedError(absl::StrCat("rendezvous file ", path_, " has no space for ",
                                                       value.size(), " bytes more; its limit is ",
                                                       kMaxBytes));
    }
    bytes.append(reinterpret_cast<const char*>(&head), sizeof head);
    absl::StrAppend(&bytes, key, value);
  }
  const uint64_t end = read_ + bytes.size();
  // The end of valid data is written last: a process that dies before has written nothing.
  if (!WriteAt(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(read_)) ||
      !WriteAt(file_.get(), &end, sizeof end, offsetof(Header, end))) {
    return Failed("it cannot be written");
  }
  read_ = end;
  for (const auto& [key, value] : values) values_[key] = value;
  return absl::OkStatus();
}

absl::Status FileStore::Hold(int64_t number) {
  flock lock = LockOf(F_WRLCK, kFirstUser + number, 1);
  if (fcntl(file_.get(), F_OFD_SETLK, &lock) == 0) return absl::OkStatus();
  return Failed("it cannot be locked");
}

bool FileStore::IsHeld(int64_t number) const {
  flock lock = LockOf(F_WRLCK, kFirstUser + number, 1);
  return fcntl(file_.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool FileStore::IsAlone() const {
  flock lock = LockOf(F_WRLCK, kFirstUser, 0);
  return fcntl(file_.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

void FileStore::Remove() { (void)unlink(path_.c_str()); }

}  // namespace psring
