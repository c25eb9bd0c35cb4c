// The small rules that all our commands share: `-` and `_` are the same in a flag's name, an unknown word is
// answered with the nearest known one, and bad input is one line on stderr and exit code 2.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace psring {

// The known word with the smallest edit distance to `word`; empty where none is near (more than a third
// differs).
std::string NearestWord(const std::string& word, const std::vector<std::string>& known);

// Parses; on --help or --version prints and exits 0; on bad input prints "psring compare: unknown flag
// --worker; did you mean --workers?" and exits 2. Subcommand-aware. Repeats of a flag are refused.
void ParseOrExit(CLI::App& app, int argc, const char* const* argv);

// "psring: MESSAGE" on stderr; returns `code`.
int Fail(const std::string& program, const std::string& message, int code = 1);

inline constexpr const char* kVersion = "0.1.0";

}  // namespace psring
