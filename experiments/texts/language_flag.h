// The flag --lang, shared by all verbs with bilingual output.
#pragma once

#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace psring {

// Adds --lang, which sets `language` to "en" or "zh". Its help text is `what`.
CLI::Option* AddLanguageFlag(CLI::App& verb, std::string& language, const std::string& what);

}  // namespace psring
