#include "common/cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/cli/config_file.h"
#include "tests/has.h"

namespace psring {
namespace {

// A program with two commands and flags of every kind.
struct ProgramFlags {
  ProgramFlags() {
    app.set_version_flag("--version", "1.2");
    app.require_subcommand(1);
    CLI::App* compare = app.add_subcommand("compare", "Compares strategies.");
    compare->add_option("--workers", workers, "How many")->delimiter(',')->check(WholeNumber(1, 64));
    compare->add_option("--batch_size", batch_size, "Samples")->check(WholeNumber(1, 1000));
    compare->add_option("--rate", rate, "A rate")->check(RealNumber({.high = 1, .high_allowed = true}));
    compare->add_option("--patience", patience, "How long")->option_text("S")->check(RealNumber({}));
    compare->add_option("--bucket_mb", bucket_mb, "Size")->check(RealNumber({}));
    compare->add_option("--out_dir", out_dir, "Where to");
    compare->add_option("--schedule", schedule, "Which")->check(OneOf({"constant", "linear"}));
    compare->add_option("--unchecked", unchecked, "A whole number");
    compare->add_option("--counts", counts, "A list in one value")->option_text("N,...");
    compare->add_option("--label", labels, "One by one");
    compare->add_flag("--dry_run", dry_run, "Only say what would be done");
    compare->add_flag("!--no_eval", evaluate, "Do not evaluate");
    CLI::App* train = app.add_subcommand("train", "Trains.");
    train->add_option("--steps", steps, "Steps")->required();
    train->add_option("file", file, "A file");
  }

  CLI::App app{"A program.", "psring"};
  std::vector<int> workers;
  int batch_size = 0, unchecked = 0, steps = 0;
  double rate = 0, patience = 0, bucket_mb = 0;
  std::string out_dir = "unset", schedule, file, counts;
  std::vector<std::string> labels;
  bool dry_run = false, evaluate = true;
};

std::string Error(const std::vector<std::string>& arguments) {
  ProgramFlags program;
  const ParseOutcome outcome = Parse(program.app, arguments);
  EXPECT_FALSE(outcome.proceed);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
  return outcome.text.substr(0, outcome.text.find('\n'));
}
// The same for arguments that are separated by spaces; of compare without "psring compare: ".
std::string CommandError(const char* arguments) {
  std::string error = Error(std::vector<std::string>(absl::StrSplit(arguments, ' ')));
  constexpr char kBegin[] = "psring compare: ";
  if (!absl::StartsWith(arguments, "compare ")) return error;
  EXPECT_THAT(error, testing::StartsWith(kBegin));
  return error.substr(std::min(error.size(), sizeof kBegin - 1));
}

void ExpectFine(ProgramFlags& program, const std::vector<std::string>& arguments) {
  const ParseOutcome outcome = Parse(program.app, arguments);
  EXPECT_TRUE(outcome.proceed) << outcome.text;
}

TEST(Parse, DashAndUnderscoreAreTheSameInANameButNotInAValue) {
  for (const char* name : {"--batch_size", "--batch-size"}) {
    ProgramFlags program;
    ExpectFine(program, {"compare", name, "7", "--out-dir", "a-b_c", "--dry-run", "--no-eval"});
    EXPECT_EQ(program.batch_size, 7);
    EXPECT_EQ(program.out_dir, "a-b_c");
    EXPECT_TRUE(program.dry_run);
    EXPECT_FALSE(program.evaluate);
  }
  ProgramFlags program;
  ExpectFine(program, {"compare", "--batch-size=8", "--out-dir=a-b=c_d--e"});
  EXPECT_EQ(program.batch_size, 8);
  EXPECT_EQ(program.out_dir, "a-b=c_d--e");
}

TEST(Parse, CommasMakeLists) {
  ProgramFlags program;
  ExpectFine(program, {"compare", "--workers", "1,2,4"});
  EXPECT_EQ(program.workers, (std::vector<int>{1, 2, 4}));
  ProgramFlags spaced;
  ExpectFine(spaced, {"compare", "--workers", "1", "2", "--batch_size", "5"});
  EXPECT_EQ(spaced.workers, (std::vector<int>{1, 2}));
  EXPECT_EQ(spaced.batch_size, 5);
}

TEST(Parse, EmptyValuesAndPositionalArgumentsAreAccepted) {
  ProgramFlags program;
  ExpectFine(program, {"compare", "--out_dir=", "--batch_size", "5"});
  EXPECT_EQ(program.out_dir, "");
  EXPECT_EQ(program.batch_size, 5);
  ExpectFine(program, {"train", "--steps", "3", "data.idx"});
  EXPECT_EQ(program.file, "data.idx");
}

const struct {
  const char *arguments, *error;
} kErrors[] = {
    // An unknown flag suggests the nearest.
    {"compare --worker 2", "unknown flag --worker; did you mean --workers?"},
    {"compare --bacth-size=2", "unknown flag --bacth-size; did you mean --batch_size?"},
    {"compare -workers 2", "unknown flag -workers; did you mean --workers?"},
    {"compare --batch 2", "unknown flag --batch; did you mean --batch_size?"},
    {"compare --zzz", "unknown flag --zzz"},
    {"compare ---", "unknown flag ---"},
    {"compare -x", "unknown flag -x"},
    {"--workers compare", "psring: unknown flag --workers"},
    // A flag of another program suggests ours.
    {"compare --gpus 2", "unknown flag --gpus; did you mean --workers?"},
    {"compare -g 2", "unknown flag -g; did you mean --workers?"},
    {"compare -n4", "unknown flag -n4; did you mean --workers?"},
    {"train --iterations=2", "psring train: unknown flag --iterations; did you mean --steps?"},
    {"compare --iterations=2", "unknown flag --iterations"},
    // A list or a unit instead of a plain number.
    {"compare --batch_size 32,64",
     "--batch_size: '32,64' is a list, but --batch_size takes one value; run the command once for each"},
    {"compare --batch_size=1,000", "--batch_size: '1,000' has separators; write 1000"},
    {"compare --batch_size 1e2", "--batch_size: '1e2' is not a number; write 100"},
    {"compare --batch_size 1k", "--batch_size: '1k' is not a number; write 1000"},
    {"compare --batch_size 2k", "--batch_size: '2k' is not a number"},
    {"compare --batch_size 2x", "--batch_size: '2x' is not a number"},
    {"compare --rate 0,5", "--rate: '0,5' has a decimal comma; write 0.5"},
    {"compare --schedule linear,",
     "--schedule: 'linear,' is not one of constant, linear; did you mean linear?"},
    {"compare --schedule linear,constant",
     "--schedule: 'linear,constant' is a list, but --schedule takes one value; run the command once for "
     "each"},
    {"compare --rate 1,0.5",
     "--rate: '1,0.5' is a list, but --rate takes one value; run the command once for each"},
    {"compare --patience 10m", "--patience: '10m' has a unit, but --patience is in seconds; write 600"},
    {"compare --patience 500ms", "--patience: '500ms' has a unit, but --patience is in seconds; write 0.5"},
    {"compare --bucket_mb 25M", "--bucket_mb: '25M' has a unit, but --bucket_mb is in MiB; write 25"},
    {"compare --bucket_mb 512KiB", "--bucket_mb: '512KiB' has a unit, but --bucket_mb is in MiB; write 0.5"},
    // An unknown command suggests the nearest, or lists all.
    {"comapre", "psring: unknown command 'comapre'; did you mean compare?"},
    {"bake", "psring: unknown command 'bake'; use one of compare, train"},
    {"compare 2", "unexpected argument '2'"},
    // Values separated by spaces suggest commas.
    {"compare --counts 2 4", "unexpected argument '4'; separate values by commas: --counts 2,4"},
    {"compare --counts=2 4", "unexpected argument '4'; separate values by commas: --counts 2,4"},
    {"compare --counts 2 --batch_size 3 4", "unexpected argument '4'"},
    {"compare --counts 2 --dry_run 4", "unexpected argument '4'"},
    // Missing or repeated values.
    {"compare --batch_size", "--batch_size needs a value"},
    {"compare --batch_size --dry_run", "--batch_size needs a value"},
    {"compare --batch_size 1 --batch-size=2", "--batch_size is given twice"},
    {"compare --dry_run --dry_run", "--dry_run is given twice"},
    {"compare --workers 1 --workers 2", "--workers is given twice; separate its values by commas"},
    {"train", "psring train: --steps is required"},
    // Invalid numbers.
    {"compare --workers abc", "--workers: 'abc' is not a number"},
    {"compare --workers 1,x,3", "--workers: 'x' is not a number"},
    {"compare --workers 1,,3", "--workers: '1,,3' has an empty item"},
    {"compare --workers 0", "--workers: 0 is too small; the least is 1"},
    {"compare --workers -3", "--workers: -3 is too small; the least is 1"},
    {"compare --workers 65", "--workers: 65 is too large; the most is 64"},
    {"compare --workers 2.5", "--workers: '2.5' is not a whole number"},
    {"compare --workers 99999999999999999999999",
     "--workers: 99999999999999999999999 is too large; the most is 64"},
    {"compare --rate nan", "--rate: 'nan' is not a number"},
    {"compare --rate 0", "--rate: 0 is too small; it must be above 0"},
    {"compare --rate 1.1", "--rate: 1.1 is too large; it must be at most 1"},
    {"compare --rate -1e3", "--rate: -1e3 is too small; it must be above 0"},
    {"compare --unchecked x", "--unchecked: 'x' is not a number"},
    {"compare --unchecked 1.5", "--unchecked: '1.5' is not a whole number"},
    {"compare --unchecked 99999999999", "--unchecked: '99999999999' is out of range"},
    // An unknown choice suggests the nearest.
    {"compare --schedule liner", "--schedule: 'liner' is not one of constant, linear; did you mean linear?"},
    {"compare --schedule cosine", "--schedule: 'cosine' is not one of constant, linear"},
};

TEST(Parse, ErrorsSayWhatToWrite) {
  for (const auto& [arguments, error] : kErrors) EXPECT_EQ(CommandError(arguments), error) << arguments;
  EXPECT_EQ(Error({}), "psring: name a command: compare, train");
  ProgramFlags program;
  ExpectFine(program, {"compare", "--label", "a", "--label", "b"});
  EXPECT_EQ(program.labels, (std::vector<std::string>{"a", "b"})) << "collected one by one";
}

TEST(Parse, ValueOfASwitchIsTrueOrFalse) {
  ProgramFlags program;
  EXPECT_TRUE(Parse(program.app, {"compare", "--dry_run=true", "--no_eval=false"}).proceed);
  EXPECT_TRUE(program.dry_run);
  EXPECT_TRUE(program.evaluate);
  for (const char* value : {"abc", "", "2", "99999999999999999999"})
    EXPECT_EQ(Error({"compare", absl::StrCat("--dry_run=", value)}),
              absl::StrCat("psring compare: --dry_run: '", value, "' is neither true nor false"));
}

TEST(Parse, HelpAndVersionAreNotErrors) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"-h"}, {"compare", "--help"}, {"train", "-h"}, {"--version"}}) {
    ProgramFlags program;
    const ParseOutcome outcome = Parse(program.app, arguments);
    EXPECT_FALSE(outcome.proceed);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_FALSE(outcome.text.empty());
  }
  ProgramFlags program;
  EXPECT_EQ(Parse(program.app, {"--version"}).text, "1.2\n");
}

TEST(Parse, HelpOfACommandListsItsFlags) {
  ProgramFlags program;
  const std::string help = Parse(program.app, {"compare", "--help"}).text;
  EXPECT_THAT(help, Has("Compares strategies.", "psring compare", "--workers", "--no_eval   ", "Samples"));
  EXPECT_THAT(help, Lacks("{false}"));
}

TEST(Parse, HelpAsAWordIsTheHelpOfTheCommandAfterIt) {
  const auto text = [](const std::vector<std::string>& arguments) {
    ProgramFlags program;
    const ParseOutcome outcome = Parse(program.app, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
    return outcome.text;
  };
  EXPECT_EQ(text({"help", "train"}), text({"train", "--help"}));
  EXPECT_EQ(text({"help"}), text({"--help"}));
  EXPECT_EQ(CommandError("help tarin"), "psring: unknown command 'tarin'; did you mean train?");
}

TEST(Parse, HelpNamesAPositionalArgumentOnce) {
  const auto help = [](bool required, const char* value) {
    CLI::App app("", "program");
    std::string run;
    CLI::Option* option = app.add_option("run", run, "A folder")->required(required);
    if (*value != 0) option->option_text(value);
    return Parse(app, {"--help"}).text;
  };
  EXPECT_THAT(help(true, "RUN"), Has("Usage: program [FLAGS] RUN\n"));
  EXPECT_THAT(help(false, ""), Has("Usage: program [FLAGS] [run]\n"));
  EXPECT_THAT(help(true, "RUN"), Has("\n  RUN                      A folder (required)\n"));

  CLI::App several("", "program");
  std::vector<std::string> runs;
  several.add_option("runs", runs, "Folders")->required()->expected(1, 4);
  EXPECT_THAT(Parse(several, {"--help"}).text, Has("Usage: program [FLAGS] runs...\n"));
}

// Sets an environment variable for the duration of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name); old != nullptr) old_ = old;
    setenv(name, value, 1);
  }
  ~Variable() { old_.has_value() ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(Parse, HelpFitsTheTerminal) {
  const auto widest = [](const char* columns) {
    const Variable variable("COLUMNS", columns);
    std::string word = "word", text;
    for (int i = 0; i < 60; ++i) absl::StrAppend(&text, i == 0 ? "" : " ", word);
    CLI::App app(text, "program");
    std::string value;
    app.add_option("--flag", value, text);
    CLI::App* command = app.add_subcommand("command", text);
    command->add_option("name", value, text);
    size_t most = 0;
    for (const char* arguments : {"--help", "command --help"}) {
      const std::string help = Parse(app, absl::StrSplit(arguments, ' ')).text;
      for (absl::string_view line : absl::StrSplit(help, '\n')) most = std::max(most, line.size());
    }
    return most;
  };
  for (const size_t columns : {60, 80, 110}) {
    const size_t most = widest(absl::StrCat(columns).c_str());
    EXPECT_LE(most, columns);
    EXPECT_GT(most, columns - 5) << "a further word would have fitted";
  }
  EXPECT_EQ(widest("300"), widest("110"));
  EXPECT_LE(widest("10"), 50);
}

TEST(Parse, HelpAllAddsRareFlagsUnderTheSameHeadingAndDebuggingLast) {
  const auto help = [](const char* which) {
    CLI::App app("", "program");
    std::string value;
    app.add_option("--debug.this", value, "For developers")->group(kDebugGroup);
    app.add_option("--common", value, "For all")->group("Things");
    app.add_option("--other", value, "For all")->group("Others");
    app.add_option("--rare", value, "For few")->group(InHelpAll("Things"));
    return Parse(app, {which}).text;
  };
  EXPECT_THAT(help("--help"), testing::AllOf(Has("Things:\n  --common"), Lacks("--rare", "--debug")));
  const std::string all = help("--help-all");
  EXPECT_EQ(all.find("Things:"), all.rfind("Things"));
  EXPECT_LT(all.find("--common"), all.find("--rare"));
  EXPECT_LT(all.find("--rare"), all.find("Others:"));
  EXPECT_LT(all.find("--other"), all.find("--debug.this"));
}

class ConfigFlagTest : public testing::Test {
 protected:
  ConfigFlagTest() { AddConfigFlag(*program_.app.get_subcommand("compare"), "Results"); }
  ~ConfigFlagTest() override { std::remove(file_.c_str()); }

  ParseOutcome ParseWith(const std::string& text, const std::vector<std::string>& more) {
    std::ofstream(file_) << text;
    std::vector<std::string> arguments = {"compare", "--config", file_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Parse(program_.app, arguments);
  }

  const std::string file_ = absl::StrCat(testing::TempDir(), "/config-", getpid(), ".toml");
  ProgramFlags program_;
};

TEST_F(ConfigFlagTest, TheCommandLineOverridesTheFile) {
  const ParseOutcome outcome = ParseWith(
      "# flags\nworkers = [1, 2]\nbatch-size = 7\nout_dir = \"a # b\"\ndry_run = true\nno_eval = true\n",
      {"--batch_size", "8"});
  EXPECT_TRUE(outcome.proceed) << outcome.text;
  EXPECT_EQ(program_.workers, (std::vector<int>{1, 2}));
  EXPECT_EQ(program_.batch_size, 8);
  EXPECT_EQ(program_.out_dir, "a # b");
  EXPECT_TRUE(program_.dry_run);
  EXPECT_FALSE(program_.evaluate);
  EXPECT_EQ(outcome.arguments,
            (std::vector<std::string>{"compare", "--batch_size", "8", "--workers=1,2", "--out_dir=a # b",
                                      "--dry_run=true", "--no_eval=true"}));
}

TEST_F(ConfigFlagTest, AnInvalidFileIsAnErrorInOneLine) {
  for (const auto& [text, what] : {std::pair{"batch_size = 0", "--batch_size"},
                                   {"\nbatch_sise = 1", ":2: unknown flag --batch_sise; did you mean"},
                                   {"batch_size = 1\nbatch-size = 2", ":2: --batch_size is given twice"},
                                   {"config = \"x\"", ":1: config has no effect in a file"},
                                   {"dry_run = 5", "neither true nor false"},
                                   {"out_dir = here", "texts need quotes"},
                                   {"just words", ":1:"}}) {
    const ParseOutcome outcome = ParseWith(text, {});
    EXPECT_EQ(outcome.exit_code, 2) << text;
    EXPECT_THAT(outcome.text, Has(file_, what));
    EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
  }
  EXPECT_THAT(Parse(program_.app, {"compare", "--config", "/no/file"}).text,
              Has("cannot read /no/file: No such file"));
}

// It may be another user's.
TEST_F(ConfigFlagTest, TheFileOfARunNamesNothingOutsideTheRun) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / absl::StrCat("config-of-a-run-", getpid());
  fs::create_directories(folder / "other");
  std::ofstream(folder / "other/manifest.json") << "{}";
  std::string bind, data_dir;
  program_.app.get_subcommand("compare")->add_option("--bind", bind);
  program_.app.get_subcommand("compare")->add_option("--data_dir", data_dir);
  for (const char* name : {"config.toml", "other/flags.toml"}) {
    const std::string file = (folder / name).string();
    std::ofstream(file) << "batch_size = 7\nbind = \"0.0.0.0\"\n";
    const ParseOutcome outcome = Parse(program_.app, {"compare", "--config", file});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.text, absl::StrCat("psring compare: ", file,
                                         ":2: --bind is not taken from a run's folder; give it on the "
                                         "command line\n"));
    EXPECT_TRUE(Parse(program_.app, {"compare", "--config", file, "--bind", "::1"}).proceed);
    EXPECT_EQ(bind, "::1");
  }
  const std::string own = (folder / "flags.toml").string();
  std::ofstream(own) << "bind = \"127.0.0.1\"\ndata_dir = \"/data\"\n";
  EXPECT_TRUE(Parse(program_.app, {"compare", "--config", own}).proceed);
  EXPECT_EQ(data_dir, "/data");
  for (const fs::path& changeable : {fs::path(own), folder}) {
    fs::permissions(changeable, fs::perms::others_write, fs::perm_options::add);
    const std::string text = Parse(program_.app, {"compare", "--config", own}).text;
    EXPECT_THAT(text, Has(absl::StrCat("(other users can write ", changeable.string(), ")")));
    EXPECT_TRUE(Parse(program_.app, {"compare", "--config", own, "--bind", "a", "--data_dir", "b"}).proceed);
    fs::permissions(changeable, fs::perms::others_write, fs::perm_options::remove);
  }
  fs::remove_all(folder);
}

TEST(ParseCounts, DotsContinueByFactorOrByDifference) {
  using Counts = std::vector<int>;
  EXPECT_EQ(*ParseCounts("2,4,8,...,64", 4096), (Counts{2, 4, 8, 16, 32, 64}));
  EXPECT_EQ(*ParseCounts("1,2,...,8", 4096), (Counts{1, 2, 4, 8}));
  EXPECT_EQ(*ParseCounts("2,4,...,10", 4096), (Counts{2, 4, 6, 8, 10}));
  EXPECT_EQ(*ParseCounts("1,3,...,9,100", 4096), (Counts{1, 3, 9, 100}));
  EXPECT_EQ(*ParseCounts("8,2,2", 4096), (Counts{8, 2, 2}));
}

TEST(ParseCounts, RejectsInvalidSequences) {
  for (const char* text :
       {"", "0", "2,...,8", "2,4,...", "4,2,...,8", "2,4,...,11", "2,x", "5000", "2,4,...,...,8"}) {
    EXPECT_FALSE(ParseCounts(text, 4096).ok()) << text;
    EXPECT_FALSE(CountsText(4096)(text).empty()) << text;
  }
}

TEST(ParseOrExitDeathTest, ErrorsGoToStderrWithExitCode2) {
  ProgramFlags program;
  const char* arguments[] = {"psring", "compare", "--worker", "2"};
  EXPECT_EXIT(ParseOrExit(program.app, 4, arguments), testing::ExitedWithCode(2),
              "^psring compare: unknown flag --worker; did you mean --workers\\?\n$");
}

TEST(ParseOrExitDeathTest, HelpGoesToStdoutWithExitCode0) {
  ProgramFlags program;
  const char* arguments[] = {"psring", "--help"};
  EXPECT_EXIT(ParseOrExit(program.app, 2, arguments), testing::ExitedWithCode(0), "^$");
}

TEST(ParseOrExit, NamesTheProgramAfterItsFile) {
  CLI::App app;
  const char* arguments[] = {"/usr/bin/trainer"};
  ParseOrExit(app, 1, arguments);
  EXPECT_EQ(app.get_name(), "trainer");
}

TEST(Note, EscapesItsText) {
  ::testing::internal::CaptureStderr();
  Note("psring", "rank \x1b[2J is lost");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "psring: note: rank \\x1b[2J is lost\n");
}

std::string Pairs(const std::string& text) {
  const auto items = ParseConfig(text, "f");
  if (!items.ok()) return std::string(items.status().message());
  std::string pairs;
  for (const ConfigItem& item : *items) absl::StrAppend(&pairs, item.key, "=", item.value, ";");
  return pairs;
}

TEST(ParseConfig, ReadsWhatFlagsNeed) {
  EXPECT_EQ(Pairs(""), "");
  EXPECT_EQ(Pairs("a = 1\r\n\n  b=true # c\n"), "a=1;b=true;");
  EXPECT_EQ(Pairs("lr = [0.1, 1e-3,\n # more\n -2 , \"x\"]"), "lr=0.1,0.001,-2,x;");
  EXPECT_EQ(Pairs(R"(a = "q\"b\\ #\n" # c)"), "a=q\"b\\ #\n;");
  EXPECT_EQ(Pairs(R"(a = 'C:\x "y"')"), "a=C:\\x \"y\";");
  EXPECT_EQ(Pairs("[debug]\nscore = \"test\""), "debug.score=test;");
  EXPECT_EQ(Pairs("z = 1\nb = 0x10\na = 1_000"), "z=1;b=16;a=1000;");
}

TEST(ParseConfig, NamesThePlaceOfAnErrorInOneLine) {
  for (const auto& [text, line] : {std::pair{"a = 1\na = 2", 2},
                                   {"a = b", 1},
                                   {"a =", 1},
                                   {"a = 1 2", 1},
                                   {"a", 1},
                                   {"= 1", 1},
                                   {"[a", 1},
                                   {"a = [1", 1},
                                   {"a = \"1", 1},
                                   {"a = 2026-11-28", 1},
                                   {"a = [[1], 2]", 1},
                                   {"[a.b.c]\nd = 1", 1},
                                   {"a = \"\xff\"", 1},
                                   {"\n\na = \"\\q\"", 3}}) {
    EXPECT_THAT(Pairs(text), testing::MatchesRegex(absl::StrCat("f:", line, ":[0-9]+: [^\n]+"))) << text;
  }
}

TEST(ConfigLine, RoundTrips) {
  for (const std::string value :
       {"", "1", "-1e3", "1:3,2:1.5", "true", "a # b", "\"\\\n\t'\x7f", "0x10", "ring", ".5", "0.50", "007",
        "0.05", "1e400", "inf", "99999999999999999999", "训练"}) {
    EXPECT_EQ(Pairs(ConfigLine("key", value)), absl::StrCat("key=", value, ";"));
  }
  EXPECT_EQ(ConfigLine("batch", "64"), "batch = 64\n");
}

}  // namespace
}  // namespace psring
