#include "experiments/texts/language_flag.h"

#include "CLI/CLI.hpp"
#include "common/cli/command_line.h"

namespace psring {

CLI::Option* AddLanguageFlag(CLI::App& verb, std::string& language, const std::string& what) {
  return verb.add_option("--lang", language, what)->option_text("LANG [en]")->check(OneOf({"en", "zh"}));
}

}  // namespace psring
