#include "absl/strings/str_format.h"
#include "experiments/plan/estimate.h"
#include "experiments/summary/findings.h"
#include "experiments/texts/findings.h"
#include "experiments/theory/cost_model.h"

namespace psring {
namespace {

// "one dedicated server", "4 servers on the workers' hosts".
std::string Placed(ServerPlace place, int servers, Language language) {
  const bool one = servers == 1;
  switch (place) {
    case ServerPlace::kRank0:
      return Say(language, one ? kServerOnRank0 : kServersOnRank0, servers);
    case ServerPlace::kDedicated:
      return Say(language, one ? kServerDedicated : kServersDedicated, servers);
    case ServerPlace::kColocated:
      return Say(language, one ? kServerColocated : kServersColocated, servers);
  }
  return "";
}

// The law is about gradients without rows.
bool IsLawfulServer(const SummaryRow& row) {
  if (row.configuration.model.has_tables) return false;
  const std::optional<Scheme> scheme = SchemeOf(row.configuration.strategy);
  return scheme == Scheme::kServerSync && row.configuration.workers > 1 &&
         row.configuration.strategy.number == 0;
}

// The first all-reduce with `workers` that theory covers.
const SummaryRow* AllReduceWith(const std::vector<SummaryRow>& rows, int workers) {
  for (const SummaryRow& row : rows) {
    if (row.configuration.workers != workers || !row.configuration.strategy.uses_group) continue;
    const std::optional<Scheme> scheme = SchemeOf(row.configuration.strategy);
    if (scheme && scheme->kind == Scheme::Kind::kAllReduce) return &row;
  }
  return nullptr;
}

double LinkBytes(const SummaryRow& row) {
  return TermsOf(PatternOf(row.configuration, *SchemeOf(row.configuration.strategy)), 1).link_bytes;
}

}  // namespace

bool SameUpdateRule(const SummaryRow& row, const SummaryRow& other) {
  const StrategyUpdate &ours = row.configuration.update, &theirs = other.configuration.update;
  return ours.optimizer == theirs.optimizer && ours.lr == theirs.lr;
}

std::vector<std::string> ServerLaw(const std::vector<SummaryRow>& rows, Language language) {
  Sentences findings(language);
  std::vector<std::string> laws;
  for (const SummaryRow& row : rows) {
    if (!IsLawfulServer(row)) continue;
    const Configuration& configuration = row.configuration;
    const SummaryRow* group = AllReduceWith(rows, configuration.workers);
    if (group == nullptr) continue;
    const CommPattern pattern = PatternOf(configuration, Scheme::kServerSync);
    laws.push_back(findings.Say(kServerLaw, configuration.strategy.name,
                                Placed(pattern.place, pattern.servers, language),
                                findings.Say(pattern.pipelined ? kPipelinedServer : kSerialServer),
                                absl::StrFormat("%.2f", LinkBytes(row) / LinkBytes(*group)),
                                group->configuration.strategy.name, configuration.workers));
  }
  if (!laws.empty()) findings.Add(kServersInTheory, findings.Joined(laws, kSemicolon));
  return findings.list();
}

}  // namespace psring
