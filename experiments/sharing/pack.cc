#include "experiments/sharing/pack.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/base/file_descriptor.h"
#include "common/io/files.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlock = 512, kMostName = 99, kMostPrefix = 154;  // of ustar

absl::StatusOr<std::string> Sha256(const std::string& bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    return absl::InternalError("OpenSSL cannot compute SHA-256");
  }
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), size});
}

// The header of a file with `bytes` bytes.
absl::StatusOr<std::string> Header(const std::string& path, size_t bytes) {
  size_t slash = std::string::npos;
  if (path.size() > kMostName) {
    slash = path.find('/', path.size() - kMostName - 1);
    if (slash == std::string::npos || slash > kMostPrefix) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the path is too long for a tar archive"));
    }
  }
  std::string header(kBlock, '\0');
  const auto put = [&](size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  put(0, slash == std::string::npos ? path : path.substr(slash + 1));
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, absl::StrFormat("%011o", bytes));
  put(136, "00000000000");
  put(148, "        ");
  put(156, "0");
  put(257, "ustar");
  put(263, "00");
  if (slash != std::string::npos) put(345, path.substr(0, slash));
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  put(148, absl::StrFormat("%06o", sum));
  header[154] = '\0';
  return header;
}

// The files to pack, relative to `folder`, in order.
std::vector<std::string> FilesOf(const fs::path& folder, const fs::path& archive) {
  std::vector<std::string> files;
  std::error_code error, ignored;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename() == "checkpoints" && at->is_directory(ignored)) at.disable_recursion_pending();
    if (at->is_symlink(ignored) || !at->is_regular_file(ignored)) continue;
    if (fs::equivalent(at->path(), archive, ignored) || at->path().filename() == "SHA256SUMS") continue;
    files.push_back(at->path().lexically_relative(folder).string());
  }
  std::ranges::sort(files);
  return files;
}

// The bytes of `path` below the folder `root`. Follows no link, so nothing outside is packed, even if the run
// folder changes meanwhile.
absl::StatusOr<std::string> ReadBelow(int root, const std::string& path) {
  FileDescriptor folder(fcntl(root, F_DUPFD_CLOEXEC, 0));
  const fs::path parent = fs::path(path).parent_path();
  for (const fs::path& part : parent) {
    FileDescriptor next(openat(folder.get(), part.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next.valid()) return FileError("open", path);
    folder = std::move(next);
  }
  return ReadFile(absl::StrCat("/proc/self/fd/", folder.get(), "/", fs::path(path).filename().string()),
                  kMostRecordBytes, SymbolicLinks::kReject);
}

// A line of SHA256SUMS, as sha256sum writes and reads it.
std::string SumLine(const std::string& hash, const std::string& path) {
  const std::string escaped = absl::StrReplaceAll(path, {{"\\", "\\\\"}, {"\n", "\\n"}, {"\r", "\\r"}});
  return absl::StrCat(escaped == path ? "" : "\\", hash, "  ", escaped, "\n");
}

}  // namespace

absl::Status PackRun(const std::string& folder, const std::string& archive) {
  std::error_code error;
  const fs::path root = fs::canonical(folder, error);
  if (error || !fs::exists(root / "manifest.json", error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, " is not a run's folder: it contains no manifest.json"));
  }
  const FileDescriptor in(open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!in.valid()) return FileError("open", root.string());
  const std::string temporary = absl::StrCat(archive, ".part-", getpid());
  const FileDescriptor file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.valid()) return FileError("create", temporary);
  const std::string name = root.filename().string();
  const auto add = [&](const std::string& path, const std::string& bytes) -> absl::Status {
    PSRING_ASSIGN_OR_RETURN(std::string block, Header(absl::StrCat(name, "/", path), bytes.size()));
    block += bytes;
    block.resize((block.size() + kBlock - 1) / kBlock * kBlock, '\0');
    return WriteToFile(file.get(), block.data(), block.size(), temporary);
  };
  const auto write = [&]() -> absl::Status {
    std::string sums;
    for (const std::string& path : FilesOf(root, temporary)) {
      if (fs::equivalent(root / path, archive, error)) continue;
      PSRING_ASSIGN_OR_RETURN(const std::string bytes, ReadBelow(in.get(), path));
      PSRING_ASSIGN_OR_RETURN(const std::string hash, Sha256(bytes));
      sums += SumLine(hash, path);
      PSRING_RETURN_IF_ERROR(add(path, bytes));
    }
    PSRING_RETURN_IF_ERROR(add("SHA256SUMS", sums));
    const std::string end(2 * kBlock, '\0');
    PSRING_RETURN_IF_ERROR(WriteToFile(file.get(), end.data(), end.size(), temporary));
    return rename(temporary.c_str(), archive.c_str()) == 0 ? absl::OkStatus()
                                                           : FileError("rename to", archive);
  };
  const absl::Status written = write();
  if (!written.ok()) fs::remove(temporary, error);
  return written;
}

}  // namespace psring
