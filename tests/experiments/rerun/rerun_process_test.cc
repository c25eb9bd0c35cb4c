// Real runs, done again.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/io/files.h"
#include "tests/experiments/started.h"

namespace psring {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class RerunTest : public LaunchTest {
 protected:
  // Runs psring to its end.
  std::unique_ptr<Started> Run(const std::string& arguments) {
    StartedOnes ones;
    ones.push_back(std::make_unique<Started>(Command(PSRING_BINARY, arguments), std::vector<std::string>()));
    EXPECT_TRUE(WaitForAll(ones)) << arguments;
    return std::move(ones.front());
  }
  nlohmann::json Manifest(const std::string& run) {
    return nlohmann::json::parse(ReadFile(Folder(run) + "/manifest.json").value_or(""), nullptr, false);
  }
};

TEST_F(RerunTest, RepeatsATrainingBitForBit) {
  const auto first = Run(absl::StrCat(
      "train --strategy ring --workers 2 --model mlp-small --data synthetic --steps 4 --seed 5 --out ",
      Folder("first")));
  ASSERT_TRUE(first->Succeeded()) << first->Story();
  const auto again = Run(absl::StrCat("rerun ", Folder("first"), " --out ", Folder("again")));
  ASSERT_TRUE(again->Succeeded()) << again->Story();
  EXPECT_THAT(again->output(), HasSubstr("again:     psring train --strategy ring --workers 2"));
  EXPECT_THAT(again->output(), testing::Not(HasSubstr("differs:")));
  const std::vector<std::string> weights = Weights(Folder("first"));
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_EQ(Weights(Folder("again")), weights);
  // The run's own config.toml does the same, and a repetition's command line holds the flags themselves.
  EXPECT_THAT(first->output(),
              HasSubstr(absl::StrCat("psring train --config ", Folder("first"), "/config.toml")));
  const auto config =
      Run(absl::StrCat("train --config ", Folder("first"), "/config.toml --out ", Folder("config")));
  ASSERT_TRUE(config->Succeeded()) << config->Story();
  EXPECT_EQ(Weights(Folder("config")), weights);
  for (const char* part : {"cost", "accuracy"}) {
    EXPECT_EQ(Manifest("config")[part]["configurations"], Manifest("first")[part]["configurations"]);
  }
  EXPECT_THAT(Manifest("config")["command_line"].dump(), testing::Not(HasSubstr("--config")));
  // The command line overrides the file.
  const auto other =
      Run(absl::StrCat("train --config ", Folder("first"), "/config.toml --seed 6 --out ", Folder("other")));
  ASSERT_TRUE(other->Succeeded()) << other->Story();
  EXPECT_NE(Weights(Folder("other")), weights);
}

TEST_F(RerunTest, ReadsTheTextOfATransformer) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += static_cast<char>('a' + i * i % 23);
  ASSERT_TRUE(WriteFile(Folder("text"), text).ok());
  const auto first = Run(absl::StrCat(
      "train --strategy single --model gpt-nano --layers 1 --context 16 --batch 4 --steps 2 --text ",
      Folder("text"), " --out ", Folder("first")));
  ASSERT_TRUE(first->Succeeded()) << first->Story();
  const auto again = Run(absl::StrCat("rerun ", Folder("first"), " --out ", Folder("again")));
  ASSERT_TRUE(again->Succeeded()) << again->Story();
  EXPECT_EQ(Weights(Folder("again")), Weights(Folder("first")));
  ASSERT_TRUE(WriteFile(Folder("text"), text + "more").ok());
  EXPECT_THAT(Run(absl::StrCat("rerun ", Folder("first"), " --out ", Folder("third")))->Story(),
              HasSubstr("the training data has changed"));
}

TEST_F(RerunTest, AFlagThatNoLongerExistsIsNamed) {
  const auto first =
      Run(absl::StrCat("train --strategy single --data synthetic --steps 2 --out ", Folder("first")));
  ASSERT_TRUE(first->Succeeded()) << first->Story();
  nlohmann::json manifest = Manifest("first");
  manifest["command_line"].push_back("--renamed_flag=3");
  ASSERT_TRUE(WriteFile(Folder("first") + "/manifest.json", manifest.dump()).ok());
  const auto again = Run(absl::StrCat("rerun ", Folder("first"), " --out ", Folder("again")));
  EXPECT_FALSE(again->Succeeded());
  EXPECT_THAT(again->Story(),
              HasSubstr("psring train has no flag --renamed_flag; it was renamed or removed"));
}

TEST_F(RerunTest, AComparisonUsesTheFirstRunsRoundsAndSteps) {
  const auto first =
      Run(absl::StrCat("compare --strategies single --workers 1 --model mlp-small --batch 8 --data synthetic "
                       "--link none --no_eval --time_budget 20s --out ",
                       Folder("first")));
  ASSERT_TRUE(first->Succeeded()) << first->Story();
  nlohmann::json manifest = Manifest("first");
  manifest["cost"]["steps"] = 8;  // as if the machine had been another one
  manifest["cost"]["rounds_done"] = 2;
  for (auto& configuration : manifest["cost"]["configurations"]) {
    for (auto& flag : configuration["trainer_flags"]) {
      if (flag.get<std::string>().starts_with("--steps=")) flag = "--steps=8";
    }
  }
  ASSERT_TRUE(WriteFile(Folder("first") + "/manifest.json", manifest.dump()).ok());
  const auto again = Run(absl::StrCat("rerun ", Folder("first"), " --out ", Folder("again")));
  ASSERT_TRUE(again->Succeeded()) << again->Story();
  EXPECT_EQ(Manifest("again")["cost"]["steps"], 8);
  EXPECT_EQ(Manifest("again")["cost"]["rounds_done"], 2);
  const auto config =
      Run(absl::StrCat("compare --config ", Folder("again"), "/config.toml --out ", Folder("config")));
  ASSERT_TRUE(config->Succeeded()) << config->Story();
  EXPECT_EQ(Manifest("config")["cost"]["steps"], 8);
  EXPECT_EQ(Manifest("config")["cost"]["rounds_done"], 2);
}

TEST_F(RerunTest, RepeatsAPredictionAndABenchmark) {
  const auto predict = Run(absl::StrCat("predict --link 10gbit --workers 2,4 --out ", Folder("predict")));
  ASSERT_TRUE(predict->Succeeded()) << predict->Story();
  const auto predicted = Run(absl::StrCat("rerun ", Folder("predict"), " --out ", Folder("predicted")));
  ASSERT_TRUE(predicted->Succeeded()) << predicted->Story();
  // Nothing was measured: the same figures, in a run of another name.
  const auto figures = [&](const std::string& run) {
    auto json = nlohmann::json::parse(ReadFile(Folder(run) + "/summary.json").value_or(""), nullptr, false);
    for (auto& row : json) row["figures"].erase("run_id");
    return json;
  };
  EXPECT_EQ(figures("predicted"), figures("predict"));
  const auto config =
      Run(absl::StrCat("predict --config ", Folder("predict"), "/config.toml --out ", Folder("config")));
  ASSERT_TRUE(config->Succeeded()) << config->Story();
  EXPECT_EQ(figures("config"), figures("predict"));
  const auto bench =
      Run(absl::StrCat("bench --sizes 4K --algorithm ring --backend native --transport shm -n 2 -J ",
                       Folder("out.json"), " --out ", Folder("bench")));
  ASSERT_TRUE(bench->Succeeded()) << bench->Story();
  const auto benched = Run(absl::StrCat("rerun ", Folder("bench"), " --out ", Folder("benched")));
  ASSERT_TRUE(benched->Succeeded()) << benched->Story();
  EXPECT_THAT(benched->output(), HasSubstr("omitted:   -J"));
  const auto dry = Run(absl::StrCat("bench --dry_run --config ", Folder("bench"), "/config.toml"));
  EXPECT_TRUE(dry->Succeeded()) << dry->Story();
  EXPECT_THAT(dry->output(), HasSubstr("4096"));
  EXPECT_TRUE(fs::exists(Folder("benched") + "/bench.csv"));
}

TEST_F(RerunTest, DifferencesAreListedAndChangedFilesAreRejected) {
  ASSERT_TRUE(std::ofstream(Folder("mine.csv"))
              << "# batch: 4\n# device: none\n# forward_ms: 1\nname,bytes,ready_ms\nb,400,1\na,400,2\n");
  const auto first = Run(absl::StrCat("predict --link 10gbit --workload ", Folder("mine.csv"),
                                      " --workers 2 --out ", Folder("first")));
  ASSERT_TRUE(first->Succeeded()) << first->Story();
  nlohmann::json manifest = Manifest("first");
  manifest["machine"]["cores"] = 999;
  manifest["binaries"][0]["hash"] = "other";
  ASSERT_TRUE(WriteFile(Folder("first") + "/manifest.json", manifest.dump()).ok());
  const auto dry = Run(absl::StrCat("rerun --dry_run ", Folder("first")));
  EXPECT_TRUE(dry->Succeeded()) << dry->Story();
  EXPECT_THAT(dry->output(), HasSubstr("machine: cores 999 then"));
  EXPECT_THAT(dry->output(), HasSubstr("programs: psring"));
  std::ofstream(Folder("mine.csv"), std::ios::app) << "z,400,3\n";
  const auto refused = Run(absl::StrCat("rerun ", Folder("first"), " --out ", Folder("again")));
  EXPECT_FALSE(refused->Succeeded());
  EXPECT_THAT(refused->errors(), HasSubstr("mine.csv has changed"));
  EXPECT_FALSE(fs::exists(Folder("again")));
  const auto anyway = Run(absl::StrCat("rerun --anyway ", Folder("first"), " --out ", Folder("again")));
  EXPECT_TRUE(anyway->Succeeded()) << anyway->Story();
}

TEST_F(RerunTest, AFolderWithoutARunIsAnErrorOfOneLine) {
  fs::create_directory(Folder("empty"));
  EXPECT_THAT(Run("rerun /no/such/run")->errors(), HasSubstr("/no/such/run is not a folder"));
  EXPECT_THAT(Run(absl::StrCat("rerun ", Folder("empty")))->errors(), HasSubstr("has no manifest.json"));
  ASSERT_TRUE(WriteFile(Folder("empty") + "/manifest.json", "{\"schema_version\": 7}").ok());
  EXPECT_THAT(Run(absl::StrCat("rerun ", Folder("empty")))->errors(), HasSubstr("layout 7"));
}

}  // namespace
}  // namespace psring
