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
namespace {

absl::StatusOr<std::byte*> Map(int fd, size_t bytes, int more_flags) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | more_flags, fd, 0);
  if (memory != MAP_FAILED) return static_cast<std::byte*>(memory);
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot map ", bytes, " bytes of shared memory: ", strerror(errno)));
}

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::Create(size_t bytes) {
  const int fd = memfd_create("psring", MFD_CLOEXEC);
  if (fd < 0) return absl::InternalError(absl::StrCat("memfd_create: ", strerror(errno)));
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    close(fd);
    return absl::ResourceExhaustedError(
        absl::StrCat("no shared memory of ", bytes, " bytes: ", strerror(error)));
  }
  return Adopt(fd, bytes, /*prefault=*/false);
}

absl::StatusOr<SharedMemory> SharedMemory::Adopt(int fd, size_t bytes, bool prefault) {
  const absl::StatusOr<std::byte*> memory = Map(fd, bytes, prefault ? MAP_POPULATE : 0);
  if (!memory.ok()) {
    close(fd);
    return memory.status();
  }
  return SharedMemory(*memory, bytes, fd);
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

void FutexWait(const std::atomic<uint32_t>& word, uint32_t value, absl::Duration longest) {
  const timespec time = absl::ToTimespec(longest);
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void FutexWake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace psring
