// The rules that all commands share: `-` and `_` are the same in a flag's name, an unknown name is answered
// with the nearest known one, and invalid input gives one line on stderr and exit code 2.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace psring {

// `word` in lower case, with `_` for `-`: equal for names that our commands treat as the same.
std::string CanonicalWord(std::string word);

// The known name that starts with `word`, or else the one with the smallest edit distance (swapping
// neighbours counts once; `-` and `_` are the same); empty if more than a third differs.
std::string NearestWord(const std::string& word, const std::vector<std::string>& known);

// The result of parsing: continue, or print `text` and exit.
struct ParseOutcome {
  bool proceed = true;
  int exit_code = 0;  // 0: `text` is help or version, for stdout; 2: one line of error, for stderr
  std::string text;   // ends with a newline unless empty
};

// Parses `arguments` (without the program's name) into the variables bound to `app`, including subcommands.
// Repeated flags are errors unless the flag collects values. Flags are registered with `_`.
ParseOutcome Parse(CLI::App& app, const std::vector<std::string>& arguments);

// Parses, then prints "psring compare: unknown flag --worker; did you mean --workers?" and exits 2, or prints
// help and exits 0, or returns.
void ParseOrExit(CLI::App& app, int argc, const char* const* argv);

// Checks for CLI::Option::check. Empty if `text` is valid, else the reason; CLI11 puts the flag's name before
// it ("--workers: 'abc' is not a number").
using ValueCheck = std::function<std::string(const std::string& text)>;

ValueCheck WholeNumber(int64_t least, uint64_t most);

struct RealRange {
  double low = 0;
  double high = std::numeric_limits<double>::infinity();
  bool low_allowed = false;   // [low
  bool high_allowed = false;  // high]
};
ValueCheck RealNumber(const RealRange& range);

ValueCheck OneOf(const std::vector<std::string>& words);

// `text` with its control characters, except newlines and tabs, as "\x1b". Part of it may come from another
// process and must not control the terminal.
std::string Printable(const std::string& text);

// Prints "psring: MESSAGE" on stderr, escaped by Printable; returns `code`.
int Fail(const std::string& program, const std::string& message, int code = 1);

}  // namespace psring
