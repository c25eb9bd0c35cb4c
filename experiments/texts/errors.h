// Errors and warnings in the language of the output. They are written in English where they occur, also in
// folders that do not know about languages; this translates them when they are printed.
#pragma once

#include <string>

#include "experiments/texts/phrase.h"

namespace psring {

// `english`, or its translation by error_table.h: of the entire text, or of all its clauses (after "; ", and
// after "--flag: " or "path: "). Texts that the table does not cover stay English, as do the lines after the
// first.
std::string InLanguage(Language language, const std::string& english);

// The text of an error after the program's name: in Chinese it begins with "错误：".
std::string ErrorText(Language language, const std::string& english);
// As Fail (common/cli/command_line.h), in `language`.
int Fail(Language language, const std::string& program, const std::string& message, int code = 1);

}  // namespace psring
