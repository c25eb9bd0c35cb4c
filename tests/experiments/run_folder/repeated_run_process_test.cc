// Real runs, repeated from their folders; and folders of somebody else, which reach nothing outside.
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "common/io/files.h"
#include "tests/experiments/start_psring.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

class RepeatedRun : public LaunchTest {
 protected:
  // Runs psring to its end.
  std::unique_ptr<Started> Run(const std::string& arguments) { return Ended(StartPsring(arguments)); }
  std::unique_ptr<Started> Succeed(const std::string& arguments) { return Succeeded(StartPsring(arguments)); }
  std::string Config(const std::string& run) { return absl::StrCat(Folder(run), "/config.toml"); }
  void Write(const std::string& file, const std::string& text) {
    fs::create_directories(fs::path(Folder(file)).parent_path());
    ASSERT_TRUE(WriteFile(Folder(file), text).ok());
  }
  nlohmann::json Manifest(const std::string& run) {
    return nlohmann::json::parse(ReadFile(Folder(run) + "/manifest.json").value_or(""), nullptr, false);
  }
};

TEST_F(RepeatedRun, ATrainingIsRepeatedBitForBit) {
  const auto first = Succeed(absl::StrCat(
      "train --strategy ring --workers 2 --model mlp-small --data synthetic --steps 4 --seed 5 --out ",
      Folder("first")));
  EXPECT_THAT(first->output(), Has(absl::StrCat("psring train --config ", Config("first"))));
  const std::vector<std::string> weights = Weights(Folder("first"));
  ASSERT_EQ(weights.size(), 2u);
  const auto again = Succeed(absl::StrCat("train --config ", Config("first"), " --out ", Folder("again")));
  EXPECT_THAT(again->errors(), Has("psring train: note: flags: --out", "--strategy=ring --workers=2"));
  EXPECT_EQ(Weights(Folder("again")), weights);
  for (const char* part : {"cost", "accuracy"})
    EXPECT_EQ(Manifest("again")[part]["configurations"], Manifest("first")[part]["configurations"]);
  EXPECT_THAT(Manifest("again")["command_line"].dump(), Lacks("--config"));
  // The command line overrides the file.
  const auto other =
      Succeed(absl::StrCat("train --config ", Config("first"), " --seed 6 --out ", Folder("other")));
  EXPECT_NE(Weights(Folder("other")), weights);
}

TEST_F(RepeatedRun, AComparisonUsesTheFirstRunsRoundsAndSteps) {
  const auto first = Succeed(
      absl::StrCat("compare --strategies single --workers 1 --model mlp-small --batch 8 --data synthetic "
                   "--link none --no_eval --time_budget 20s --out ",
                   Folder("first")));
  nlohmann::json manifest = Manifest("first");
  manifest["cost"]["steps"] = 8;  // as if the machine had been another one
  manifest["cost"]["rounds_done"] = 2;
  for (auto& configuration : manifest["cost"]["configurations"]) {
    for (auto& flag : configuration["trainer_flags"]) {
      if (flag.get<std::string>().starts_with("--steps=")) flag = "--steps=8";
    }
  }
  Write("first/manifest.json", manifest.dump());
  const auto again = Succeed(absl::StrCat("compare --config ", Config("first"), " --out ", Folder("again")));
  EXPECT_EQ(Manifest("again")["cost"]["steps"], 8);
  EXPECT_EQ(Manifest("again")["cost"]["rounds_done"], 2);
}

TEST_F(RepeatedRun, APredictionAndABenchmarkAreRepeated) {
  const auto predict = Succeed(absl::StrCat("predict --link 10gbit --workers 2,4 --out ", Folder("predict")));
  const auto predicted =
      Succeed(absl::StrCat("predict --config ", Config("predict"), " --out ", Folder("predicted")));
  // Nothing was measured: the same figures, in a run of another name.
  const auto figures = [&](const std::string& run) {
    auto json = nlohmann::json::parse(ReadFile(Folder(run) + "/summary.json").value_or(""), nullptr, false);
    for (auto& row : json) row["figures"].erase("run_id");
    return json;
  };
  EXPECT_EQ(figures("predicted"), figures("predict"));
  const auto bench =
      Succeed(absl::StrCat("bench --sizes 4K --algorithm ring --backend native --transport shm -n 2 -J ",
                           Folder("out.json"), " --out ", Folder("bench")));
  EXPECT_THAT(ReadFile(Config("bench")).value_or(""), Has("# omitted: -J"));
  EXPECT_THAT(Succeed(absl::StrCat("bench --dry_run --config ", Config("bench")))->output(), Has("4096"));
}

TEST_F(RepeatedRun, AConfigOfARunFolderNamesNothingOutsideIt) {
  Write("victim/step9/weights", "precious");
  Write("copied/manifest.json", "{}");
  for (const auto& [verb, line] :
       {std::pair{"train", absl::StrCat("checkpoint_dir = \"", Folder("victim"), "\"")},
        {"train", absl::StrCat("out = \"", Folder("elsewhere"), "\"")},
        {"train", std::string("master_addr = \"127.0.0.1\"")},
        {"train", std::string("tls = \"a,b,c\"")},
        {"bench", absl::StrCat("J = \"", Folder("victim/step9/weights"), "\"")}}) {
    Write("copied/config.toml", absl::StrCat("# Repeats this run\n", line, "\n"));
    const auto run = Run(absl::StrCat(verb, " --dry_run --config ", Config("copied")));
    EXPECT_FALSE(run->Succeeded()) << line;
    EXPECT_THAT(run->errors(), Has("config.toml:2: -")) << line;
    EXPECT_THAT(run->errors(), Has("is not taken from a run's folder; give it on the command line"));
  }
  EXPECT_EQ(ReadFile(Folder("victim/step9/weights")).value_or(""), "precious");
  EXPECT_FALSE(fs::exists(Folder("elsewhere")));
}

TEST_F(RepeatedRun, AFileThatOthersCanWriteNamesNoFiles) {
  Write("shared/flags.toml", absl::StrCat("strategy = \"single\"\ntext = \"", Folder("secret"), "\"\n"));
  const auto refused = [&] {
    return Run(absl::StrCat("train --dry_run --config ", Folder("shared/flags.toml")));
  };
  ASSERT_EQ(chmod(Folder("shared/flags.toml").c_str(), 0646), 0);
  EXPECT_THAT(refused()->errors(), Has("flags.toml:2: --text is not taken from a file of others (other "
                                       "users can write "));
  ASSERT_EQ(chmod(Folder("shared/flags.toml").c_str(), 0600), 0);
  ASSERT_EQ(chmod(Folder("shared").c_str(), 0757), 0);
  EXPECT_THAT(refused()->errors(), Has("flags.toml:2: --text is not taken from a file of others"));
  ASSERT_EQ(chmod(Folder("shared").c_str(), 0700), 0);
  EXPECT_THAT(refused()->errors(), Lacks("of others"));
}

TEST_F(RepeatedRun, OnlyARunThatNobodyElseCanChangeIsResumed) {
  Write("copied/manifest.json", "{}");
  ASSERT_EQ(chmod(Folder("copied").c_str(), 0777), 0);
  const auto run = Run(absl::StrCat("compare --resume ", Folder("copied")));
  EXPECT_FALSE(run->Succeeded());
  EXPECT_THAT(run->errors(), Has("only a run that nobody else can change is resumed"));
}

TEST_F(RepeatedRun, AReplayReachesNothingOutside) {
  const auto first = Succeed(absl::StrCat(
      "train --strategy ps-async --workers 2 --model mlp-small --data synthetic --steps 4 --no_eval --out ",
      Folder("first")));
  Write("victim/step9/weights", "precious");
  int changed = 0;
  for (const auto& entry : fs::recursive_directory_iterator(Folder("first"))) {
    if (entry.path().filename() != "launch.json") continue;
    auto launch = nlohmann::json::parse(ReadFile(entry.path().string()).value_or(""));
    for (const char* flag : {"--checkpoint_dir=", "--record="})
      launch["trainer_flags"].push_back(absl::StrCat(flag, Folder("victim")));
    ASSERT_TRUE(WriteFile(entry.path().string(), launch.dump()).ok());
    ++changed;
  }
  EXPECT_GT(changed, 0);
  const auto replay = Succeed(absl::StrCat("replay ", Folder("first")));
  EXPECT_THAT(replay->output(), Has("equal to the run's, bit for bit"));
  size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(Folder("victim")))
    files += entry.is_regular_file();
  EXPECT_EQ(files, 1u);
}

}  // namespace
}  // namespace psring
