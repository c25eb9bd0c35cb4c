#include "experiments/verbs/results/results.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/read_file.h"
#include "common/cli/command_line.h"
#include "common/io/untrusted_json.h"
#include "common/text/peer_text.h"
#include "common/text/translate.h"
#include "experiments/run_folder/recorded_run.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using Json = UntrustedJson;

struct ListedRun {
  std::string began;  // UTC, as in the manifest
  std::string folder, what, verdict;
};

Json JsonIn(const fs::path& path) {
  return ParseUntrusted(ReadFile(path.string(), kMaxTextBytes).value_or(""));
}

// The words after the verb.
std::string FlagsOf(const Json& manifest) {
  std::vector<std::string> words;
  const Json& line = ListAt(manifest, "command_line");
  for (size_t i = 2; i < line.size(); ++i) {
    if (line[i].is_string()) words.push_back(line[i].get<std::string>());
  }
  return PeerText(ShellText(words));
}

ListedRun ReadRun(const fs::path& folder, const Json& manifest) {
  const Json all = JsonIn(folder / "table.json");
  const Json& table = FieldAt(all, CurrentLanguage() == Language::kChinese ? "zh" : "en");
  ListedRun run{.began = PeerText(TextAt(manifest, "started_utc")),
                .folder = folder.string(),
                .what = PeerText(TextAt(manifest, "verb")),
                .verdict = PeerText(TextAt(table, "verdict"))};
  std::string settings = PeerText(TextAt(table, "settings"));
  if (settings.empty()) settings = FlagsOf(manifest);
  if (!settings.empty()) absl::StrAppend(&run.what, "  ", settings);
  if (run.verdict.empty() && FieldAt(manifest, "finished") == false) run.verdict = Tr("did not finish");
  return run;
}

}  // namespace

CLI::App* AddResults(CLI::App& app, RawResultsFlags& raw) {
  CLI::App* verb = app.add_subcommand("results", "List the runs in a folder: when, what, and the verdict");
  verb->add_option("folder", raw.folder, "The folder of the runs' folders")
      ->option_text("FOLDER")
      ->capture_default_str();
  AddLanguageFlag(*verb, "en or zh");
  return verb;
}

int RunResults(const RawResultsFlags& raw, Display& display) {
  std::error_code error;
  std::vector<ListedRun> runs;
  for (fs::directory_iterator at(raw.folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code link;
    if (at->is_symlink(link)) continue;  // runs/latest
    const Json manifest = JsonIn(at->path() / "manifest.json");
    if (manifest.is_object()) runs.push_back(ReadRun(at->path(), manifest));
  }
  if (runs.empty()) return Fail("psring results", Tr("$0 contains no folder of a run", raw.folder), 2);
  std::ranges::sort(runs, [](const ListedRun& a, const ListedRun& b) {
    return std::pair(b.began, b.folder) < std::pair(a.began, a.folder);
  });
  for (const ListedRun& run : runs) {
    const std::string began = absl::StrReplaceAll(run.began.substr(0, 16), {{"T", " "}});
    display.Say(absl::StrCat(began, "  ", run.folder, "  ", run.what));
    if (!run.verdict.empty()) display.SayLines(absl::StrCat("    ", run.verdict), Style::kBold);
  }
  return 0;
}

}  // namespace psring
