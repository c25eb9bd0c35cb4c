#include "common/io/checkpoint_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/file_descriptor.h"
#include "common/io/files.h"
#include "common/io/json_object.h"
#include "common/text/translate.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "step";
constexpr char kPartsPrefix[] = "workers-", kRandomLetters[] = "XXXXXX";
constexpr char kUnfinished[] = ".part";

// Writes files into a folder, each forced to disk when the next begins.
class FolderSink : public CheckpointSink {
 public:
  explicit FolderSink(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Append(const std::string& file, std::string_view piece) override {
    const std::string path = absl::StrCat(folder_, "/", file);
    if (path != path_) {
      PSRING_RETURN_IF_ERROR(End());
      file_ = FileDescriptor(open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0644));
      if (!file_.valid()) return FileError("write", path);
      path_ = path;
    }
    return WriteToFile(file_.get(), piece.data(), piece.size(), path_);
  }
  absl::Status End() {
    if (!file_.valid()) return absl::OkStatus();
    PSRING_RETURN_IF_ERROR(ForceToDisk(file_.get(), path_));
    file_ = FileDescriptor();
    return absl::OkStatus();
  }

 private:
  const std::string folder_;
  std::string path_;
  FileDescriptor file_;
};

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
  const absl::StatusOr<JsonObject> json = JsonObject::Parse(*text, kMaxTextBytes);
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

// The folders step<N>, with (`complete`) or without kPositionFile.
std::vector<CheckpointPath> StepFolders(const std::string& folder, bool complete) {
  std::vector<CheckpointPath> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    absl::string_view digits = name;
    int64_t step = 0;
    std::error_code none;
    if (!absl::ConsumePrefix(&digits, kPrefix) || !absl::SimpleAtoi(digits, &step) || step < 0) continue;
    if (fs::exists(entry.path() / kPositionFile, none) != complete) continue;
    found.push_back({.step = step,
                     .sequence = complete ? SequenceIn(entry.path() / kPositionFile) : -1,
                     .path = entry.path().string()});
  }
  return found;
}

}  // namespace

std::string WorkerFile(int rank) { return absl::StrCat("worker", rank, ".safetensors"); }

std::vector<CheckpointPath> ListCheckpoints(const std::string& folder) {
  std::vector<CheckpointPath> found = StepFolders(folder, /*complete=*/true);
  std::ranges::sort(found, std::greater(),
                    [](const CheckpointPath& p) { return std::pair(p.sequence, p.step); });
  return found;
}

std::vector<std::string> IncompleteCheckpoints(const std::string& folder, int64_t step) {
  std::vector<std::string> paths;
  for (const CheckpointPath& one : StepFolders(folder, /*complete=*/false)) {
    if (one.step > step) paths.push_back(one.path);
  }
  return paths;
}

absl::Status OpenCheckpoints(const std::string& folder, int64_t sequence) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || access(folder.c_str(), W_OK | X_OK) != 0) {
    return InvalidArgument(Tr("--checkpoint_dir: cannot write to $0: $1", folder,
                              Translation(error ? error.message() : strerror(errno))));
  }
  const std::vector<CheckpointPath> there = ListCheckpoints(folder);
  if (there.empty() || there.front().sequence <= sequence) {
    RemoveFrom(folder, kPartsPrefix, "");
    return absl::OkStatus();
  }
  return InvalidArgument("--checkpoint_dir ", folder, " contains a checkpoint of step ", there.front().step,
                         " that this run does not continue; use --resume latest, or choose another folder");
}

absl::StatusOr<std::string> MakePartsFolder(const std::string& folder) {
  std::string path = absl::StrCat(folder, "/", kPartsPrefix, kRandomLetters);
  if (mkdtemp(path.data()) == nullptr) return FileError("make", path);
  return fs::path(path).filename().string();
}

bool IsPartsFolder(const std::string& name) {
  absl::string_view letters = name;
  return absl::ConsumePrefix(&letters, kPartsPrefix) && letters.size() == strlen(kRandomLetters) &&
         std::all_of(letters.begin(), letters.end(), absl::ascii_isalnum);
}

absl::Status WritePart(const std::string& folder, const std::string& name, const std::string& bytes) {
  const std::string path = absl::StrCat(folder, "/", name);
  const FileDescriptor in(open(folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!in.valid()) return FileError("open", folder);
  const FileDescriptor file(
      openat(in.get(), name.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file.valid()) return FileError("write", path);
  return WriteToFile(file.get(), bytes.data(), bytes.size(), path);
}

absl::Status SaveCheckpoint(const std::string& folder, int64_t step, const CheckpointContent& content,
                            int keep) {
  RemoveFrom(folder, kPrefix, kUnfinished);
  const std::string path = absl::StrCat(folder, "/", kPrefix, step);
  const std::string beside = absl::StrCat(path, kUnfinished);
  std::error_code error;
  fs::create_directories(beside, error);
  if (error) return Unavailable(Tr("cannot write $0: $1", beside, Translation(error.message())));
  FolderSink sink(beside);
  absl::Status status = content(sink);
  if (status.ok()) status = sink.End();
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
