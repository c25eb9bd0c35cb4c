#include "common/command_line.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/check.h"

namespace psring {
namespace {

std::string Canonical(std::string result) {
  absl::AsciiStrToLower(&result);
  std::replace(result.begin(), result.end(), '-', '_');
  return result;
}

// Optimal string alignment: insertions, deletions, replacements and swaps of neighbours count one each.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const size_t replaced = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

std::string DidYouMean(const std::string& nearest) {
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

// The options of `app` and of its nameless groups.
std::vector<CLI::Option*> OptionsOf(CLI::App& app) {
  std::vector<CLI::Option*> options;
  for (CLI::Option* option : app.get_options([](CLI::Option*) { return true; })) options.push_back(option);
  for (CLI::App* group : app.get_subcommands([](CLI::App* sub) { return sub->get_name().empty(); })) {
    for (CLI::Option* option : OptionsOf(*group)) options.push_back(option);
  }
  return options;
}

std::vector<std::string> CommandsOf(CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](CLI::App* s) { return !s->get_name().empty(); })) {
    if (!sub->get_group().empty()) names.push_back(sub->get_name());
  }
  return names;
}

bool LooksLikeNumber(const std::string& text) {
  double unused;
  return absl::SimpleAtod(text, &unused);
}

bool LooksLikeFlag(const std::string& text) {
  return text.size() > 1 && text[0] == '-' && !LooksLikeNumber(text);
}

// Rewrites a command line into the one spelling that CLI11 is left to read: registered names, a value as a
// word of its own. Finds what CLI11 would not say well: unknown words, repeats, values that are missing.
class Reader {
 public:
  explicit Reader(CLI::App& app) : app_(&app), program_(app.get_name()) {}

  absl::StatusOr<std::vector<std::string>> Read(const std::vector<std::string>& arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i] == "--") {
        words_.insert(words_.end(), arguments.begin() + static_cast<ptrdiff_t>(i), arguments.end());
        break;
      }
      if (LooksLikeFlag(arguments[i])) {
        PSRING_RETURN_IF_ERROR(ReadFlag(arguments, i));
      } else {
        PSRING_RETURN_IF_ERROR(ReadWord(arguments[i]));
      }
    }
    return words_;
  }

  // "psring compare": the program and the commands read so far.
  const std::string& program() const { return program_; }
  CLI::App& app() const { return *app_; }

 private:
  absl::Status ReadWord(const std::string& word) {
    if (CLI::App* sub = FindCommand(word); sub != nullptr) {
      app_ = sub;
      absl::StrAppend(&program_, " ", sub->get_name());
      collecting_ = false;
    } else if (!collecting_ && !TakesWords()) {
      const std::vector<std::string> commands = CommandsOf(*app_);
      if (commands.empty())
        return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", word, "'"));
      const std::string nearest = NearestWord(word, commands);
      return absl::InvalidArgumentError(
          absl::StrCat("unknown command '", word, "'",
                       nearest.empty() ? absl::StrCat("; there are ", absl::StrJoin(commands, ", "))
                                       : DidYouMean(nearest)));
    }
    words_.push_back(word);
    return absl::OkStatus();
  }

  // Reads arguments[i], and arguments[++i] where that is its value.
  absl::Status ReadFlag(const std::vector<std::string>& arguments, size_t& i) {
    const std::string& word = arguments[i];
    const size_t equals = word.find('=');
    const std::string typed = word.substr(0, equals);
    const auto [option, name] = Find(typed);
    if (option == nullptr) {
      if (app_->get_allow_extras()) {
        words_.push_back(word);
        return absl::OkStatus();
      }
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", typed, DidYouMean(NearestFlag(typed))));
    }
    collecting_ = option->get_items_expected_max() > 1;
    if (++times_[option] > 1 && !(collecting_ && option->get_delimiter() == '\0')) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is given twice", collecting_ ? "; separate its values by commas" : ""));
    }
    if (option->get_items_expected_min() == 0) {  // a switch: "--deterministic" or "--deterministic=false"
      words_.push_back(equals == std::string::npos ? name : absl::StrCat(name, word.substr(equals)));
      return absl::OkStatus();
    }
    std::string value;
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (i + 1 < arguments.size() && !LooksLikeFlag(arguments[i + 1])) {
      value = arguments[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat(name, " needs a value"));
    }
    words_.push_back(name);
    words_.push_back(std::move(value));
    return absl::OkStatus();
  }

  CLI::App* FindCommand(const std::string& word) const {
    const std::vector<CLI::App*> found =
        app_->get_subcommands([&](CLI::App* sub) { return !word.empty() && sub->check_name(word); });
    return found.empty() ? nullptr : found.front();
  }

  // The option that `typed` names, with the name it is registered under; `-` and `_` are the same.
  std::pair<CLI::Option*, std::string> Find(const std::string& typed) const {
    const bool is_long = absl::StartsWith(typed, "--");
    const std::string wanted = is_long ? Canonical(typed.substr(2)) : typed.substr(1);
    for (CLI::App* app : Reach()) {
      for (CLI::Option* option : OptionsOf(*app)) {
        for (const std::string& name : is_long ? option->get_lnames() : option->get_snames()) {
          if ((is_long ? Canonical(name) : name) == wanted) {
            return {option, absl::StrCat(is_long ? "--" : "-", name)};
          }
        }
      }
    }
    return {nullptr, ""};
  }

  // One dash instead of two is a way of mistyping, too.
  std::string NearestFlag(std::string typed) const {
    if (!absl::StartsWith(typed, "--")) typed = "-" + typed;
    std::vector<std::string> names;
    for (CLI::App* app : Reach()) {
      for (const CLI::Option* option : OptionsOf(*app)) {
        names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
      }
    }
    const std::string nearest = NearestWord(typed.substr(2), names);
    return nearest.empty() ? "" : "--" + nearest;
  }

  // The apps whose flags may stand here: the command, and its parents where it lets them through.
  std::vector<CLI::App*> Reach() const {
    std::vector<CLI::App*> apps = {app_};
    while (apps.back()->get_fallthrough() && apps.back()->get_parent() != nullptr) {
      apps.push_back(apps.back()->get_parent());
    }
    return apps;
  }

  bool TakesWords() const {
    if (app_->get_allow_extras()) return true;
    const std::vector<CLI::Option*> options = OptionsOf(*app_);
    return std::any_of(options.begin(), options.end(),
                       [](const CLI::Option* option) { return option->get_positional(); });
  }

  CLI::App* app_;
  std::string program_;
  std::vector<std::string> words_;
  std::map<const CLI::Option*, int> times_;
  bool collecting_ = false;  // the last flag takes several words
};

// CLI11's, but a flag's line reads "--batch N    Samples per worker and step (default 128)".
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() {
    column_width(32);
    label("OPTIONS", "flags");
    label("SUBCOMMAND", "COMMAND");
    label("Subcommands", "Commands");
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    const std::string type =
        option->get_option_text().empty() ? std::string("VALUE") : option->get_option_text();
    return absl::StrCat(" ", type, option->get_required() ? " (required)" : "");
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    const std::string standard = option->get_default_str();
    if (option->get_type_size() == 0 || standard.empty()) return option->get_description();
    return absl::StrCat(option->get_description(), " (default ", standard, ")");
  }
};

void UseFormatter(CLI::App& app, const std::shared_ptr<HelpFormatter>& formatter) {
  app.formatter(formatter);
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) UseFormatter(*sub, formatter);
}

// Options that were registered without one of our checks: CLI11 could not convert their value.
std::string ExplainConversion(CLI::App& app, const std::string& what) {
  for (const CLI::Option* option : OptionsOf(app)) {
    const std::string name = option->get_name();
    if (option->count() == 0 || !absl::StrContains(what, name)) continue;
    for (const std::string& value : option->results()) {
      if (!LooksLikeNumber(value)) return absl::StrCat(name, ": '", value, "' is not a number");
    }
    return absl::StrCat(name, ": '", absl::StrJoin(option->results(), ","), "' is out of range");
  }
  return what;
}

ParseOutcome Wrong(const std::string& program, const std::string& message) {
  const std::string line(absl::StripTrailingAsciiWhitespace(message));
  return {false, 2, absl::StrCat(program, ": ", absl::StrReplaceAll(line, {{"\n", " "}}), "\n")};
}

}  // namespace

std::string NearestWord(const std::string& word, const std::vector<std::string>& known) {
  const std::string typed = Canonical(word);
  if (typed.size() >= 3) {
    for (const std::string& candidate : known) {
      if (absl::StartsWith(Canonical(candidate), typed)) return candidate;
    }
  }
  std::string nearest;
  size_t least = SIZE_MAX;
  for (const std::string& candidate : known) {
    const size_t distance = EditDistance(typed, Canonical(candidate));
    if (3 * distance <= std::max(typed.size(), candidate.size()) && distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

ParseOutcome Parse(CLI::App& app, const std::vector<std::string>& arguments) {
  UseFormatter(app, std::make_shared<HelpFormatter>());
  Reader reader(app);
  absl::StatusOr<std::vector<std::string>> words = reader.Read(arguments);
  if (!words.ok()) return Wrong(reader.program(), std::string(words.status().message()));
  std::reverse(words->begin(), words->end());  // CLI11 takes them from the back
  try {
    app.parse(*std::move(words));
    return {};
  } catch (const CLI::Success& help) {
    std::ostringstream out, error;
    app.exit(help, out, error);
    return {false, 0, out.str()};
  } catch (const CLI::ConversionError& error) {
    return Wrong(reader.program(), ExplainConversion(reader.app(), error.what()));
  } catch (const CLI::RequiredError& error) {
    if (!absl::StartsWith(error.what(), "A subcommand")) return Wrong(reader.program(), error.what());
    return Wrong(reader.program(),
                 absl::StrCat("name a command: ", absl::StrJoin(CommandsOf(reader.app()), ", ")));
  } catch (const CLI::ParseError& error) {
    return Wrong(reader.program(), error.what());
  }
}

void ParseOrExit(CLI::App& app, int argc, const char* const* argv) {
  if (app.get_name().empty() && argc > 0) {
    const std::vector<std::string> path = absl::StrSplit(argv[0], '/');
    app.name(path.back());
  }
  const ParseOutcome outcome = Parse(app, std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
  if (outcome.proceed) return;
  std::fputs(outcome.text.c_str(), outcome.exit_code == 0 ? stdout : stderr);
  std::exit(outcome.exit_code);
}

ValueCheck WholeNumber(int64_t least, uint64_t most) {
  return [least, most](const std::string& text) -> std::string {
    double value;
    if (!absl::SimpleAtod(text, &value) || std::isnan(value)) {
      return absl::StrCat("'", text, "' is not a number");
    }
    int64_t negative = 0;
    uint64_t positive = 0;
    const bool is_negative = absl::SimpleAtoi(text, &negative) && negative < 0;
    const bool is_positive = absl::SimpleAtoi(text, &positive);
    const bool too_large = value >= 18446744073709551615.0;  // than any whole number we can hold
    const bool too_small = value <= -9223372036854775808.0;
    if (!is_negative && !is_positive && !too_large && !too_small) {
      return absl::StrCat("'", text, "' is not a whole number");
    }
    if (too_small || (is_negative && negative < least) ||
        (is_positive && least > 0 && positive < static_cast<uint64_t>(least))) {
      return absl::StrCat(text, " is too small; the least is ", least);
    }
    if (too_large || (is_positive && positive > most)) {
      return absl::StrCat(text, " is too large; the most is ", most);
    }
    return "";
  };
}

ValueCheck RealNumber(const RealRange& range) {
  return [range](const std::string& text) -> std::string {
    double value;
    if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
      return absl::StrCat("'", text, "' is not a number");
    }
    if (value < range.low || (value == range.low && !range.low_allowed)) {
      return absl::StrCat(text, " is too small; it must be ", range.low_allowed ? "at least " : "above ",
                          range.low);
    }
    if (value > range.high || (value == range.high && !range.high_allowed)) {
      return absl::StrCat(text, " is too large; it must be ", range.high_allowed ? "at most " : "below ",
                          range.high);
    }
    return "";
  };
}

ValueCheck OneOf(const std::vector<std::string>& words) {
  return [words](const std::string& text) -> std::string {
    if (std::find(words.begin(), words.end(), text) != words.end()) return "";
    return absl::StrCat("'", text, "' is not one of ", absl::StrJoin(words, ", "),
                        DidYouMean(NearestWord(text, words)));
  };
}

int Fail(const std::string& program, const std::string& message, int code) {
  std::fprintf(stderr, "%s: %s\n", program.c_str(), message.c_str());
  return code;
}

}  // namespace psring
