#include "common/base/shared_memory.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace psring {
absl::StatusOr<SharedMemory> SharedMemory::Create(size_t bytes) {
  FileDescriptor fd(memfd_create("psring", MFD_CLOEXEC));
  if (!fd.valid()) return absl::InternalError(absl::StrCat("memfd_create: ", strerror(errno)));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate shared memory of ", bytes, " bytes: ", strerror(errno)));
  }
  return Adopt(fd.release(), bytes, /*prefault=*/false);
}

absl::StatusOr<SharedMemory> SharedMemory::Adopt(int fd, size_t bytes, bool prefault) {
  FileDescriptor owned(fd);
  const int flags = MAP_SHARED | (prefault ? MAP_POPULATE : 0);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (memory != MAP_FAILED) return SharedMemory(static_cast<std::byte*>(memory), bytes, std::move(owned));
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot map ", bytes, " bytes of shared memory: ", strerror(errno)));
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
