#include "trainer/record_writer.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace psring {

std::string RecordWriter::Path(const std::string& stem, const std::string& extension) const {
  return absl::StrCat(folder_, "/", stem, "-rank", rank_, ".", extension);
}

absl::StatusOr<std::unique_ptr<RecordWriter>> RecordWriter::Open(const std::string& folder, int rank) {
  auto writer = std::unique_ptr<RecordWriter>(new RecordWriter(folder, rank));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::filesystem::remove(writer->Path("result", "json"), error);  // who reads it takes the run for complete
  const std::string path = writer->Path("steps", "jsonl");
  writer->steps_.reset(std::fopen(path.c_str(), "we"));
  if (writer->steps_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  return writer;
}

void RecordWriter::Add(const StepRecord& record) {
  std::fprintf(steps_.get(), "%s\n", ToJson(record).c_str());  // a failure shows in Finish
}

absl::Status RecordWriter::Finish(const Trace& trace, const RankResult& result) {
  if (std::fflush(steps_.get()) != 0 || std::ferror(steps_.get()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", Path("steps", "jsonl")));
  }
  PSRING_RETURN_IF_ERROR(WriteFile(Path("trace", "json"),
                                   absl::StrCat("{\"traceEvents\":[\n", ChromeTraceEvents(trace), "\n]}\n")));
  return WriteFile(Path("result", "json"), ToJson(result) + "\n");
}

}  // namespace psring
