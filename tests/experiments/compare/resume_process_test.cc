// The real binary: a comparison that ends early keeps its finished rounds and is continued.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/experiments/psring_in_a_folder.h"
#include "tests/has.h"
#include "tests/random_moments.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

class ResumeTest : public PsringInAFolder {
 protected:
  // 3 rounds of single, none and ring.
  static std::vector<std::string> Rounds(const std::string& out) {
    return {"compare", "--data",  "synthetic", "--model",   "mlp-small", "--strategies", "ring", "--workers",
            "2",       "--batch", "32",        "--repeats", "3",         "--steps",      "4",    "--link",
            "none",    "--out",   out};
  }
  static std::vector<std::string> With(std::vector<std::string> arguments,
                                       const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static std::vector<std::string> OnlyRounds(const std::string& out) {
    return With(Rounds(out), {"--no_eval"});
  }
  // Then trainings of single and ring.
  static std::vector<std::string> Comparison(const std::string& out) {
    return With(Rounds(out), {"--samples", "640"});
  }
  fs::path Folder(const std::string& run) const { return root_ / "work" / run; }
  nlohmann::json Json(const std::string& run, const std::string& file) const {
    return nlohmann::json::parse(Slurp(Folder(run) / file), nullptr, false);
  }
  // Lines of runs.csv of one part.
  int Launches(const std::string& run, const std::string& part) const {
    const std::string text = Slurp(Folder(run) / "runs.csv");
    int count = 0;
    for (size_t at = 0; (at = text.find("," + part + ",", at)) != std::string::npos; ++at) ++count;
    return count;
  }
  // Starts the comparison, and sends it `signal` while the launch with this record folder runs.
  Outcome InterruptDuring(const std::vector<std::string>& arguments, const fs::path& records, int signal) {
    const pid_t psring = Start(arguments);
    EXPECT_TRUE(Eventually([&] { return fs::exists(records); })) << records;
    kill(psring, signal);
    return Finish(psring);
  }
};

TEST_F(ResumeTest, AnInterruptedComparisonReportsItsRoundsAndContinues) {
  const Outcome first = InterruptDuring(Comparison("run"), Folder("run") / "records/cost-3", SIGINT);
  EXPECT_EQ(first.exit_code, 128 + SIGINT);
  EXPECT_THAT(first.err, Has("interrupted (SIGINT); the results are those of 2 rounds"));
  EXPECT_THAT(first.out, Has("ring", "continue: psring compare --resume run"));
  EXPECT_FALSE(Slurp(Folder("run") / "findings.txt").empty());
  EXPECT_FALSE(Slurp(Folder("run") / "report.html").empty());
  const auto partial = Json("run", "summary.json");
  ASSERT_EQ(partial.size(), 3) << partial.dump(1);
  for (const auto& row : partial) EXPECT_EQ(row["rounds"]["step_ms"].size(), 2);
  EXPECT_EQ(Json("run", "manifest.json")["finished"], false);
  EXPECT_EQ(Json("run", "manifest.json")["ended"], "interrupted (SIGINT)");
  EXPECT_EQ(Launches("run", "cost"), 2 * 3) << "only those of finished rounds";

  const Outcome second = Run({"compare", "--resume", "run"});
  ASSERT_EQ(second.exit_code, 0) << second.out << second.err;
  EXPECT_THAT(second.out, Has("resumed after 2 rounds of 3"));
  EXPECT_THAT(second.out, Lacks("round 2/3"));
  const auto whole = Json("run", "summary.json");
  ASSERT_EQ(whole.size(), 3);
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(whole[i]["rounds"]["step_ms"].size(), 3);
    for (size_t round = 0; round < 2; ++round) {
      EXPECT_EQ(whole[i]["rounds"]["step_ms"][round], partial[i]["rounds"]["step_ms"][round]);
    }
  }
  const auto manifest = Json("run", "manifest.json");
  EXPECT_EQ(manifest["finished"], true);
  EXPECT_EQ(manifest["cost"]["rounds_done"], 3);
  EXPECT_EQ(Launches("run", "cost"), 3 * 3);
  EXPECT_EQ(Launches("run", "accuracy"), 3 * 2);
  EXPECT_FALSE(nlohmann::json::parse(Slurp(Folder("run") / "trace.json"))["traceEvents"].empty());

  const Outcome third = Run({"compare", "--resume", "run"});
  EXPECT_EQ(third.exit_code, 2);
  EXPECT_THAT(third.err, Has("this comparison is finished, with 3 rounds"));
}

TEST_F(ResumeTest, TrainingsThatHaveEndedAreKept) {
  const Outcome first =
      InterruptDuring(Comparison("run"), Folder("run") / "records/accuracy-2/single-1", SIGTERM);
  EXPECT_EQ(first.exit_code, 128 + SIGTERM) << first.out << first.err;
  EXPECT_EQ(Launches("run", "accuracy"), 2);
  const auto before = Json("run", "manifest.json")["accuracy"]["trainings_done"];
  EXPECT_EQ(before.size(), 2) << before;
  const Outcome second = Run({"compare", "--resume", "run"});
  ASSERT_EQ(second.exit_code, 0) << second.out << second.err;
  EXPECT_EQ(Launches("run", "cost"), 3 * 3);
  EXPECT_EQ(Launches("run", "accuracy"), 3 * 2);
  for (const auto& row : Json("run", "summary.json")) {
    if (row["figures"]["strategy"] == "none") continue;
    EXPECT_EQ(row["accuracy"]["trainings"], 3) << row;
  }
}

TEST_F(ResumeTest, AFailedRoundKeepsTheOthers) {
  const pid_t psring = Start(OnlyRounds("run"));
  // Round 2 cannot write its records, because a file has the name of their folder.
  const fs::path in_the_way = Folder("run") / "records/cost-2";
  EXPECT_TRUE(Eventually([&] { return fs::exists(Folder("run") / "records/cost-1"); }));
  std::ofstream(in_the_way) << "x";
  const Outcome first = Finish(psring);
  EXPECT_EQ(first.exit_code, 2) << first.out << first.err;
  EXPECT_THAT(first.err, Has("cannot create run/records/cost-2", "the results are those of 1 round"));
  for (const auto& row : Json("run", "summary.json")) EXPECT_EQ(row["rounds"]["step_ms"].size(), 1);
  fs::remove(in_the_way);
  const Outcome second = Run({"compare", "--resume", "run"});
  EXPECT_EQ(second.exit_code, 0) << second.out << second.err;
  for (const auto& row : Json("run", "summary.json")) EXPECT_EQ(row["rounds"]["step_ms"].size(), 3);
}

TEST_F(ResumeTest, ASignalInTheFirstRoundSaysThatThereAreOnlyLogs) {
  const Outcome first = InterruptDuring(OnlyRounds("run"), Folder("run") / "records/cost-1", SIGINT);
  EXPECT_EQ(first.exit_code, 128 + SIGINT);
  EXPECT_EQ(first.err, "psring compare: interrupted (SIGINT); there are no results; the logs are in run\n");
  EXPECT_FALSE(fs::exists(Folder("run") / "summary.csv"));
  EXPECT_TRUE(fs::exists(Folder("run") / "records/cost-1"));
}

TEST_F(ResumeTest, OnlyTheSameRunIsContinued) {
  const Outcome first = InterruptDuring(OnlyRounds("run"), Folder("run") / "records/cost-2", SIGINT);
  ASSERT_EQ(first.exit_code, 128 + SIGINT) << first.err;
  const auto refused = [&](const std::vector<std::string>& flags, const std::string& why) {
    std::vector<std::string> arguments = {"compare"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << why << outcome.out << outcome.err;
    EXPECT_THAT(outcome.err, IsOneLine());
    EXPECT_THAT(outcome.err, Has(why));
  };
  refused({"--resume", "run", "--workers", "3"}, "which have --workers 2; omit --workers 3");
  refused({"--resume", "run", "--wire", "bfloat16"}, "which have no --wire; omit --wire bfloat16");
  refused({"--resume", "/no/such/run"}, "there is no such folder");
  fs::create_directory(Path("empty"));
  refused({"--resume", "empty"}, "it has no manifest.json");
  std::ofstream(Path("empty/manifest.json")) << "{\"schema_version\": 1, \"verb\": \"train\"}";
  refused({"--resume", "empty"}, "psring train --resume");
  // The same flag again is no contradiction, and a dry run changes nothing.
  const std::string before = Slurp(Folder("run") / "manifest.json");
  const Outcome dry = Run(Words("compare --resume run --workers 2 --dry_run"));
  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  EXPECT_EQ(Slurp(Folder("run") / "manifest.json"), before);
  // As if it were from another machine.
  auto manifest = nlohmann::json::parse(before);
  manifest["machine"]["cores"] = 999;
  std::ofstream(Folder("run") / "manifest.json") << manifest.dump();
  refused({"--resume", "run"}, "machine: cores 999 then");
}

// Whatever a power cut has done to one file, the comparison continues, or says in one line that it cannot.
TEST_F(ResumeTest, ADamagedFileCostsAtMostItsRounds) {
  const Outcome first =
      InterruptDuring(Comparison("run"), Folder("run") / "records/accuracy-1/ring-2", SIGINT);
  ASSERT_EQ(first.exit_code, 128 + SIGINT) << first.err;
  fs::rename(Folder("run"), Folder("interrupted"));
  AtRandomMoments(1, [&](std::mt19937& random) {
    fs::copy(Folder("interrupted"), Folder("run"), fs::copy_options::recursive);
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(Folder("run"))) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::ranges::sort(files);
    const fs::path& file = files[random() % files.size()];
    const std::string whole = Slurp(file);
    const size_t kept = whole.empty() ? 0 : random() % whole.size();
    const char* const kinds[] = {"truncated", "zeros from there", "removed"};
    const size_t kind = random() % 3;
    std::printf("%s: %s at %zu of %zu bytes\n", file.c_str(), kinds[kind], kept, whole.size());
    fs::remove(file);
    if (kind < 2)
      std::ofstream(file) << whole.substr(0, kept) << std::string(kind * (whole.size() - kept), 0);
    const Outcome second = Run({"compare", "--resume", "run"});
    if (file.filename() == "manifest.json" && second.exit_code == 2) {
      EXPECT_THAT(second.err, IsOneLine());
      EXPECT_THAT(second.err,
                  testing::AnyOf(Has("start the comparison again"), Has("it has no manifest.json")));
    } else {
      EXPECT_EQ(second.exit_code, 0) << second.out << second.err;
      EXPECT_EQ(Launches("run", "cost"), 3 * 3);
      EXPECT_EQ(Launches("run", "accuracy"), 3 * 2);
      for (const auto& row : Json("run", "summary.json")) EXPECT_EQ(row["rounds"]["step_ms"].size(), 3);
    }
    fs::remove_all(Folder("run"));
  });
}

TEST_F(ResumeTest, ARunThatWasKilledWhileItPreparedSaysThatItCannotContinue) {
  fs::create_directories(Folder("run"));
  std::ofstream(Folder("run") / "manifest.json").close();
  const Outcome outcome = Run({"compare", "--resume", "run"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, IsOneLine());
  EXPECT_THAT(outcome.err, Has("it ended before its first round began"));
}

TEST_F(ResumeTest, AReportThatWasNotFinishedIsWrittenAgain) {
  ASSERT_EQ(Run(OnlyRounds("run")).exit_code, 0);
  const std::string page = Slurp(Folder("run") / "report.html");
  std::ofstream(Folder("run") / "report.html") << page.substr(0, page.size() / 2);
  const Outcome outcome = Run({"compare", "--resume", "run"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, Lacks("round 1/3"));
  EXPECT_THAT(Slurp(Folder("run") / "report.html"), Has("</html>"));
}

}  // namespace
}  // namespace psring
