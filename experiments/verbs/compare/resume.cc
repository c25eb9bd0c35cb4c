#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/cli/config_file.h"
#include "common/io/files.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"
#include "experiments/design/plan.h"
#include "experiments/run_folder/manifest.h"
#include "experiments/run_folder/run_claim.h"
#include "experiments/verbs/compare/experiment.h"
#include "experiments/verbs/compare/prepare.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

// Flags that may differ each time a run is started.
const std::set<std::string>& FreeFlags() {
  static const auto* const names =
      new std::set<std::string>({"resume", "time_budget", "dry_run", "verbose", "lang", "config", "node_rank",
                                 "master_addr", "master_port", "bind", "interface"});
  return *names;
}

// Parses `arguments`, of which the first is the verb, into `raw`.
absl::Status ParseCompare(const std::vector<std::string>& arguments, CLI::App& app, RawExperimentFlags& raw) {
  AddCompare(app, raw);
  const ParseOutcome outcome = Parse(app, arguments);
  if (outcome.proceed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StripSuffix(outcome.text, "\n"));
}

std::string FlagText(const CLI::Option& option) {
  return absl::StrCat("--", option.get_lnames().front(), " ", absl::StrJoin(option.results(), ","));
}

std::string Repeats(const std::string& run) {
  return absl::StrCat("psring compare --config ", run, "/config.toml starts it again");
}

absl::Status CheckFlags(const std::string& run, const CLI::App& asked, const CLI::App& recorded) {
  for (const CLI::Option* option : asked.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const std::string name = option->get_lnames().front();
    if (FreeFlags().contains(name)) continue;
    const CLI::Option* const then = recorded.get_option_no_throw(absl::StrCat("--", name));
    const bool had = then != nullptr && then->count() > 0;
    if (had && then->results() == option->results()) continue;
    return InvalidArgument(
        "--resume ", run, " continues that run with its own flags, ",
        had ? absl::StrCat("which have ", FlagText(*then)) : absl::StrCat("which have no --", name),
        "; omit ", FlagText(*option), ", or start another run");
  }
  return absl::OkStatus();
}

// Whether a run's summary and page are complete. Otherwise it was killed while it wrote them, or they were
// damaged.
bool HasReport(const std::string& folder) {
  const absl::StatusOr<std::string> page = ReadFile(folder + "/report.html", kMaxRecordBytes);
  const absl::StatusOr<std::string> summary = ReadFile(folder + "/summary.json", kMaxRecordBytes);
  return page.ok() && absl::EndsWith(absl::StripTrailingAsciiWhitespace(*page), "</html>") && summary.ok() &&
         nlohmann::json::accept(*summary);
}

}  // namespace

absl::StatusOr<ResumedRun> ReadResumedRun(const std::string& folder) {
  const auto wrong = [&](const auto&... why) { return InvalidArgument("--resume ", folder, ": ", why...); };
  std::error_code error;
  if (!fs::is_directory(folder, error)) return wrong("there is no such folder");
  const std::string path = folder + "/manifest.json";
  if (!fs::exists(path, error)) return wrong("this is not a run folder: it has no manifest.json");
  // Its flags are used, and its files are changed.
  if (const absl::Status mine = CheckOnlyMine(path); !mine.ok()) {
    return FailedPrecondition("--resume ", folder, ": ", mine.message(),
                              "; only a run that nobody else can change is resumed");
  }
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!at->is_symlink(error)) continue;
    return wrong(at->path().string(), " is a symbolic link; a run's folder has none");
  }
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  if (text.empty()) {  // only the claim on this folder
    PSRING_RETURN_IF_ERROR(RunClaim::Reopen(folder).status());
    return wrong("it ended before its first round began; remove the folder and start the comparison again");
  }
  const absl::StatusOr<RecordedRun> recorded = RecordedRunFromJson(text);
  if (absl::IsDataLoss(recorded.status())) {
    const bool has_flags = fs::file_size(folder + "/config.toml", error) > 0 && !error;
    return wrong(recorded.status().message(), "; start the comparison again",
                 has_flags ? absl::StrCat(": psring compare --config ", folder, "/config.toml") : "");
  }
  if (!recorded.ok()) return wrong(recorded.status().message());
  if (recorded->verb == "train") {
    return wrong("this is a training; psring train --resume continues from its checkpoints");
  }
  if (recorded->verb != "compare") return wrong("this is a run of ", recorded->verb, ", not a comparison");
  const absl::StatusOr<RecordedPlan> plan = RecordedPlanFromJson(text);
  if (!plan.ok()) return wrong(plan.status().message());
  if (!recorded->tells_how_it_ended) return wrong("an earlier psring wrote it; repeat its command");
  if (plan->all_done() && recorded->finished && HasReport(folder)) {
    return wrong("this comparison is finished, with ", plan->rounds_done, " rounds; ", Repeats(folder));
  }
  return ResumedRun{*recorded, *plan};
}

absl::StatusOr<ExperimentFlags> ResumedFlags(const RawExperimentFlags& asked,
                                             const std::vector<std::string>& command_line) {
  const std::string& folder = asked.resume;
  PSRING_ASSIGN_OR_RETURN(const ResumedRun run, ReadResumedRun(folder));
  const Again again = MakeAgain(run.recorded, "");
  for (const std::string& flag : again.left_out) {
    const std::string name = CanonicalWord(flag.substr(2, flag.find_first_of(" =") - 2));
    if (FreeFlags().contains(name)) continue;
    return InvalidArgument("--resume ", folder, ": a run with ", flag, " cannot be resumed; ",
                           Repeats(folder));
  }
  CLI::App typed("", "psring"), recorded("", "psring");
  RawExperimentFlags typed_raw = CompareDefaults(), raw = CompareDefaults();
  PSRING_RETURN_IF_ERROR(
      ParseCompare(std::vector<std::string>(command_line.begin() + 1, command_line.end()), typed, typed_raw));
  PSRING_RETURN_IF_ERROR(ParseCompare(again.arguments, recorded, raw));
  const CLI::App& verb = *typed.get_subcommand("compare");
  PSRING_RETURN_IF_ERROR(CheckFlags(folder, verb, *recorded.get_subcommand("compare")));
  raw.time_budget = asked.time_budget;  // the recorded one was for the earlier part
  raw.flags.verbose = asked.flags.verbose;
  raw.flags.dry_run = asked.flags.dry_run;
  // Nodes may have other addresses now.
  raw.launcher = asked.launcher;
  const NodesOptions& nodes = asked.flags.nodes;
  raw.flags.nodes.node = nodes.node;
  raw.flags.nodes.network = nodes.network;
  if (!nodes.master_addr.empty()) raw.flags.nodes.master_addr = nodes.master_addr;
  if (nodes.master_port != 0) raw.flags.nodes.master_port = nodes.master_port;
  // The recorded command line has set its own.
  if (const CLI::Option* lang = verb.get_option("--lang"); lang->count() > 0) {
    SetLanguage(LanguageNamed(lang->as<std::string>()));
  }
  PSRING_ASSIGN_OR_RETURN(ExperimentFlags flags, UnderstandCompare(raw, run.recorded.command_line));
  std::error_code error;
  flags.resume = fs::canonical(folder, error).string();
  return flags;
}

absl::Status CheckSameConditions(const ResumedRun& run, const ExperimentFlags& flags,
                                 const Prepared& prepared) {
  std::vector<std::string> differences;
  PSRING_ASSIGN_OR_RETURN(const Provenance here, DescribeProvenance(prepared.binaries.all(), {}));
  const std::string now = ManifestJson({.machine = prepared.machine, .plan = {}, .provenance = here});
  for (const std::string& line : Differences(run.recorded, now)) {
    for (const char* part : {"programs:", "machine: host", "machine: cores", "machine: cpu"}) {
      if (absl::StartsWith(line, part)) differences.push_back(line);
    }
  }
  for (const FileMark& input : run.recorded.provenance.inputs) {
    const absl::StatusOr<FileMark> mark = MarkFile(input.path);
    if (!mark.ok() || mark->hash != input.hash) {
      differences.push_back(absl::StrCat(input.path, " has changed"));
    }
  }
  const std::string& data = run.recorded.provenance.data_hash;
  if (!data.empty() && data != prepared.probe.data_hash) {
    differences.push_back("the training data has changed");
  }
  if (run.recorded.shaping != ShapingName(prepared.shaping)) {
    differences.push_back(absl::StrCat("its links were ", run.recorded.shaping, ", here they are ",
                                       ShapingName(prepared.shaping)));
  }
  if (differences.empty()) return absl::OkStatus();
  return FailedPrecondition("--resume ", flags.resume, ": ", absl::StrJoin(differences, "; "), "; ",
                            Repeats(flags.resume));
}

absl::StatusOr<std::vector<TriedRate>> Experiment::ReadRates() const {
  const std::string path = folder_.path() + "/rates.csv";
  PSRING_ASSIGN_OR_RETURN(const std::string csv, ReadFile(path));
  absl::StatusOr<std::vector<TriedRate>> tried = RatesFromCsv(csv);
  if (!tried.ok()) return absl::DataLossError(absl::StrCat(path, ": ", tried.status().message()));
  const Plan& plan = manifest_.plan;
  for (const Configuration& configuration : plan.simulated ? plan.cost : plan.accuracy) {
    const bool picked = std::any_of(tried->begin(), tried->end(), [&](const TriedRate& rate) {
      return rate.picked && rate.strategy == configuration.strategy.name &&
             rate.workers == configuration.workers;
    });
    if (picked || !configuration.training.evaluate) continue;
    return absl::DataLossError(absl::StrCat(path, " has no rate for ", configuration.name()));
  }
  return tried;
}

bool Experiment::all_done() const {
  const Plan& plan = manifest_.plan;
  return manifest_.rounds_done >= plan.rounds &&
         manifest_.trainings_done.size() >= plan.accuracy.size() * static_cast<size_t>(plan.accuracy_repeats);
}

bool Experiment::HasTraining(const Configuration& configuration, int repeat) const {
  const std::vector<std::string>& done = manifest_.trainings_done;
  return std::ranges::find(done, LabelOf(configuration, "accuracy", repeat).records) != done.end();
}

absl::StatusOr<Experiment::Done> Experiment::Read(const Configuration& configuration, const std::string& part,
                                                  int repeat) const {
  Done done{.label = LabelOf(configuration, part, repeat), .configuration = configuration};
  Configuration seeded = configuration;
  seeded.training.seed = done.label.seed;
  PSRING_ASSIGN_OR_RETURN(Launched launched, ReadLaunched(seeded, folder_.path() + "/" + done.label.records));
  PSRING_ASSIGN_OR_RETURN(done.figures, FiguresOf(seeded, launched.records));
  done.records = std::move(launched.records);
  return done;
}

absl::StatusOr<std::vector<Experiment::Done>> Experiment::ReadRound(int round) const {
  std::vector<Done> launches;
  for (const Configuration& configuration : manifest_.plan.cost) {
    PSRING_ASSIGN_OR_RETURN(launches.emplace_back(),
                            Read(configuration, manifest_.plan.simulated ? "training" : "cost", round));
  }
  return launches;
}

// After a power cut, records may be damaged: these rounds and trainings are repeated.
absl::Status Experiment::Restore(const ResumedRun& resumed) {
  manifest_.command_line = resumed.recorded.command_line;
  manifest_.provenance = resumed.recorded.provenance;
  manifest_.started_utc = resumed.recorded.started_utc;
  manifest_.earlier_s = resumed.recorded.wall_s;
  std::vector<Done> all;
  const auto repeats = [&](const std::string& what, const absl::Status& why) {
    AddNote(Tr("$0 is repeated, because its records cannot be read: $1", what, why.message()));
  };
  // All rounds use the rates that were tried before them.
  absl::Status rates;
  const bool tunes = CountOfRates(flags_.options) > 0;
  if (tunes) rates = ReadRates().status();
  if (!rates.ok()) repeats(Tr("every round"), rates);
  for (int round = 0; round < resumed.plan.rounds_done && rates.ok(); ++round) {
    absl::StatusOr<std::vector<Done>> launches = ReadRound(round);
    if (launches.ok()) {
      rounds_.insert(round);
      std::move(launches->begin(), launches->end(), std::back_inserter(all));
    } else {
      repeats(Tr("round $0", round + 1), launches.status());
    }
  }
  const bool has_rates = !tunes || !rounds_.empty();
  const std::vector<std::string>& trained = resumed.plan.trainings_done;
  for (int repeat = 0; repeat < manifest_.plan.accuracy_repeats; ++repeat) {
    for (const Configuration& configuration : manifest_.plan.accuracy) {
      const std::string records = LabelOf(configuration, "accuracy", repeat).records;
      if (std::ranges::find(trained, records) == trained.end() || !has_rates) continue;
      absl::StatusOr<Done> training = Read(configuration, "accuracy", repeat);
      if (training.ok()) {
        all.push_back(*std::move(training));
      } else {
        repeats(records, training.status());
      }
    }
  }
  // The files may contain a part of an unfinished round.
  PSRING_RETURN_IF_ERROR(folder_.Clear());
  for (const Done& done : all) PSRING_RETURN_IF_ERROR(Keep(done));
  manifest_.rounds_done = rounds_.size();
  AddNote(Tr("resumed after $0 of $1 and $2 accuracy trainings", RoundsText(manifest_.rounds_done),
             manifest_.plan.rounds, manifest_.trainings_done.size()));
  return absl::OkStatus();
}

}  // namespace psring
