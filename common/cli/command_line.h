// The rules that all commands share: `-` and `_` are the same in a flag's name, the error for an unknown name
// suggests the nearest known one, and invalid input gives one line on stderr and exit code 2.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace psring {

// --help lists the flags that most users need, --help-all lists every flag. Returns the CLI11 group for a
// flag that only --help-all lists, under the heading `group`.
std::string InHelpAll(const std::string& group);

// Heading of the flags --debug.*, which only --help-all lists (as InHelpAll).
inline constexpr char kDebugGroup[] = "Debugging psring itself";

// The width of text for users: $COLUMNS, else that of the terminal on stdout, else 100; at least 50 and at
// most 110.
size_t OutputColumns();

// Formats the --help of `app` and its commands in lines of at most `columns`, except for longer words, and
// adds --help-all where --help omits flags. Parse calls it.
void PrepareHelp(CLI::App& app, size_t columns);

// Adds --config FILE to `app`. Parse takes the flags in FILE (base/config_file.h) as if they were typed; a
// flag on the command line replaces the one in the file.
void AddConfigFlag(CLI::App& app, const std::string& group);

// Adds --lang to `verb`: en or zh. Parse calls SetLanguage (common/text/translate.h) if it is given.
CLI::Option* AddLanguageFlag(CLI::App& verb, const std::string& what);

// The result of parsing: continue, or print `text` and exit.
struct ParseOutcome {
  bool proceed = true;
  int exit_code = 0;  // 0: `text` is help or version, for stdout; 2: one line of error, for stderr
  std::string text;   // ends with a newline unless empty
  std::vector<std::string> arguments = {};  // as given, with --config replaced by the flags of its file
};

// Parses `arguments` (without the program's name; "help train" is "train --help") into the variables bound to
// `app` and its subcommands. A flag given twice is an error, unless it collects its values. Flags are
// registered with `_`.
ParseOutcome Parse(CLI::App& app, const std::vector<std::string>& arguments);

// As Parse, but prints errors ("psring compare: unknown flag --worker; did you mean --workers?") and exits
// with 2, or prints help and exits with 0. Returns the command line, argv[0] included, with --config replaced
// by the flags of its file.
std::vector<std::string> ParseOrExit(CLI::App& app, int argc, const char* const* argv);

// Checks for CLI::Option::check: empty if `text` is valid, else what is wrong with it. CLI11 prepends the
// flag's name ("--workers: 'abc' is not a number").
using ValueCheck = std::function<std::string(const std::string& text)>;

// What `parse` rejects, unless it is `word`.
template <typename Parse>
ValueCheck ParsedBy(Parse parse, const char* word = nullptr) {
  return [parse, word](const std::string& text) {
    return word != nullptr && text == word ? "" : std::string(parse(text).status().message());
  };
}

ValueCheck WholeNumber(int64_t least, uint64_t most);

struct RealRange {
  double low = 0;
  double high = std::numeric_limits<double>::infinity();
  bool low_allowed = false;   // [low
  bool high_allowed = false;  // high]
};
ValueCheck RealNumber(const RealRange& range);

ValueCheck OneOf(const std::vector<std::string>& words);

// Every part of a comma-separated list passes `check`.
ValueCheck ListOf(ValueCheck check);

// Why `value`, which `check` rejects, is not one value of `flag`: it is a list, or has separators or a unit
// ("--batch 32,64", "--samples 60,000", "--timeout 10m"). `unit`: as in --help. Empty: it is none of these.
std::string WhyNotOneValue(const std::string& flag, const std::string& value, const std::string& unit,
                           const ValueCheck& check);

// "1,2,4", "2,4,...,64": after two numbers, `...` continues by their factor if that reaches the last number,
// else by their difference. Numbers are from 1 to `most`, in the order given.
absl::StatusOr<std::vector<int>> ParseCounts(const std::string& text, int most);
ValueCheck CountsText(int most);

// OneLine (common/text/peer_text.h), which keeps newlines and tabs: for texts of several lines by psring, in
// which parts of others are PeerText.
std::string Printable(const std::string& text);

// Prints "PROGRAM: MESSAGE" on stderr, in MessageText; returns `code`.
int Fail(const std::string& program, const std::string& message, int code = 1);
// Prints "PROGRAM: note: MESSAGE" in the same way.
void Note(const std::string& program, const std::string& message);

// The exit code of a program that has finished with `code`: 1, with a line on stderr, instead of 0 if stdout
// could not be written, as on a full disk. The last call of every main.
int FinishOutput(const std::string& program, int code);

}  // namespace psring
