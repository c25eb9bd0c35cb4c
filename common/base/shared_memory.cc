#include "common/base/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "common/base/check.h"
#include "common/base/errors.h"

namespace psring {
namespace {

absl::StatusOr<std::byte*> Map(int fd, size_t bytes, bool prefault) {
  const int flags = MAP_SHARED | (prefault ? MAP_POPULATE : 0);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (memory != MAP_FAILED) return static_cast<std::byte*>(memory);
  return ResourceExhausted("cannot map ", bytes, " bytes of shared memory: ", strerror(errno));
}

// Beyond the end of its file a mapping raises SIGBUS. F_SEAL_SHRINK excludes that the end moves, and files
// other than memfds have no seals; a memfd of huge pages (of another file system) raises SIGBUS without them.
absl::Status RequireLasting(int fd, size_t bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  struct statfs system = {};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstatfs(fd, &system) != 0 ||
      system.f_type != TMPFS_MAGIC) {
    return InvalidArgument("it is not shared memory that keeps its size");
  }
  struct stat file = {};
  if (fstat(fd, &file) != 0 || bytes == 0 || static_cast<uint64_t>(file.st_size) < bytes) {
    return InvalidArgument("it is shared memory of ", file.st_size, " bytes, not of ", bytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::Create(size_t bytes) {
  FileDescriptor fd(memfd_create("psring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Internal("memfd_create: ", strerror(errno));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ResourceExhausted("cannot allocate shared memory of ", bytes, " bytes: ", strerror(errno));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Internal("cannot seal shared memory: ", strerror(errno));
  }
  PSRING_ASSIGN_OR_RETURN(std::byte* const data, Map(fd.get(), bytes, /*prefault=*/false));
  return SharedMemory(data, bytes, std::move(fd));
}

absl::StatusOr<SharedMemory> SharedMemory::Adopt(int fd, size_t bytes, bool prefault) {
  FileDescriptor owned(fd);
  PSRING_RETURN_IF_ERROR(RequireLasting(fd, bytes));
  PSRING_ASSIGN_OR_RETURN(std::byte* const data, Map(fd, bytes, prefault));
  return SharedMemory(data, bytes, std::move(owned));
}

void SharedMemory::Unmap::operator()(std::byte* data) const { munmap(data, bytes); }

void FutexWait(const std::atomic<uint32_t>& word, uint32_t value, absl::Duration longest) {
  const timespec time = absl::ToTimespec(longest);
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void FutexWake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace psring
