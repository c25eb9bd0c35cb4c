// The flags of training and the command line that reproduces the options.
#include <algorithm>
#include <concepts>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/options/training_flag_table.h"
#include "common/options/training_options.h"
#include "common/text/units.h"

namespace psring {
namespace {

// StrCat keeps six digits of a double; a child process must get all of them.
std::string Text(const std::string& value) { return value; }
template <typename T>
requires std::integral<T> || std::floating_point<T> std::string Text(T value) { return ShortestText(value); }

struct Entry {
  const char* flag;
  std::string text;
  ValueCheck check;  // null: a switch
};

struct Collector {
  const char* group = "";
  std::vector<Entry> entries = {};

  template <typename T>
  void operator()(const FlagRow& row, const T& field, const ValueCheck& check) {
    entries.push_back({row.flag, Text(field), check});
  }
  void Switch(const FlagRow& row, bool field, bool) {
    entries.push_back({row.flag, field ? "true" : "false", nullptr});
  }
};

std::vector<Entry> EntriesOf(const TrainingOptions& options) {
  Collector collector;
  VisitFlags(options, collector);
  return collector.entries;
}

// The fields that differ from their defaults. A default may be a value that its flag does not accept, such as
// a learning rate of 0 for "the model's".
std::vector<Entry> EntriesBesideDefaults(const TrainingOptions& options) {
  const std::vector<Entry> standard = EntriesOf(TrainingOptions());
  std::vector<Entry> entries = EntriesOf(options);
  size_t i = 0;
  std::erase_if(entries, [&](const Entry& entry) { return entry.text == standard[i++].text; });
  return entries;
}

struct Adder {
  CLI::App& app;
  const std::vector<std::string>& skip;
  const char* group = "";
  size_t skipped = 0;

  bool Skips(const FlagRow& row) {
    if (std::find(skip.begin(), skip.end(), row.flag) == skip.end()) return false;
    ++skipped;
    return true;
  }
  std::string GroupOf(const FlagRow& row) const {
    return row.shown == FlagHelp::kBrief ? group : InHelpAll(group);
  }
  template <typename T>
  void operator()(const FlagRow& row, T& field, const ValueCheck& check) {
    if (Skips(row)) return;
    CLI::Option* option = app.add_option(row.flag, field, row.help);
    option->group(GroupOf(row))->option_text(row.value)->check(check);
    // A default that the flag does not accept means "not given".
    if (check(Text(field)).empty()) option->default_str(Text(field));
  }
  void Switch(const FlagRow& row, bool& field, bool value) {
    if (Skips(row)) return;
    app.add_flag(value ? row.flag : absl::StrCat("!", row.flag), field, row.help)->group(GroupOf(row));
  }
};

}  // namespace

void AddTrainingFlags(CLI::App& app, TrainingOptions& options, const std::vector<std::string>& skip) {
  Adder adder{app, skip};
  VisitFlags(options, adder);
  PSRING_CHECK(adder.skipped == skip.size());  // each name in `skip` is a flag of the table
}

std::vector<std::string> TrainingArguments(const TrainingOptions& options) {
  std::vector<std::string> arguments;
  for (const Entry& entry : EntriesBesideDefaults(options)) {
    arguments.push_back(entry.check == nullptr ? entry.flag : absl::StrCat(entry.flag, "=", entry.text));
  }
  return arguments;
}

absl::StatusOr<TrainingOptions> TrainingOptionsOf(const std::vector<std::string>& arguments) {
  TrainingOptions options;
  CLI::App app("", "training");
  app.set_help_flag();
  AddTrainingFlags(app, options);
  const ParseOutcome outcome = Parse(app, arguments);
  if (outcome.proceed) return options;
  return InvalidArgument(absl::StripTrailingAsciiWhitespace(outcome.text));
}

absl::Status CheckFlagValues(const TrainingOptions& options) {
  for (const Entry& entry : EntriesBesideDefaults(options)) {
    const std::string wrong = entry.check == nullptr ? "" : entry.check(entry.text);
    if (!wrong.empty()) return InvalidArgument(entry.flag, ": ", wrong);
  }
  return absl::OkStatus();
}

}  // namespace psring
