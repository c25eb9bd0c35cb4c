// The part of command_line.h that formats --help.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/cli/command_line.h"

namespace psring {
namespace {

constexpr char kInHelpAll[] = " (--help-all)";  // ends the groups of InHelpAll
constexpr int kLeastColumns = 50, kMaxColumns = 110, kUnknownColumns = 100;

// CLI11's formatter, but a flag's lines read "--batch N    Samples per worker and step (default 128)",
// wrapped, and --help leaves out the groups of InHelpAll.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(size_t columns) : columns_(columns) {
    label("OPTIONS", "FLAGS");
    label("SUBCOMMAND", "COMMAND");
    column_width(kColumn);
  }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    std::string names = is_positional ? PositionalName(*option) : absl::StrJoin(DashedNames(*option), ", ");
    const bool is_switch = option->get_items_expected_min() == 0;
    std::string description = option->get_description();
    if (!is_switch) {
      const std::string& value = option->get_option_text();
      if (!is_positional) absl::StrAppend(&names, " ", value.empty() ? "VALUE" : value);
      if (option->get_required()) absl::StrAppend(&description, " (required)");
      const std::string standard = option->get_default_str();
      if (!standard.empty()) absl::StrAppend(&description, " (default ", standard, ")");
    }
    return InColumns("  " + names, description);
  }

  // Of a positional argument, in the line "Usage".
  std::string make_option_usage(const CLI::Option* option) const override {
    std::string name = PositionalName(*option);
    if (option->get_items_expected_max() > 1) name += "...";
    return option->get_required() ? name : absl::StrCat("[", name, "]");
  }

  std::string make_description(const CLI::App* app) const override {
    const std::string text = app->get_description();
    return text.empty() ? "" : InColumns("", text, 0);
  }

  std::string make_subcommand(const CLI::App* sub) const override {
    return InColumns(absl::StrCat("  ", sub->get_display_name(true)), sub->get_description());
  }

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    if (mode == CLI::AppFormatMode::Sub) return make_expanded(app);
    return absl::StrCat(make_description(app), make_usage(app, std::move(name)), make_positionals(app),
                        Groups(app, mode), make_subcommands(app, mode), "\n", make_footer(app));
  }

  // A command within the help of all commands.
  std::string make_expanded(const CLI::App* app) const override {
    return absl::StrCat("\n", app->get_display_name(), "\n", make_description(app), make_positionals(app),
                        Groups(app, CLI::AppFormatMode::Sub));
  }

 private:
  static constexpr size_t kColumn = 27;

  std::string Groups(const CLI::App* app, CLI::AppFormatMode mode) const {
    std::vector<std::pair<std::string, std::vector<const CLI::Option*>>> groups;
    for (const CLI::Option* option : app->get_options([](const CLI::Option*) { return true; })) {
      absl::string_view heading = option->get_group();
      const bool in_help_all = absl::ConsumeSuffix(&heading, kInHelpAll) || heading == kDebugGroup;
      if (heading.empty() || !option->nonpositional()) continue;
      if (in_help_all && mode == CLI::AppFormatMode::Normal) continue;
      auto group =
          std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == heading; });
      if (group == groups.end()) group = groups.insert(groups.end(), {std::string(heading), {}});
      group->second.push_back(option);
    }
    // Debugging comes last.
    std::stable_partition(groups.begin(), groups.end(), [](const auto& g) { return g.first != kDebugGroup; });
    std::string text;
    for (const auto& [heading, options] : groups) absl::StrAppend(&text, make_group(heading, false, options));
    return text;
  }

  static std::vector<std::string> DashedNames(const CLI::Option& option) {
    std::vector<std::string> names;
    for (const std::string& name : option.get_snames()) names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
    return names;
  }

  static std::string PositionalName(const CLI::Option& option) {
    const std::string& value = option.get_option_text();
    return value.empty() ? option.get_name(true) : value;
  }

  // `line`, and from column `first` on the description.
  std::string InColumns(std::string line, const std::string& description, size_t first = kColumn) const {
    std::string text;
    if (line.size() >= first && !line.empty()) {
      absl::StrAppend(&text, line, "\n");
      line.clear();
    }
    line.resize(first, ' ');
    for (absl::string_view word : absl::StrSplit(description, ' ')) {
      if (line.size() + 1 + word.size() > columns_ && line.size() > first) {
        absl::StrAppend(&text, line, "\n");
        line.assign(first, ' ');
      }
      if (line.size() > first) line += ' ';
      absl::StrAppend(&line, word);
    }
    return absl::StrCat(text, line, "\n");
  }

  const size_t columns_;
};

// Returns whether --help leaves out some flags of `app` or of its commands; then there is --help-all.
bool SetFormatter(CLI::App& app, const std::shared_ptr<HelpFormatter>& formatter) {
  app.formatter(formatter);
  bool hides = false;
  for (const CLI::Option* option : app.get_options([](CLI::Option*) { return true; })) {
    hides = hides || absl::EndsWith(option->get_group(), kInHelpAll) || option->get_group() == kDebugGroup;
  }
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) {
    hides = SetFormatter(*sub, formatter) || hides;
  }
  if (hides) app.set_help_all_flag("--help-all", "Print this and the flags that are rarely needed");
  return hides;
}

}  // namespace

std::string InHelpAll(const std::string& group) { return absl::StrCat(group, kInHelpAll); }

size_t OutputColumns() {
  const char* const variable = std::getenv("COLUMNS");
  int columns = 0;
  if (variable == nullptr || !absl::SimpleAtoi(variable, &columns) || columns <= 0) {
    struct winsize size = {};
    columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
  }
  if (columns <= 0) columns = kUnknownColumns;
  return static_cast<size_t>(std::clamp(columns, kLeastColumns, kMaxColumns));
}

void PrepareHelp(CLI::App& app, size_t columns) {
  SetFormatter(app, std::make_shared<HelpFormatter>(columns));
}

}  // namespace psring
