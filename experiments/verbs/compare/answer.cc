// What a run writes and prints at its end.
#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/cli/wrap.h"
#include "common/text/translate.h"
#include "experiments/analysis/findings.h"
#include "experiments/analysis/table.h"
#include "experiments/analysis/verdict.h"
#include "experiments/design/plan.h"
#include "experiments/page/page.h"
#include "experiments/run_folder/recorded_run.h"
#include "experiments/verbs/compare/experiment.h"

namespace psring {

void Experiment::PrintAnswer(const std::vector<SummaryRow>& rows, const std::vector<std::string>& findings) {
  const RunVerdict verdict = VerdictOf(rows, manifest_.wires);
  display_.SayLines("");
  if (!verdict.line.empty()) display_.SayLines(Wrap(verdict.line, ""), Style::kBold);
  if (!verdict.facts.empty()) display_.SayLines(FactsText(verdict));
  if (const std::optional<Validity> validity = ValidityOf(rows, prepared_.cores)) {
    display_.SayLines(Wrap(validity->Text(), ""), Style::kDim);
  }
  if (flags_.verbose) {
    std::string text = absl::StrCat(Table(rows), "\n");
    for (const std::string& sentence : findings) text += Wrap(sentence, "- ");
    display_.SayLines(text);
    return;
  }
  display_.SayLines(ShortTable(rows));
  display_.SayLines(Tr("$0 findings: $1/$2; all columns: summary.csv", findings.size(), folder_.path(),
                       CurrentLanguage() == Language::kChinese ? "findings.zh.txt" : "findings.txt"),
                    Style::kDim);
}

absl::Status Experiment::Report(const std::string& ended) {
  display_.Clear();
  // In the order of the plan, because rounds are shuffled.
  std::vector<ConfigurationRuns> runs;
  for (const auto* part : {&manifest_.plan.cost, &manifest_.plan.accuracy}) {
    for (const Configuration& configuration : *part) {
      const auto same = [&](const ConfigurationRuns& other) {
        return other.configuration.folder() == configuration.folder();
      };
      if (std::ranges::any_of(runs, same)) continue;
      runs.push_back(RunsOf(configuration));
      runs.back().configuration = configuration;  // with the picked rates
    }
  }
  std::vector<SummaryRow> rows = Summarise(manifest_.run_id, runs, manifest_.wires, manifest_.link);
  PSRING_RETURN_IF_ERROR(Predict(runs, rows));
  manifest_.ended = ended;
  manifest_.wall_s = manifest_.earlier_s + seconds();
  PSRING_RETURN_IF_ERROR(folder_.Write("summary.csv", SummaryCsv(rows)));
  PSRING_RETURN_IF_ERROR(folder_.Write("summary.json", SummaryJson(rows)));
  PSRING_RETURN_IF_ERROR(folder_.Write("table.json", TableJson(rows, manifest_.wires, prepared_.cores)));
  PSRING_RETURN_IF_ERROR(folder_.WriteTrace());
  PSRING_RETURN_IF_ERROR(WriteManifest());

  const auto hints = [&] {
    std::vector<std::string> list;
    if (manifest_.verb != "compare") return list;
    for (const std::string& flags : VerdictOf(rows, manifest_.wires).next_flags) {
      list.push_back(Tr("hint: $0 compare --config $1/config.toml $2", CommandName(), folder_.path(), flags));
    }
    return list;
  };
  const auto findings = [&] {
    std::vector<std::string> list = Findings(rows, manifest_.wires, prepared_.cores);
    std::ranges::move(hints(), std::back_inserter(list));
    return list;
  };
  for (const auto& [in, file] :
       {std::pair(Language::kEnglish, "findings.txt"), std::pair(Language::kChinese, "findings.zh.txt")}) {
    const std::vector<std::string> list = InLanguage(in, findings);
    PSRING_RETURN_IF_ERROR(folder_.Write(file, absl::StrCat(absl::StrJoin(list, "\n"), "\n")));
  }
  PSRING_RETURN_IF_ERROR(WriteRunReport(folder_.path()));

  PrintAnswer(rows, findings());
  const std::string beside = absl::StrCat("summary.csv, runs.csv, curves.csv, steps.jsonl, trace.json",
                                          flags_.predict && manifest_.wires ? ", residuals.csv" : "",
                                          flags_.tensorboard ? "; tensorboard --logdir " : "",
                                          flags_.tensorboard ? folder_.path() + "/tensorboard" : "");
  display_.SayLines(
      absl::StrCat(Tr("$0; results: $1/report.html, and in the same folder $2",
                      HumanSeconds(manifest_.wall_s), folder_.path(), beside),
                   "\n",
                   ended.empty() ? Tr("repeat: $0 $1 --config $2/config.toml", CommandName(), manifest_.verb,
                                      folder_.path())
                                 : Tr("continue: $0 compare --resume $1", CommandName(), folder_.path())),
      Style::kDim);
  for (const std::string& hint : hints()) display_.SayLines(hint);
  return absl::OkStatus();
}

}  // namespace psring
