#include "common/cli/command_line.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/config_file.h"
#include "common/cli/version.h"
#include "common/text/peer_text.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr char kConfig[] = "--config";

std::string DidYouMean(const std::string& nearest) {
  return nearest.empty() ? "" : Tr("; did you mean $0?", nearest);
}

// The options of `app` and of its nameless groups.
std::vector<CLI::Option*> OptionsOf(CLI::App& app) {
  std::vector<CLI::Option*> options = app.get_options([](CLI::Option*) { return true; });
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

// Rewrites a command line into the only spelling that CLI11 has to parse: registered names, each value a
// separate argument. Reports what CLI11 would report badly: unknown names, repeats, missing values.
class Reader {
 public:
  explicit Reader(CLI::App& app) : app_(&app), program_(app.get_name()) {}

  absl::StatusOr<std::vector<std::string>> Read(const std::vector<std::string>& arguments) {
    std::vector<std::string> rest;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i] == "--") {
        rest.assign(arguments.begin() + static_cast<ptrdiff_t>(i), arguments.end());
        break;
      }
      const size_t first = i;
      const bool had_config = !config_.empty();
      if (LooksLikeFlag(arguments[i])) {
        PSRING_RETURN_IF_ERROR(ReadFlag(arguments, i));
      } else {
        PSRING_RETURN_IF_ERROR(ReadWord(arguments[i]));
      }
      if (!had_config && !config_.empty()) continue;
      expanded_.insert(expanded_.end(), arguments.begin() + static_cast<ptrdiff_t>(first),
                       arguments.begin() + static_cast<ptrdiff_t>(i) + 1);
    }
    if (!config_.empty()) PSRING_RETURN_IF_ERROR(ReadConfig());
    words_.insert(words_.end(), rest.begin(), rest.end());
    expanded_.insert(expanded_.end(), rest.begin(), rest.end());
    return words_;
  }

  // The arguments, with --config replaced by the flags of its file.
  const std::vector<std::string>& expanded() const { return expanded_; }
  // "FILE: " if `message` names a flag that came from the file of --config, else empty.
  std::string Origin(const std::string& message) const {
    const bool from_file = std::ranges::any_of(
        from_config_, [&](const std::string& name) { return message.starts_with(name + ":"); });
    return from_file ? absl::StrCat(config_, ": ") : "";
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
      if (commands.empty()) {
        return InvalidArgument(
            Tr("unexpected argument '$0'$1", word,
               list_.empty() ? "" : Tr("; separate values by commas: $0,$1", list_, word)));
      }
      const std::string nearest = NearestWord(word, commands);
      return InvalidArgument(
          Tr("unknown command '$0'$1", word,
             nearest.empty() ? Tr("; use one of $0", absl::StrJoin(commands, ", ")) : DidYouMean(nearest)));
    }
    words_.push_back(word);
    return absl::OkStatus();
  }

  absl::Status ReadConfig() {
    PSRING_ASSIGN_OR_RETURN(const std::vector<ConfigItem> items, ReadConfigFile(config_));
    const std::map<const CLI::Option*, int> typed = times_;
    const absl::Status only_mine = CheckOnlyMine(config_);
    const std::filesystem::path path = config_;
    std::error_code error;
    const bool is_runs = path.filename() == "config.toml" ||
                         std::filesystem::exists(path.parent_path() / "manifest.json", error);
    for (const ConfigItem& item : items) {
      const bool is_letter = item.key.size() == 1;
      const std::string flag = absl::StrCat(is_letter ? "-" : "--", item.key);
      const auto [option, name] = Find(flag);
      absl::Status status;
      if (name == kConfig || name == "--help" || name == "--help-all" || name == "--version") {
        status = InvalidArgument(Tr("$0 has no effect in a file", item.key));
      } else if (typed.contains(option)) {
        continue;  // the command line overrides the file
      } else if (const FlagReach reach = ReachOf(is_letter ? item.key : CanonicalWord(item.key), item.value);
                 reach == FlagReach::kOutside && is_runs) {
        status = InvalidArgument(name, " is not taken from a run's folder; give it on the command line");
      } else if (reach != FlagReach::kValue && !only_mine.ok()) {
        status = InvalidArgument(name, " is not taken from a file of others (", only_mine.message(),
                                 "); give it on the command line");
      }
      const std::vector<std::string> word = {absl::StrCat(flag, "=", item.value)};
      size_t i = 0;
      if (status.ok()) status = ReadFlag(word, i);
      if (!status.ok()) return InvalidArgument(config_, ":", item.line, ": ", status.message());
      from_config_.push_back(name);
      expanded_.push_back(word.front());
    }
    return absl::OkStatus();
  }

  // Reads arguments[i], and arguments[++i] if that is its value.
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
      return InvalidArgument(Tr("unknown flag $0$1", typed, DidYouMean(MeantFlag(typed))));
    }
    collecting_ = option->get_items_expected_max() > 1;
    list_.clear();
    if (++times_[option] > 1 && !(collecting_ && option->get_delimiter() == '\0')) {
      return InvalidArgument(Tr(collecting_ ? TrNoop("$0 is given twice; separate its values by commas")
                                            : TrNoop("$0 is given twice"),
                                name));
    }
    if (option->get_items_expected_min() == 0) {  // a switch: "--deterministic" or "--deterministic=false"
      if (equals != std::string::npos) PSRING_RETURN_IF_ERROR(CheckSwitch(name, word.substr(equals + 1)));
      words_.push_back(equals == std::string::npos ? name : absl::StrCat(name, word.substr(equals)));
      return absl::OkStatus();
    }
    std::string value;
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (i + 1 < arguments.size() && !LooksLikeFlag(arguments[i + 1])) {
      value = arguments[++i];
    } else {
      return InvalidArgument(Tr("$0 needs a value", name));
    }
    if (const char delimiter = option->get_delimiter(); delimiter != '\0') {
      const std::vector<std::string> items = absl::StrSplit(value, delimiter);
      if (std::find(items.begin(), items.end(), "") != items.end()) {
        return InvalidArgument(Tr("$0: '$1' has an empty item", name, value));
      }
    }
    if (name == kConfig) {
      if (value.empty()) return InvalidArgument(Tr("--config needs a file"));
      config_ = std::move(value);
      return absl::OkStatus();
    }
    const std::string& shown = option->get_option_text();
    if (absl::StrContains(shown, ",...")) list_ = absl::StrCat(name, " ", value);
    words_.push_back(name);
    words_.push_back(std::move(value));
    return absl::OkStatus();
  }

  // Checks before CLI11, which throws other exceptions than CLI::Error for numbers that are too large.
  static absl::Status CheckSwitch(const std::string& name, const std::string& value) {
    bool unused;
    if (absl::SimpleAtob(value, &unused)) return absl::OkStatus();
    return InvalidArgument(Tr("$0: '$1' is neither true nor false", name, value));
  }

  CLI::App* FindCommand(const std::string& word) const {
    const std::vector<CLI::App*> found =
        app_->get_subcommands([&](CLI::App* sub) { return !word.empty() && sub->check_name(word); });
    return found.empty() ? nullptr : found.front();
  }

  // The option that `typed` names, with the name it is registered under; `-` and `_` are the same.
  std::pair<CLI::Option*, std::string> Find(const std::string& typed) const {
    const bool is_long = absl::StartsWith(typed, "--");
    const std::string wanted = is_long ? CanonicalWord(typed.substr(2)) : typed.substr(1);
    for (CLI::Option* option : Accepted()) {
      for (const std::string& name : is_long ? option->get_lnames() : option->get_snames()) {
        if ((is_long ? CanonicalWord(name) : name) == wanted) {
          return {option, absl::StrCat(is_long ? "--" : "-", name)};
        }
      }
    }
    return {nullptr, ""};
  }

  // One dash instead of two is a common typing error.
  std::string MeantFlag(const std::string& typed) const {
    std::vector<std::string> names;
    for (const CLI::Option* option : Accepted()) {
      names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
    }
    std::string name = typed.substr(std::min(typed.find_first_not_of('-'), typed.size()));
    // "-g2" is "-g 2".
    if (!absl::StartsWith(typed, "--") && name.find_last_not_of("0123456789") == 0) name.resize(1);
    const std::string nearest = NearestFlag(name, names);
    return nearest.empty() ? "" : "--" + nearest;
  }

  // The options of the command, and of its parents if it has fallthrough.
  std::vector<CLI::Option*> Accepted() const {
    std::vector<CLI::Option*> options = OptionsOf(*app_);
    for (CLI::App* app = app_; app->get_fallthrough() && app->get_parent() != nullptr;) {
      app = app->get_parent();
      for (CLI::Option* option : OptionsOf(*app)) options.push_back(option);
    }
    return options;
  }

  bool TakesWords() const {
    if (app_->get_allow_extras()) return true;
    const std::vector<CLI::Option*> options = OptionsOf(*app_);
    return std::ranges::any_of(options, &CLI::Option::get_positional);
  }

  CLI::App* app_;
  std::string program_;
  std::vector<std::string> words_;
  std::vector<std::string> expanded_;
  std::map<const CLI::Option*, int> times_;
  std::string config_;                    // the file of --config
  std::vector<std::string> from_config_;  // names of the flags that it gave
  bool collecting_ = false;               // the last flag takes several values
  std::string list_;  // the last flag and its value, if that is a list ("N,..." in --help)
};

constexpr RealRange kAnyReal = {.low = -std::numeric_limits<double>::infinity()};

// The error of options without one of our checks, whose value CLI11 could not convert.
std::string ExplainConversion(CLI::App& app, const std::string& what) {
  for (const CLI::Option* option : OptionsOf(app)) {
    const std::string name = option->get_name();
    if (option->count() == 0 || !absl::StrContains(what, name)) continue;
    const bool is_whole = absl::StrContains(option->get_type_name(), "INT");
    const ValueCheck check = is_whole ? WholeNumber(INT64_MIN, UINT64_MAX) : RealNumber(kAnyReal);
    for (const std::string& value : option->results()) {
      if (const std::string wrong = check(value); !wrong.empty()) return absl::StrCat(name, ": ", wrong);
    }
    return Tr("$0: '$1' is out of range", name, absl::StrJoin(option->results(), ","));
  }
  return what;
}

// The error of a value that its check rejects: a reason that applies to all flags, or `what`.
std::string ExplainRejection(CLI::App& app, const std::string& what) {
  for (CLI::Option* option : OptionsOf(app)) {
    const std::string name = option->get_name(), prefix = name + ": ";
    if (!absl::StartsWith(what, prefix) || option->results().size() != 1) continue;
    const auto check = [&](std::string text) { return (*option->get_validator(0))(text); };
    const std::string reason =
        WhyNotOneValue(name, option->results().front(), option->get_option_text(), check);
    if (reason.empty()) continue;
    const bool makes_runs = app.get_option_no_throw("--out") != nullptr;
    return absl::StrCat(prefix, reason,
                        makes_runs && absl::EndsWith(reason, Tr("run the command once for each"))
                            ? Tr("; psring report RUN RUN shows the runs on one page")
                            : "");
  }
  return what;
}

// "help train" as "train --help", if `app` has commands and none of that name.
std::vector<std::string> WithoutHelpCommand(CLI::App& app, std::vector<std::string> arguments) {
  const std::vector<std::string> commands = CommandsOf(app);
  const bool is_help = !commands.empty() && !arguments.empty() && arguments.front() == "help" &&
                       std::find(commands.begin(), commands.end(), "help") == commands.end();
  if (!is_help) return arguments;
  std::rotate(arguments.begin(), arguments.begin() + 1, arguments.end());
  arguments.back() = "--help";
  return arguments;
}

std::string ErrorLine(const std::string& program, const std::string& message) {
  return Tr("$0: $1", program, MessageText(message)) + "\n";
}

ParseOutcome Wrong(const std::string& program, const std::string& message) {
  // CLI11 has no name for a hidden flag.
  const std::string line = absl::StrReplaceAll(
      absl::StripTrailingAsciiWhitespace(absl::StripPrefix(message, ": ")), {{"\n", " "}});
  return {.proceed = false, .exit_code = 2, .text = ErrorLine(program, line)};
}

}  // namespace

CLI::Option* AddLanguageFlag(CLI::App& verb, const std::string& what) {
  const auto set = [](const std::string& name) { SetLanguage(LanguageNamed(name)); };
  return verb.add_option_function<std::string>("--lang", set, what)
      ->option_text("LANG [that of the locale]")
      ->check(OneOf({"en", "zh"}));
}

void AddConfigFlag(CLI::App& app, const std::string& group) {
  app.add_option(kConfig)
      ->description(
          "Read flags from FILE, as `batch = 64`; the command line overrides it. Every run's folder has a "
          "config.toml that repeats the run")
      ->group(group)
      ->option_text("FILE");
}

ParseOutcome Parse(CLI::App& app, const std::vector<std::string>& arguments) {
  PrepareHelp(app, OutputColumns());
  Reader reader(app);
  absl::StatusOr<std::vector<std::string>> words = reader.Read(WithoutHelpCommand(app, arguments));
  if (!words.ok()) return Wrong(reader.program(), std::string(words.status().message()));
  std::reverse(words->begin(), words->end());  // CLI11 takes them from the back
  try {
    app.parse(*std::move(words));
    return {.arguments = reader.expanded()};
  } catch (const CLI::Success& help) {
    std::ostringstream out, error;
    app.exit(help, out, error);
    // CLI11 leaves two empty lines between groups of flags.
    return {false, 0, absl::StrReplaceAll(out.str(), {{"\n\n\n", "\n\n"}})};
  } catch (const CLI::ConversionError& error) {
    const std::string message = ExplainConversion(reader.app(), error.what());
    return Wrong(reader.program(), reader.Origin(message) + message);
  } catch (const CLI::ValidationError& error) {
    const std::string message = ExplainRejection(reader.app(), error.what());
    return Wrong(reader.program(), reader.Origin(message) + message);
  } catch (const CLI::RequiredError& error) {
    absl::string_view name = error.what();
    if (!absl::ConsumeSuffix(&name, " is required")) return Wrong(reader.program(), error.what());
    if (name != "A subcommand") return Wrong(reader.program(), Tr("$0 is required", name));
    return Wrong(reader.program(), Tr("name a command: $0", absl::StrJoin(CommandsOf(reader.app()), ", ")));
  } catch (const CLI::ExcludesError& error) {
    const std::pair<std::string, std::string> flags =
        absl::StrSplit(error.what(), absl::MaxSplits(" excludes ", 1));
    return Wrong(reader.program(), Tr("$0 excludes $1", flags.first, flags.second));
  } catch (const CLI::ParseError& error) {
    return Wrong(reader.program(), reader.Origin(error.what()) + error.what());
  }
}

std::vector<std::string> ParseOrExit(CLI::App& app, int argc, const char* const* argv) {
  if (app.get_name().empty() && argc > 0) {
    const std::vector<std::string> path = absl::StrSplit(argv[0], '/');
    app.name(path.back());
  }
  app.set_version_flag("--version", absl::StrCat(app.get_name(), " ", kVersion), "Print the version");
  ParseOutcome outcome = Parse(app, std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
  if (!outcome.proceed) {
    std::fputs(outcome.text.c_str(), outcome.exit_code == 0 ? stdout : stderr);
    std::exit(FinishOutput(app.get_name(), outcome.exit_code));
  }
  std::vector<std::string> command_line = std::move(outcome.arguments);
  if (argc > 0) command_line.insert(command_line.begin(), argv[0]);
  return command_line;
}

std::string Printable(const std::string& text) { return OneLine(text, "\n\t"); }

int Fail(const std::string& program, const std::string& message, int code) {
  std::fputs(ErrorLine(program, message).c_str(), stderr);
  return code;
}

void Note(const std::string& program, const std::string& message) {
  std::fprintf(stderr, "%s\n", Tr("$0: note: $1", program, MessageText(message)).c_str());
}

int FinishOutput(const std::string& program, int code) {
  errno = 0;
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_written || code != 0) return code;
  if (errno == 0 && std::fputc('\n', stdout) != EOF) std::fflush(stdout);  // an earlier write failed: why?
  return Fail(program, absl::StrCat("cannot write to the standard output",
                                    errno != 0 ? absl::StrCat(": ", std::strerror(errno)) : ""));
}

}  // namespace psring
