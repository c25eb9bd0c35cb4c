// The half of records.h that is about bytes: files, memory, hashes.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/durable_file.h"
#include "common/records.h"

namespace psring {
namespace {

absl::Status FileError(const std::string& what, const std::string& path, int error) {
  const std::string message = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
}

}  // namespace

absl::Status WriteFile(const std::string& path, const std::string& text) {
  static std::atomic<int> count{0};  // two threads may write one path
  const std::string temporary = absl::StrCat(path, ".tmp-", ::getpid(), "-", count.fetch_add(1));
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return FileError("write", path, errno);
  absl::Status status = WriteToFile(file, text.data(), text.size(), path);
  if (::close(file) != 0 && status.ok()) status = FileError("write", path, errno);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = FileError("write", path, errno);
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return FileError("read", path, errno);
  std::string text;
  struct stat info;
  if (::fstat(file, &info) == 0 && info.st_size > 0) text.reserve(static_cast<size_t>(info.st_size));
  char block[1 << 16];
  while (true) {
    const ssize_t n = ::read(file, block, sizeof(block));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      ::close(file);
      return FileError("read", path, error);
    }
    if (n == 0) break;
    text.append(block, static_cast<size_t>(n));
  }
  ::close(file);
  return text;
}

double PeakMemoryMb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::strtod(line.c_str() + 6, nullptr) / 1024;  // in KiB
  }
  return 0;
}

std::string HashBytes(const void* data, size_t bytes) {
  // Eight lanes, so that eight multiplications are in flight; each word changes its lane by a bijection, so a
  // single changed word always changes the hash of its lane.
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  constexpr size_t kLanes = 8;
  constexpr size_t kBlock = kLanes * sizeof(uint64_t);
  uint64_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = (i + 1) * 0xd1b54a32d192ed03;

  const auto mix_block = [&lanes](const unsigned char* block) {
    uint64_t words[kLanes];
    std::memcpy(words, block, kBlock);
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = std::rotl((lanes[i] ^ words[i]) * kOdd, 31);
  };
  const auto* at = static_cast<const unsigned char*>(data);
  size_t left = bytes;
  for (; left >= kBlock; left -= kBlock, at += kBlock) mix_block(at);
  if (left > 0) {
    unsigned char last[kBlock] = {};
    std::memcpy(last, at, left);
    mix_block(last);
  }

  uint64_t hash = bytes * kOdd;
  for (const uint64_t lane : lanes) {  // the finaliser of MurmurHash3, once a lane
    hash ^= lane;
    hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccd;
    hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53;
    hash ^= hash >> 33;
  }
  return absl::StrFormat("%016x", hash);
}

}  // namespace psring
