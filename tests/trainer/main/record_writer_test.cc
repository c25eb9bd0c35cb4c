#include "trainer/main/record_writer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/full_disk.h"
#include "tests/has.h"
#include "tests/test_folder.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

TEST(RecordWriter, AFullDiskIsReportedAfterAFewSteps) {
  const TestFolder folder;
  if (!MakeFullFile(folder / "steps-rank3.jsonl")) GTEST_SKIP() << "only root may create devices";
  const auto writer = RecordWriter::Open(folder.path(), 3).value();
  absl::Status status;
  int64_t step = 0;
  for (; status.ok() && step < 100; ++step) status = writer->Add({.rank = 3, .step = step});
  EXPECT_EQ(status.message(),
            absl::StrCat("cannot write ", folder.path(), "/steps-rank3.jsonl: No space left on device"));
  EXPECT_LT(step, 50);
  const absl::Status finished = writer->Finish(Trace(3), RankResult());
  EXPECT_THAT(finished.message(), Has("No space left on device"));
  EXPECT_FALSE(fs::exists(folder / "result-rank3.json"));
}

}  // namespace
}  // namespace psring
