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

// 3 rounds of single, none and ring, in the folder run.
const std::string kRounds =
    "compare --data synthetic --model mlp-small --strategies ring --workers 2 --batch 32 --repeats 3 --steps "
    "4 --link none --out run ";
const std::string kOnlyRounds = kRounds + "--no_eval";
const std::string kComparison = kRounds + "--samples 640";  // then trainings of single and ring
constexpr char kResume[] = "compare --resume run";

class ResumeTest : public PsringInAFolder {
 protected:
  // Lines of runs.csv of one part.
  int Launches(const std::string& part) const {
    const std::string text = File("run/runs.csv");
    int count = 0;
    for (size_t at = 0; (at = text.find("," + part + ",", at)) != std::string::npos; ++at) ++count;
    return count;
  }
  // Starts the comparison, and sends it `signal` while the launch with this record folder runs.
  Outcome InterruptDuring(const std::string& arguments, const std::string& launch, int signal) {
    const pid_t psring = Start(Words(arguments));
    const fs::path records = Path("run/records/" + launch);
    EXPECT_TRUE(Eventually([&] { return fs::exists(records); })) << records;
    kill(psring, signal);
    Outcome outcome = Finish(psring);
    EXPECT_EQ(outcome.exit_code, 128 + signal) << outcome.out << outcome.err;
    return outcome;
  }
  void ExpectRoundsOfEachRow(size_t rounds) const {
    for (const auto& row : JsonFile("run/summary.json")) EXPECT_EQ(row["rounds"]["step_ms"].size(), rounds);
  }
};

TEST_F(ResumeTest, AnInterruptedComparisonReportsItsRoundsAndKeepsThemAndTrainings) {
  const Outcome first = InterruptDuring(kComparison, "cost-3", SIGINT);
  EXPECT_THAT(first.err, Has("interrupted (SIGINT); the results are those of 2 rounds"));
  EXPECT_THAT(first.out, Has("ring", "continue: psring compare --resume run"));
  EXPECT_FALSE(File("run/findings.txt").empty());
  EXPECT_FALSE(File("run/report.html").empty());
  const auto partial = JsonFile("run/summary.json");
  ASSERT_EQ(partial.size(), 3) << partial.dump(1);
  for (const auto& row : partial) EXPECT_EQ(row["rounds"]["step_ms"].size(), 2);
  EXPECT_EQ(JsonFile("run/manifest.json")["finished"], false);
  EXPECT_EQ(JsonFile("run/manifest.json")["ended"], "interrupted (SIGINT)");
  EXPECT_EQ(Launches("cost"), 2 * 3) << "only those of finished rounds";

  // Interrupted again, it keeps the trainings that have ended, too.
  const Outcome second = InterruptDuring(kResume, "accuracy-2/single-1", SIGTERM);
  EXPECT_THAT(second.out, testing::AllOf(Has("resumed after 2 rounds of 3"), Lacks("round 2/3")));
  EXPECT_EQ(Launches("accuracy"), 2);
  const auto trainings = JsonFile("run/manifest.json")["accuracy"]["trainings_done"];
  EXPECT_EQ(trainings.size(), 2) << trainings;
  Succeed(kResume);
  const auto whole = JsonFile("run/summary.json");
  ASSERT_EQ(whole.size(), 3);
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(whole[i]["rounds"]["step_ms"].size(), 3);
    for (size_t round = 0; round < 2; ++round)
      EXPECT_EQ(whole[i]["rounds"]["step_ms"][round], partial[i]["rounds"]["step_ms"][round]);
    if (whole[i]["figures"]["strategy"] == "none") continue;
    EXPECT_EQ(whole[i]["accuracy"]["trainings"], 3) << whole[i];
  }
  const auto manifest = JsonFile("run/manifest.json");
  EXPECT_EQ(manifest["finished"], true);
  EXPECT_EQ(manifest["cost"]["rounds_done"], 3);
  EXPECT_EQ(Launches("cost"), 3 * 3);
  EXPECT_EQ(Launches("accuracy"), 3 * 2);
  EXPECT_FALSE(JsonFile("run/trace.json")["traceEvents"].empty());

  EXPECT_THAT(Refused(kResume), Has("this comparison is finished, with 3 rounds"));
}

TEST_F(ResumeTest, AFailedRoundKeepsTheOthers) {
  const pid_t psring = Start(Words(kOnlyRounds));
  // Round 2 cannot write its records, because a file has the name of their folder.
  const fs::path in_the_way = Path("run/records/cost-2");
  EXPECT_TRUE(Eventually([&] { return fs::exists(Path("run/records/cost-1")); }));
  std::ofstream(in_the_way) << "x";
  const Outcome first = Finish(psring);
  EXPECT_EQ(first.exit_code, 2) << first.out << first.err;
  EXPECT_THAT(first.err, Has("cannot create run/records/cost-2", "the results are those of 1 round"));
  ExpectRoundsOfEachRow(1);
  fs::remove(in_the_way);
  Succeed(kResume);
  ExpectRoundsOfEachRow(3);
  // A report that was not finished is written again.
  const std::string page = File("run/report.html");
  std::ofstream(Path("run/report.html")) << page.substr(0, page.size() / 2);
  EXPECT_THAT(Succeed(kResume).out, Lacks("round 1/3"));
  EXPECT_THAT(File("run/report.html"), Has("</html>"));
}

TEST_F(ResumeTest, ASignalInTheFirstRoundSaysThatThereAreOnlyLogs) {
  const Outcome first = InterruptDuring(kOnlyRounds, "cost-1", SIGINT);
  EXPECT_EQ(first.err, "psring compare: interrupted (SIGINT); there are no results; the logs are in run\n");
  EXPECT_FALSE(fs::exists(Path("run/summary.csv")));
  EXPECT_TRUE(fs::exists(Path("run/records/cost-1")));
}

TEST_F(ResumeTest, OnlyTheSameRunIsContinued) {
  InterruptDuring(kOnlyRounds, "cost-2", SIGINT);
  const auto refused = [&](const std::string& flags, const std::string& why) {
    EXPECT_THAT(Refused("compare --resume " + flags), OneLineWith(why));
  };
  refused("run --workers 3", "which have --workers 2; omit --workers 3");
  refused("run --wire bfloat16", "which have no --wire; omit --wire bfloat16");
  refused("/no/such/run", "there is no such folder");
  fs::create_directory(Path("empty"));
  refused("empty", "it has no manifest.json");
  std::ofstream(Path("empty/manifest.json"))
      << R"({"schema_version": 1, "verb": "train", "command_line": ["psring", "train"],)"
         R"( "working_directory": "/", "binaries": [{"path": "psring", "hash": "1"}]})";
  refused("empty", "psring train --resume");
  // The same flag again is no contradiction, and a dry run changes nothing.
  const std::string before = File("run/manifest.json");
  Succeed("compare --resume run --workers 2 --dry_run");
  EXPECT_EQ(File("run/manifest.json"), before);
  // As if it were from another machine.
  auto manifest = nlohmann::json::parse(before);
  manifest["machine"]["cores"] = 999;
  std::ofstream(Path("run/manifest.json")) << manifest.dump();
  refused("run", "machine: cores 999 then");
}

// Whatever a power cut has done to one file, the comparison continues, or says in one line that it cannot.
TEST_F(ResumeTest, ADamagedFileCostsAtMostItsRounds) {
  InterruptDuring(kComparison, "accuracy-1/ring-2", SIGINT);
  fs::rename(Path("run"), Path("interrupted"));
  AtRandomMoments(1, [&](std::mt19937& random) {
    fs::copy(Path("interrupted"), Path("run"), fs::copy_options::recursive);
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(Path("run"))) {
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
    const Outcome second = Run(Words(kResume));
    if (file.filename() == "manifest.json" && second.exit_code == 2) {
      EXPECT_THAT(second.err, IsOneLine());
      EXPECT_THAT(second.err,
                  testing::AnyOf(Has("start the comparison again"), Has("it has no manifest.json")));
    } else {
      EXPECT_EQ(second.exit_code, 0) << second.out << second.err;
      EXPECT_EQ(Launches("cost"), 3 * 3);
      EXPECT_EQ(Launches("accuracy"), 3 * 2);
      ExpectRoundsOfEachRow(3);
    }
    fs::remove_all(Path("run"));
  });
}

TEST_F(ResumeTest, ARunThatWasKilledWhileItPreparedSaysThatItCannotContinue) {
  fs::create_directories(Path("run"));
  std::ofstream(Path("run/manifest.json")).close();
  EXPECT_THAT(Refused(kResume), OneLineWith("it ended before its first round began"));
}

}  // namespace
}  // namespace psring
