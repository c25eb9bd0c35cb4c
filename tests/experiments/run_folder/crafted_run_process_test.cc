// psring reads a run folder that somebody changed: each defect is one line, and nothing crashes or waits.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/files.h"
#include "tests/experiments/psring_in_a_folder.h"
#include "tests/experiments/start_psring.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Puts something else in place of the file `path`, whose content was `text`.
struct Defect {
  const char* name;
  std::function<void(const fs::path& path, const std::string& text)> put;
};

void PutText(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

// Replaces every whole number after a colon.
std::string WithNumbers(const std::string& text, const std::string& number) {
  std::string changed;
  for (size_t i = 0; i < text.size(); ++i) {
    changed += text[i];
    if (text[i] != ':' || i + 1 == text.size()) continue;
    const size_t begin = text.find_first_not_of(' ', i + 1);
    const size_t end = text.find_first_not_of("0123456789", begin);
    if (begin == std::string::npos || end == begin || end == std::string::npos) continue;
    changed += number;
    i = end - 1;
  }
  return changed;
}

const std::vector<Defect>& Defects() {
  static const auto& defects = *new std::vector<Defect>{
      {"empty", [](const fs::path& path, const std::string&) { PutText(path, ""); }},
      {"truncated",
       [](const fs::path& path, const std::string& text) { PutText(path, text.substr(0, text.size() / 2)); }},
      {"another JSON value", [](const fs::path& path, const std::string&) { PutText(path, "[1]\n"); }},
      {"bytes", [](const fs::path& path, const std::string&) { PutText(path, "\xff\x01\"\n,\x80"); }},
      {"deeply nested",
       [](const fs::path& path, const std::string&) { PutText(path, std::string(1 << 20, '[')); }},
      {"deeply nested and complete",
       [](const fs::path& path, const std::string&) {
         PutText(path, absl::StrCat("{\"traceEvents\":", std::string(1 << 20, '['), std::string(1 << 20, ']'),
                                    "}"));
       }},
      {"huge numbers",
       [](const fs::path& path, const std::string& text) {
         PutText(path, WithNumbers(text, "18446744073709551615"));
       }},
      {"negative numbers",
       [](const fs::path& path, const std::string& text) { PutText(path, WithNumbers(text, "-7")); }},
      {"other types",
       [](const fs::path& path, const std::string& text) { PutText(path, WithNumbers(text, "{}")); }},
      {"a folder", [](const fs::path& path, const std::string&) { fs::create_directory(path); }},
      {"a FIFO", [](const fs::path& path, const std::string&) { mkfifo(path.c_str(), 0600); }},
      {"a device", [](const fs::path& path, const std::string&) { fs::create_symlink("/dev/zero", path); }}};
  return defects;
}

class CraftedRun : public PsringInAFolder {
 protected:
  void SetUp() override {
    PsringInAFolder::SetUp();
    Succeed(
        "compare --data synthetic --model mlp-small --strategies ps-async --workers 2,3 --batch 32 "
        "--repeats 1 --steps 4 --link none --no_eval --out run");
    // As if it had been interrupted.
    manifest_ = json::parse(Slurp(run() / "manifest.json"));
    manifest_["cost"]["rounds_planned"] = 2;
    PutText(run() / "manifest.json", manifest_.dump());
  }
  fs::path run() const { return Path("run"); }
  // Of the launch of ps-async with two workers.
  static std::string Record(const std::string& name) { return "records/cost-1/ps-async-2/" + name; }

  // At most one line of error, and one if it fails. `fails`: it must.
  void ExpectOneLine(const std::vector<std::string>& command, bool fails, const std::string& what) {
    const Outcome outcome = Call(command);
    const auto lines = std::count(outcome.err.begin(), outcome.err.end(), '\n');
    EXPECT_LT(outcome.exit_code, 128) << what << outcome.err;
    if (fails) {
      EXPECT_NE(outcome.exit_code, 0) << what << outcome.out;
    }
    EXPECT_EQ(lines, outcome.exit_code == 0 ? 0 : 1) << what << outcome.err;
    EXPECT_LT(outcome.err.size(), 1000u) << what;
  }
  // In each of `files`, or of several at once, which are separated by spaces.
  void ExpectEachDefectIsOneLine(const std::vector<std::string>& command,
                                 const std::vector<std::string>& files, bool fails) {
    for (const std::string& together : files) {
      std::vector<std::pair<fs::path, std::string>> contents;
      for (const std::string& file : Words(together)) {
        ASSERT_TRUE(fs::exists(run() / file)) << file;
        contents.emplace_back(run() / file, Slurp(run() / file));
      }
      for (const Defect& defect : Defects()) {
        for (const auto& [path, text] : contents) {
          fs::remove(path);
          defect.put(path, text);
        }
        ExpectOneLine(command, fails, absl::StrCat(command[0], ", ", together, ": ", defect.name, "\n"));
        for (const auto& [path, text] : contents) fs::remove(path);
      }
      for (const auto& [path, text] : contents) PutText(path, text);
    }
  }

  void ChangeWhatResumeAndReplayRead();
  void ChangeWhatReportAndPredictRead();
  void ChangeOneFieldOfTheManifest();
  void DamageRecordsOfAResumedRun();

  json manifest_;
};

void CraftedRun::ChangeWhatResumeAndReplayRead() {
  ExpectEachDefectIsOneLine({"compare", "--resume", "run"}, {"manifest.json"}, /*fails=*/true);
  ExpectEachDefectIsOneLine({"replay", "run"}, {Record("launch.json"), Record("arrivals-server0.bin")},
                            /*fails=*/true);
  ExpectEachDefectIsOneLine({"replay", "run"}, {Record("result-rank0.json")}, /*fails=*/false);
}

void CraftedRun::ChangeWhatReportAndPredictRead() {
  // The page lists what it lacks.
  ExpectEachDefectIsOneLine({"report", "run"},
                            {"manifest.json", "summary.json runs.csv",
                             absl::StrCat("table.json steps.jsonl ", Record("launch.json")),
                             absl::StrCat("trace.json ", Record("arrivals-server0.bin"))},
                            /*fails=*/false);
  const std::vector<std::string> predict = {"predict", "--calibrate", "run", "--link", "1gbit"};
  ExpectEachDefectIsOneLine(predict, {"summary.csv"}, /*fails=*/false);
  const std::string csv = Slurp(run() / "summary.csv");
  const size_t second = csv.find('\n') + 1;
  for (const std::string& row : {std::string("\"ps-async,2\n"), csv.substr(second, 20) + "\n",
                                 std::string(1 << 20, 'x') + "\n", std::string("a\0b\n", 4)}) {
    PutText(run() / "summary.csv", csv.substr(0, second) + row);
    ExpectOneLine(predict, /*fails=*/true, row.substr(0, 50));
  }
  PutText(run() / "summary.csv", csv);
  fs::create_symlink("loop", Path("loop"));
  fs::create_symlink("bench.json", run() / "bench.json");
  for (const std::string& path : {std::string("run"), std::string("loop"), std::string(300, 'x')})
    ExpectOneLine({"predict", "--calibrate", path, "--link", "1gbit"}, /*fails=*/path != "run", path);
  fs::remove(run() / "bench.json");
}

void CraftedRun::ChangeOneFieldOfTheManifest() {
  for (const char* field :
       {"/schema_version", "/verb", "/command_line", "/command_line/1", "/working_directory", "/settled",
        "/binaries", "/binaries/0/hash", "/inputs", "/data", "/data/trainer_flags", "/cost",
        "/cost/rounds_done", "/cost/configurations", "/cost/configurations/0/workers", "/accuracy"}) {
    const json::json_pointer pointer(field);
    ASSERT_TRUE(manifest_.contains(pointer)) << field;
    for (const json& value : {json(), json("x\ny"), json(18446744073709551615u), json::object()}) {
      json changed = manifest_;
      changed[pointer] = value;
      PutText(run() / "manifest.json", changed.dump());
      ExpectOneLine({"compare", "--resume", "run", "--dry_run"}, /*fails=*/false,
                    absl::StrCat(field, value.dump(), "\n"));
    }
  }
  json changed = manifest_;
  changed["inputs"] = {{{"path", "/dev/zero"}, {"hash", "0"}}};
  PutText(run() / "manifest.json", changed.dump());
  ExpectOneLine({"compare", "--resume", "run", "--dry_run"}, /*fails=*/false, "an endless input\n");
  PutText(run() / "manifest.json", manifest_.dump());
}

// Each is repeated, and then the comparison is complete.
void CraftedRun::DamageRecordsOfAResumedRun() {
  for (const char* name : {"outcome.json", "result-rank0.json", "steps-rank1.jsonl", "result-server0.json"}) {
    const fs::path path = run() / Record(name);
    PutText(path, WithNumbers(Slurp(path), "18446744073709551615"));
  }
  const Outcome resumed = Call({"compare", "--resume", "run"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out + resumed.err, Has("repeat"));
  const Outcome again = Call({"compare", "--resume", "run"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, Has("this comparison is finished"));
}

// One test, because making the run takes longer than hundreds of calls.
TEST_F(CraftedRun, EachDefectIsOneLine) {
  ASSERT_NO_FATAL_FAILURE(ChangeWhatResumeAndReplayRead());
  ASSERT_NO_FATAL_FAILURE(ChangeWhatReportAndPredictRead());
  ASSERT_NO_FATAL_FAILURE(ChangeOneFieldOfTheManifest());
  ASSERT_NO_FATAL_FAILURE(DamageRecordsOfAResumedRun());
}

// Real runs, repeated from their folders; and folders of somebody else, which reach nothing outside.

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
