#include <fcntl.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/base/file_descriptor.h"
#include "common/io/files.h"
#include "common/text/translate.h"
#include "experiments/launch/interrupt.h"
#include "experiments/launch/launcher.h"
#include "experiments/launch/temporary_folder.h"
#include "experiments/verbs/report/report_verb.h"
#include "experiments/virtual_cluster/namespaces.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> Sha256(const std::string& bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    return absl::InternalError("OpenSSL cannot compute SHA-256");
  }
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), size});
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
                  kMaxRecordBytes, SymbolicLinks::kReject);
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
    return InvalidTr("$0 is not a run's folder: it contains no manifest.json", folder);
  }
  const std::string tar = FindTool("tar");
  if (tar.empty()) return absl::NotFoundError("--pack needs tar; install it");
  const FileDescriptor in(open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!in.valid()) return FileError("open", root.string());
  const std::vector<std::string> files = FilesOf(root, archive);
  // tar reads a copy, which no other program changes.
  const std::string place = fs::path(archive).parent_path().string();
  PSRING_ASSIGN_OR_RETURN(const TemporaryFolder work,
                          TemporaryFolder::Create(place.empty() ? "." : place, "choose another --out"));
  const std::string copies = work.path() + "/copy", packed = work.path() + "/archive";
  const fs::path copy = fs::path(copies) / root.filename();
  fs::create_directories(copy, error);
  std::string sums;
  for (const std::string& path : files) {
    PSRING_ASSIGN_OR_RETURN(const std::string bytes, ReadBelow(in.get(), path));
    PSRING_ASSIGN_OR_RETURN(const std::string hash, Sha256(bytes));
    sums += SumLine(hash, path);
    fs::create_directories((copy / path).parent_path(), error);
    PSRING_RETURN_IF_ERROR(WriteFile((copy / path).string(), bytes));
  }
  PSRING_RETURN_IF_ERROR(WriteFile((copy / "SHA256SUMS").string(), sums));
  const Interrupt interrupt;
  PSRING_RETURN_IF_ERROR(
      RunForOutput({tar, "--create", "--file=" + packed, "--force-local", "--format=gnu", "--sort=name",
                    "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX",
                    "--directory=" + copies, "--", root.filename().string()},
                   absl::Hours(1), interrupt)
          .status());
  return rename(packed.c_str(), archive.c_str()) == 0 ? absl::OkStatus() : FileError("rename to", archive);
}

}  // namespace psring
