// Lists of runs, with manifests and tables written by hand.
#include "experiments/verbs/results/results.h"

#include <filesystem>
#include <fstream>

#include "tests/has.h"
#include "tests/test_folder.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

class ResultsTest : public testing::Test {
 protected:
  void Put(const std::string& run, const std::string& file, const std::string& text) const {
    fs::create_directories(folder_ / run);
    std::ofstream(folder_ / run / file) << text;
  }
  // What is printed, without the path of the folder.
  std::string List(int code = 0) const {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    {
      Display display(stdout, /*terminal=*/false);
      EXPECT_EQ(RunResults({.folder = folder_.string()}, display), code);
    }
    std::string text = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
    for (size_t at; (at = text.find(folder_.string())) != std::string::npos;)
      text.erase(at, folder_.string().size());
    return text;
  }

  const TestFolder made_;
  const fs::path folder_ = made_.path();
};

TEST_F(ResultsTest, AreTheLatestRunsFirstWithTheirVerdicts) {
  Put("a", "manifest.json",
      R"({"started_utc":"2026-11-27T10:00:00Z","verb":"compare","command_line":["psring","compare"],"finished":true})");
  Put("a", "table.json", R"({"en":{"verdict":"Use ring with 4 workers.","settings":"mlp, 1 Gbit/s"}})");
  Put("b", "manifest.json",
      R"({"started_utc":"2026-11-28T09:30:00Z","verb":"bench","command_line":["psring","bench","-b","1M"],"finished":true})");
  Put("c", "manifest.json", R"({"started_utc":"2026-11-28T11:00:00Z","verb":"train","finished":false})");
  fs::create_directory_symlink("a", folder_ / "latest");
  EXPECT_EQ(List(),
            "2026-11-28 11:00  /c  train\n"
            "    did not finish\n"
            "2026-11-28 09:30  /b  bench  -b 1M\n"
            "2026-11-27 10:00  /a  compare  mlp, 1 Gbit/s\n"
            "    Use ring with 4 workers.\n");
}

TEST_F(ResultsTest, TextsOfARunCannotControlTheTerminal) {
  Put("a", "manifest.json", R"({"started_utc":7,"verb":"x\u001b[2J","command_line":[1,2,"\n",{}]})");
  Put("a", "table.json", R"({"en":{"verdict":"one\ntwo","settings":[]}})");
  const std::string text = List();
  EXPECT_THAT(text, Has("x\\x1b[2J", "    one\\x0atwo\n"));
  EXPECT_THAT(text, Lacks("\033"));
}

TEST_F(ResultsTest, AFolderWithoutRunsIsAnErrorOfOneLine) {
  Put("a", "manifest.json", "[]");
  Put("b", "other.json", "{}");
  EXPECT_THAT(List(2), OneLineWith("psring results: ", "contains no folder of a run"));
}

}  // namespace
}  // namespace psring
