// --lang, the same for every verb that speaks to people.
#pragma once

#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace psring {

// `language` becomes "en" or "zh".
CLI::Option* AddLanguageFlag(CLI::App& verb, std::string& language, const std::string& what);

}  // namespace psring
