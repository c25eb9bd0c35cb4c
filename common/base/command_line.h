// The small rules that all our commands share: `-` and `_` are the same in a flag's name, an unknown word is
// answered with the nearest known one, and bad input is one line on stderr and exit code 2.
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

// `word` in lower case, with `_` for `-`: equal for words that our commands take as the same.
std::string CanonicalWord(std::string word);

// The known word that `word` begins, or else the one with the smallest edit distance to it (a swap of
// neighbours counts once, `-` and `_` are the same); empty where none is near (more than a third differs).
std::string NearestWord(const std::string& word, const std::vector<std::string>& known);

// What a command line comes to: go on, or print `text` and exit.
struct ParseOutcome {
  bool proceed = true;
  int exit_code = 0;  // 0: `text` is help or version, for stdout; 2: an error's one line, for stderr
  std::string text;   // ends with a newline unless empty
};

// Parses `arguments` (without the program's name) into what is bound to `app`. Subcommand-aware. Repeats of a
// flag are refused, except where its values are collected one by one. Flags are registered with `_`.
ParseOutcome Parse(CLI::App& app, const std::vector<std::string>& arguments);

// Parse, then does what it comes to: prints "psring compare: unknown flag --worker; did you mean --workers?"
// and exits 2, or prints help and exits 0, or returns.
void ParseOrExit(CLI::App& app, int argc, const char* const* argv);

// Checks for CLI::Option::check. Empty where `text` is fine, else what is wrong with it: CLI11 puts the
// flag's name in front ("--workers: 'abc' is not a number").
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

// `text` with its control characters, except newlines and tabs, as "\x1b": part of it may come from another
// process, and is not to move the terminal's cursor.
std::string Printable(const std::string& text);

// "psring: MESSAGE" on stderr, printable; returns `code`.
int Fail(const std::string& program, const std::string& message, int code = 1);

}  // namespace psring
