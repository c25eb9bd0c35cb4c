#include "trainer/main/record_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/base/file_descriptor.h"
#include "common/io/files.h"

namespace psring {
namespace {

// A restarted rank may start before its killed predecessor has exited.
constexpr absl::Duration kPredecessorEnds = absl::Seconds(2);

constexpr int64_t kFlushEveryNs = 2'000'000'000;

// False: another process has the lock. On a file system without locks, runs are not protected from each
// other.
bool Lock(int file) {
  const MonotonicTime deadline = MonotonicNow() + kPredecessorEnds;
  while (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (MonotonicNow() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

}  // namespace

std::string RecordWriter::Path(const std::string& stem, const std::string& extension) const {
  return absl::StrCat(folder_, "/", stem, "-rank", rank_, ".", extension);
}

absl::StatusOr<std::unique_ptr<RecordWriter>> RecordWriter::Open(const std::string& folder, int rank) {
  auto writer = std::unique_ptr<RecordWriter>(new RecordWriter(folder, rank));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = writer->Path("steps", "jsonl");
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!file.valid()) return FileError("write", path);
  if (!Lock(file.get())) {
    return FailedPrecondition("cannot write ", path,
                              ": another run is writing it; give each run its own --record folder");
  }
  // EINVAL: a pipe, which cannot be truncated.
  if (ftruncate(file.get(), 0) != 0 && errno != EINVAL) return FileError("write", path);
  std::filesystem::remove(writer->Path("result", "json"),
                          error);  // its presence means that the run is complete
  writer->steps_.reset(fdopen(file.get(), "w"));
  if (writer->steps_ == nullptr) return FileError("write", path);
  file.release();  // steps_ owns it, with the lock
  return writer;
}

absl::Status RecordWriter::Add(const StepRecord& record) {
  const std::string line = ToJson(record) + "\n";
  bool written = std::fwrite(line.data(), 1, line.size(), steps_.get()) == line.size();
  if (record.begin_ns - flushed_ns_ > kFlushEveryNs) {
    written = std::fflush(steps_.get()) == 0 && written;
    flushed_ns_ = record.begin_ns;
  }
  if (written_.ok() && !written) written_ = FileError("write", Path("steps", "jsonl"));
  return written_;
}

absl::Status RecordWriter::Finish(const Trace& trace, const RankResult& result) {
  PSRING_RETURN_IF_ERROR(written_);
  if (std::fflush(steps_.get()) != 0) return FileError("write", Path("steps", "jsonl"));
  PSRING_RETURN_IF_ERROR(WriteFile(Path("trace", "json"),
                                   absl::StrCat("{\"traceEvents\":[\n", ChromeTraceEvents(trace), "\n]}\n")));
  return WriteFile(Path("result", "json"), ToJson(result) + "\n");
}

}  // namespace psring
