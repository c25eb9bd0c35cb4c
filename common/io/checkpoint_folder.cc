#include "common/io/checkpoint_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/file_descriptor.h"
#include "common/io/files.h"
#include "common/io/json_object.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "step";
constexpr char kPartsPrefix[] = "workers-";
constexpr char kUnfinished[] = ".part";

absl::Status WriteThrough(const std::string& path, const std::string& bytes) {
  const FileDescriptor file(open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644));
  if (!file.valid()) return FileError("write", path);
  PSRING_RETURN_IF_ERROR(WriteToFile(file.get(), bytes.data(), bytes.size(), path));
  return ForceToDisk(file.get(), path);
}

// Renames `from` to `to`, which may exist: a reader finds the old one or the new one.
absl::Status MoveInPlace(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  if (errno != ENOTEMPTY && errno != EEXIST) return FileError("rename", from);
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return absl::OkStatus();
  // The file system cannot exchange: for a moment `to` does not exist, and an older checkpoint is the newest.
  const std::string old = to + ".old" + kUnfinished;
  if (rename(to.c_str(), old.c_str()) != 0 || rename(from.c_str(), to.c_str()) != 0) {
    return FileError("rename", from);
  }
  return absl::OkStatus();
}

int64_t SequenceIn(const fs::path& position_file) {
  const absl::StatusOr<std::string> text = ReadFile(position_file.string());
  if (!text.ok()) return -1;
  const absl::StatusOr<JsonObject> json = JsonObject::Parse(*text, kMostTextBytes);
  return json.ok() ? json->WholeNumber<int64_t>("sequence", 0, INT64_MAX).value_or(-1) : -1;
}

// Removes the entries of `folder` whose names have this prefix and suffix.
void RemoveFrom(const std::string& folder, const char* prefix, const char* suffix) {
  std::vector<fs::path> left;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, prefix) && absl::EndsWith(name, suffix)) left.push_back(entry.path());
  }
  for (const fs::path& path : left) fs::remove_all(path, error);
}

}  // namespace

std::string WorkerFile(int rank) { return absl::StrCat("worker", rank, ".safetensors"); }

std::vector<CheckpointPath> ListCheckpoints(const std::string& folder) {
  std::vector<CheckpointPath> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    absl::string_view digits = name;
    int64_t step = 0;
    std::error_code none;
    if (absl::ConsumePrefix(&digits, kPrefix) && absl::SimpleAtoi(digits, &step) && step >= 0 &&
        fs::exists(entry.path() / kPositionFile, none)) {
      found.push_back({.step = step,
                       .sequence = SequenceIn(entry.path() / kPositionFile),
                       .path = entry.path().string()});
    }
  }
  std::sort(found.begin(), found.end(), [](const CheckpointPath& a, const CheckpointPath& b) {
    return std::pair(a.sequence, a.step) > std::pair(b.sequence, b.step);
  });
  return found;
}

absl::Status OpenCheckpoints(const std::string& folder, int64_t sequence) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || access(folder.c_str(), W_OK | X_OK) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--checkpoint_dir: cannot write to ", folder, ": ",
                                                   error ? error.message() : strerror(errno)));
  }
  const std::vector<CheckpointPath> there = ListCheckpoints(folder);
  if (there.empty() || there.front().sequence <= sequence) {
    RemoveFrom(folder, kPartsPrefix, "");
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--checkpoint_dir ", folder, " contains a checkpoint of step ", there.front().step,
                   " that this run does not continue; use --resume latest, or choose another folder"));
}

absl::StatusOr<std::string> MakePartsFolder(const std::string& folder) {
  std::error_code error;
  std::string path = absl::StrCat(fs::absolute(folder, error).string(), "/", kPartsPrefix, "XXXXXX");
  if (mkdtemp(path.data()) == nullptr) return FileError("make", path);
  return path;
}

absl::Status SaveCheckpoint(const std::string& folder, int64_t step, const CheckpointFiles& files, int keep) {
  RemoveFrom(folder, kPrefix, kUnfinished);
  const std::string path = absl::StrCat(folder, "/", kPrefix, step);
  const std::string beside = absl::StrCat(path, kUnfinished);
  std::error_code error;
  fs::create_directories(beside, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot write ", beside, ": ", error.message()));
  }
  absl::Status status;
  for (const auto& [name, bytes] : files) {
    if (status.ok()) status = WriteThrough(absl::StrCat(beside, "/", name), bytes);
  }
  if (status.ok()) status = ForceFolderToDisk(beside);
  if (status.ok()) status = MoveInPlace(beside, path);
  if (status.ok()) status = ForceFolderToDisk(folder);
  if (status.ok()) {
    const std::vector<CheckpointPath> all = ListCheckpoints(folder);
    for (size_t i = static_cast<size_t>(keep); i < all.size(); ++i) {
      // Removes the marker file first, so that an interrupted removal leaves no incomplete checkpoint.
      fs::remove(fs::path(all[i].path) / kPositionFile, error);
      fs::remove_all(all[i].path, error);
    }
  }
  RemoveFrom(folder, kPrefix, kUnfinished);
  return status;
}

}  // namespace psring
