#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/cli/config_file.h"
#include "common/io/files.h"
#include "common/io/json_object.h"
#include "common/measure/records.h"
#include "common/text/suggestions.h"
#include "experiments/design/launches.h"
#include "experiments/engine/failure.h"
#include "experiments/engine/programs.h"
#include "experiments/launch/launcher.h"
#include "experiments/verbs/compare/compare.h"

namespace psring {
namespace {

constexpr char kArrivals[] = "arrivals-server0.bin";
constexpr size_t kMaxHashBytes = 64;

struct Replayed {
  std::string weights_hash;
  int64_t updates = 0;
};

absl::StatusOr<Replayed> ReplayOne(const LaunchNote& note, const Binaries& binaries,
                                   const Interrupt& interrupt) {
  std::vector<std::string> command = {binaries.trainer, "--progress=none",
                                      absl::StrCat("--replay=", note.folder, "/", kArrivals)};
  for (const std::string& flag : note.trainer_flags) {
    const size_t equals = flag.find('=');
    const std::string name = CanonicalWord(flag.substr(std::min<size_t>(2, flag.size()), equals - 2));
    const std::string value = equals == std::string::npos ? "" : flag.substr(equals + 1);
    if (ReachOf(name, value) != FlagReach::kOutside) command.push_back(flag);
  }
  PSRING_ASSIGN_OR_RETURN(const std::string output, RunForOutput(command, absl::Hours(24), interrupt));
  std::vector<std::string> lines = absl::StrSplit(output, '\n', absl::SkipEmpty());
  PSRING_ASSIGN_OR_RETURN(const JsonObject json,
                          JsonObject::Parse(lines.empty() ? "" : lines.back(), kMaxTextBytes,
                                            "the answer of `trainer --replay`"));
  Replayed replayed;
  PSRING_ASSIGN_OR_RETURN(replayed.weights_hash, json.Text("weights_hash", kMaxHashBytes));
  PSRING_ASSIGN_OR_RETURN(replayed.updates, json.WholeNumber<int64_t>("updates", 0, INT64_MAX));
  return replayed;
}

// The launches that can be replayed.
absl::StatusOr<std::vector<LaunchNote>> AsynchronousLaunches(const std::string& run) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<LaunchNote> all, ListLaunches(run));
  std::vector<LaunchNote> found;
  for (const LaunchNote& note : all) {
    std::error_code error;
    if (!std::filesystem::exists(absl::StrCat(note.folder, "/", kArrivals), error)) continue;
    if (note.servers > 1) {
      return FailedPrecondition(note.folder, ": ", note.strategy, " had ", note.servers,
                                " servers; only runs with one server can be replayed (--servers 1)");
    }
    found.push_back(note);
  }
  if (!found.empty()) return found;
  return FailedPrecondition("'", run,
                            "' has no recorded order of arrivals. Only asynchronous runs (ps-async, ps-ssp) "
                            "on the wall clock record it, unless a server restarted, a worker was lost or a "
                            "stream broke; to repeat another run, use --config RUN/config.toml");
}

absl::StatusOr<int> ReplayAll(const std::string& run, const Interrupt& interrupt, Display& display) {
  PSRING_ASSIGN_OR_RETURN(const Binaries binaries, FindBinaries());
  PSRING_ASSIGN_OR_RETURN(const std::vector<LaunchNote> launches, AsynchronousLaunches(run));
  int differ = 0;
  for (const LaunchNote& note : launches) {
    const std::string path = absl::StrCat(note.folder, "/result-rank0.json");
    PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
    const absl::StatusOr<RankResult> live = RankResultFromJson(text);
    if (!live.ok()) return InvalidArgument(path, ": ", live.status().message());
    display.Redraw(absl::StrCat("replaying ", note.folder));
    PSRING_ASSIGN_OR_RETURN(const Replayed replayed, ReplayOne(note, binaries, interrupt));
    const bool same = replayed.weights_hash == live->weights_hash;
    differ += !same;
    display.Clear();
    display.Say(absl::StrFormat("%s x %d: %d updates repeated, weights %s: %s", note.strategy, note.workers,
                                replayed.updates, replayed.weights_hash,
                                same ? "equal to the run's, bit for bit"
                                     : absl::StrCat("DIFFERENT from the run's, ", live->weights_hash)));
  }
  if (differ == 0) return 0;
  return Fail(
      "psring replay",
      absl::StrCat(differ, " of ", launches.size(),
                   " runs differ: they used another processor or library, or a server was restarted"));
}

}  // namespace

int RunReplay(const std::string& run, const Interrupt& interrupt, Display& display) {
  const absl::StatusOr<int> code = ReplayAll(run, interrupt, display);
  return code.ok() ? *code : ReportFailure("replay", code.status(), display);
}

}  // namespace psring
