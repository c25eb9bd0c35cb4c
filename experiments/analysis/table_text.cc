// Numbers in texts, and the sentences above a table.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "common/text/translate.h"
#include "experiments/analysis/table.h"
#include "experiments/design/plan_text.h"

namespace psring {

std::string WithThousands(double value) {
  const std::string digits = absl::StrFormat("%.0f", std::abs(value));
  std::string text;
  if (value < 0) text.push_back('-');
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string MegabytesOf(int64_t parameters) {
  const double megabytes = 4e-6 * static_cast<double>(parameters);
  return megabytes < 100 ? absl::StrFormat("%.3g", megabytes) : WithThousands(megabytes);
}

std::vector<std::string> AboveTable(const std::vector<SummaryRow>& rows) {
  if (rows.empty()) return {};
  const Configuration& configuration = rows.front().configuration;
  const TrainingOptions& training = configuration.training;
  const int64_t parameters = std::max(rows.front().sample.parameters, configuration.model.parameters);
  std::vector<std::string> sentences;
  if (parameters > 0 || configuration.model.has_tables) {
    const char* const line =
        configuration.model.has_tables
            ? TrNoop(
                  "Model: $0, with tables, of which a step exchanges only the rows that it "
                  "touches, and $1 other parameters ($2 MB of float32 gradients).")
            : TrNoop("Model: $0, $1 parameters ($2 MB of float32 gradients).");
    sentences.push_back(Tr(line, configuration.model.name, WithThousands(static_cast<double>(parameters)),
                           MegabytesOf(parameters)));
  }
  const std::string samples = Tr(training.reads_text() ? TrNoop("texts") : TrNoop("samples"));
  sentences.push_back(training.global_batch > 0
                          ? Tr("Strong scaling (--global_batch): the workers share $0 $1 per step.",
                               training.global_batch, samples)
                          : Tr("Weak scaling (--batch): every worker computes $0 $1 per step.",
                               WorkerBatch(training) * training.reference_workers, samples));
  return sentences;
}

}  // namespace psring
