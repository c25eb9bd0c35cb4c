#include "absl/strings/str_format.h"
#include "experiments/plan/estimate.h"
#include "experiments/summary/findings.h"
#include "experiments/texts/findings.h"
#include "trainer/strategies/table/cost_model.h"

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
    if (scheme && scheme->schedule != nullptr) return &row;
  }
  return nullptr;
}

std::string Ratio(double server, double group) { return absl::StrFormat("%.2f", server / group); }

// From theory to the step: with the row's buckets, as measured, and with computing.
std::string MeasuredText(const SummaryRow& server, const SummaryRow& group, const Sentences& findings) {
  const auto moving = [](const SummaryRow& row) {
    return row.mean.comm_busy_ms - row.mean.wait_ms.value_or(0);
  };
  if (!server.measured_cost || !group.measured_cost || !server.predicted_comm_ms ||
      group.predicted_comm_ms.value_or(0) <= 0 || moving(group) <= 0 || server.mean.samples_per_s <= 0) {
    return "";
  }
  return findings.Say(kServerAsMeasured, Ratio(*server.predicted_comm_ms, *group.predicted_comm_ms),
                      Ratio(moving(server), moving(group)),
                      Ratio(group.mean.samples_per_s, server.mean.samples_per_s));
}

}  // namespace

std::optional<double> GradientsThroughLink(const SummaryRow& row) {
  const std::optional<Scheme> scheme = SchemeOf(row.configuration.strategy);
  if (row.configuration.model.has_tables || !scheme) return std::nullopt;
  return TermsOf(PatternOf(row.configuration, *scheme), 1).link_bytes;
}

std::string WayText(const SummaryRow& row, const Phrase& form, Language language) {
  const Configuration& configuration = row.configuration;
  if (configuration.servers() == 0) return configuration.strategy.name;
  const CommPattern pattern = PatternOf(configuration, Scheme::kServerSync);
  return Say(language, form, Placed(pattern.place, pattern.servers, language),
             In(language, pattern.pipelined ? kPipelinedServer : kSerialServer));
}

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
    laws.push_back(findings.Say(
        kServerLaw, configuration.strategy.name, WayText(row, kWayInParentheses, language),
        Ratio(*GradientsThroughLink(row), *GradientsThroughLink(*group)), group->configuration.strategy.name,
        configuration.workers, MeasuredText(row, *group, findings)));
  }
  if (!laws.empty()) findings.Add(kServersInTheory, findings.Joined(laws, kSemicolon));
  return findings.list();
}

}  // namespace psring
