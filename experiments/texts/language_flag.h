// The flag --lang, shared by all verbs with bilingual output.
#pragma once

#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace psring {

// Sets `language` to "en" or "zh".
CLI::Option* AddLanguageFlag(CLI::App& verb, std::string& language, const std::string& what);

}  // namespace psring
